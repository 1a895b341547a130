// limbic_fwd: one step of the limbic model; reference: backend/reference/limbic.py; test: tests/ops/test_limbic.py
// One workgroup per sample.

//#include limbic

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, I)
@group(0) @binding(1) var<storage, read> h: array<f32>;  // (N, H)
@group(0) @binding(2) var<storage, read> s: array<f32>;  // (N, A)
@group(0) @binding(3) var<storage, read> W: array<f32>;  // (M)
@group(0) @binding(4) var<storage, read_write> hidden: array<f32>;  // (N, H)
@group(0) @binding(5) var<storage, read_write> delta: array<f32>;  // (N, A)
@group(0) @binding(6) var<storage, read_write> reward: array<f32>;  // (N)
@group(0) @binding(7) var<uniform> shape: Shape;

const WG = 64u;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if (row >= shape.n) { return; }
    let start = row * shape.hidden;
    for (var j = lane; j < shape.hidden; j += WG) {
        let a = stay(j);
        hidden[start + j] = a * h[start + j] + (1.0 - a) * fresh(row, j);
    }
    storageBarrier();
    for (var q = lane; q <= shape.states; q += WG) {
        let is_reward = q == shape.states;
        let weights = select(shape.wout_state + q * shape.hidden, shape.wout_reward, is_reward);
        var sum = W[select(shape.bout_state + q, shape.bout_reward, is_reward)];
        for (var j = 0u; j < shape.hidden; j++) { sum += hidden[start + j] * W[weights + j]; }
        if (is_reward) { reward[row] = sum; } else { delta[row * shape.states + q] = safe_tanh(sum); }
    }
}
