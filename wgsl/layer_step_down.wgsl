// layer_step: out = a + shared(m) + sum gate*expert(m), from hidden, and the rows of the past move up by one; reference: backend/reference/step.py; test: tests/ops/test_step.py
// LANES threads per value of out; the shared expert first, then the chosen ones in order.
//#include layer_step
//#include row_reduce
//#include row_dot

@group(0) @binding(0) var<storage, read> given: array<vec4<f32>>;    // hidden (B, k+1, deep)
@group(0) @binding(1) var<storage, read> weights: array<vec4<f32>>;  // (M)
@group(0) @binding(2) var<storage, read> records: array<f32>;        // (B, record)
@group(0) @binding(3) var<storage, read_write> out: array<f32>;      // (B, D) =
@group(0) @binding(4) var<storage, read_write> state: array<f32>;    // (B, Q, D) +=, oldest row first
@group(0) @binding(5) var<uniform> shape: Step;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let c = group.x * (WG / LANES) + thread / LANES;
    let column = min(c, shape.d - 1u);
    let row = group.y;
    var share = 0.0;
    var biases = 0.0;
    for (var slot = 0u; slot <= shape.k; slot++) {
        var expert = 0u;
        var gate = 1.0;
        if (slot > 0u) {
            expert = 1u + u32(records[chosen_at(row) + slot - 1u]);
            gate = records[gates_at(row) + slot - 1u];
        }
        let values = (row * (shape.k + 1u) + slot) * shape.deep;
        let w2 = expert_at(expert) + shape.w2 + column * shape.h;
        let bias = expert_at(expert) + shape.b2 + column;
        share += gate * share_of_product(w2, values, shape.h, thread % LANES);
        biases += gate * weights[bias / 4u][bias % 4u];
    }
    let sum = row_sum(thread, share);
    if (thread % LANES > 0u || c >= shape.d) { return; }
    out[row * shape.d + c] = records[a_at(row) + c] + (sum + biases);
    let kept = shape.taps - 1u;
    let first = row * shape.q * shape.d + c;
    for (var i = 1u; i < kept; i++) { state[first + (i - 1u) * shape.d] = state[first + i * shape.d]; }
    if (kept > 0u) { state[first + (kept - 1u) * shape.d] = records[n_at(row) + c]; }
}
