// limbic_bwd: what the parameters' gradients need of each sample, and its loss; reference: backend/reference/limbic.py; test: tests/ops/test_limbic.py
// One workgroup per sample. A record is hidden (H), dt (H), da_logit (H), dpre (A), dreward, losses (A+1).

//#include limbic

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, I)
@group(0) @binding(1) var<storage, read> h: array<f32>;  // (N, H)
@group(0) @binding(2) var<storage, read> s: array<f32>;  // (N, A)
@group(0) @binding(3) var<storage, read> W: array<f32>;  // (M)
@group(0) @binding(4) var<storage, read> targets: array<f32>;  // (N, A+2)
@group(0) @binding(5) var<storage, read> reward_weight: array<f32>;  // (1)
@group(0) @binding(6) var<storage, read_write> records: array<f32>;  // (N, record)
@group(0) @binding(7) var<uniform> shape: Shape;

const WG = 64u;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if (row >= shape.n) { return; }
    let hidden = row * shape.record;
    let dt = hidden + shape.hidden;
    let da = dt + shape.hidden;
    let dpre = da + shape.hidden;  // dreward is behind the last one
    let losses = dpre + shape.states + 1u;
    for (var j = lane; j < shape.hidden; j += WG) {
        let a = stay(j);
        let t = fresh(row, j);
        records[hidden + j] = a * h[row * shape.hidden + j] + (1.0 - a) * t;
        records[dt + j] = t;
    }
    storageBarrier();
    let answers = row * (shape.states + 2u);
    let weight = targets[answers + shape.states + 1u];
    for (var q = lane; q <= shape.states; q += WG) {
        let is_reward = q == shape.states;
        let weights = select(shape.wout_state + q * shape.hidden, shape.wout_reward, is_reward);
        var sum = W[select(shape.bout_state + q, shape.bout_reward, is_reward)];
        for (var j = 0u; j < shape.hidden; j++) { sum += records[hidden + j] * W[weights + j]; }
        let value = select(safe_tanh(sum), sum, is_reward);
        let miss = value - targets[answers + q];
        let scaled = weight * miss * select(1.0, reward_weight[0], is_reward);
        records[dpre + q] = scaled * select(1.0 - value * value, 1.0, is_reward);
        records[losses + q] = 0.5 * scaled * miss;
    }
    storageBarrier();
    for (var j = lane; j < shape.hidden; j += WG) {
        var dh = records[dpre + shape.states] * W[shape.wout_reward + j];
        for (var q = 0u; q < shape.states; q++) {
            dh += records[dpre + q] * W[shape.wout_state + q * shape.hidden + j];
        }
        let a = stay(j);
        let t = records[dt + j];
        records[da + j] = dh * (h[row * shape.hidden + j] - t) * a * (1.0 - a);
        records[dt + j] = dh * (1.0 - a) * (1.0 - t * t);
    }
}
