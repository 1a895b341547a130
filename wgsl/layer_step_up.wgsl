// layer_step: hidden = relu(w1 m + b1) of the shared and the chosen experts; reference: backend/reference/step.py; test: tests/ops/test_step.py
// LANES threads per value of hidden.
//#include layer_step
//#include row_reduce
//#include row_dot
//#include layer_step_hidden

@group(0) @binding(0) var<storage, read> given: array<vec4<f32>>;    // (B, record)
@group(0) @binding(1) var<storage, read> weights: array<vec4<f32>>;  // (M)
@group(0) @binding(2) var<storage, read_write> hidden: array<f32>;   // (B, k+1, deep) =
@group(0) @binding(3) var<uniform> shape: Step;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let slot = group.y;
    let row = group.z;
    var expert = 0u;
    if (slot > 0u) {
        let at = chosen_at(row) + slot - 1u;
        expert = 1u + u32(given[at / 4u][at % 4u]);
    }
    put_hidden(group.x, slot, row, expert, m_at(row), thread);
}
