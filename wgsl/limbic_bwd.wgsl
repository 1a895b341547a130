// limbic_bwd: dW += and loss += from the records of limbic_bwd_rows; reference: backend/reference/limbic.py; test: tests/ops/test_limbic.py
// One invocation per parameter, and one for the loss; each adds the samples in order.

struct Shape {  // as in common/limbic.wgsl
    n: u32, inputs: u32, hidden: u32, states: u32,
    ws: u32, a_logit: u32, wout_state: u32, bout_state: u32, wout_reward: u32, bout_reward: u32,
    params: u32, record: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, I)
@group(0) @binding(1) var<storage, read> s: array<f32>;  // (N, A)
@group(0) @binding(2) var<storage, read> records: array<f32>;  // (N, record)
@group(0) @binding(3) var<storage, read_write> loss: array<f32>;  // (1)
@group(0) @binding(4) var<storage, read_write> dW: array<f32>;  // (M)
@group(0) @binding(5) var<uniform> shape: Shape;

const WG = 64u;

// Sum over samples of one word of the record.
fn sum_of(word: u32) -> f32 {
    var sum = 0.0;
    for (var row = 0u; row < shape.n; row++) { sum += records[row * shape.record + word]; }
    return sum;
}

// Sum over samples of a product of two words.
fn sum_of_products(word: u32, other: u32) -> f32 {
    var sum = 0.0;
    for (var row = 0u; row < shape.n; row++) {
        sum += records[row * shape.record + word] * records[row * shape.record + other];
    }
    return sum;
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    let dt = shape.hidden;
    let da = 2u * shape.hidden;
    let dpre = 3u * shape.hidden;
    let dreward = dpre + shape.states;
    if (i > shape.params) { return; }
    if (i == shape.params) {
        var sum = 0.0;
        for (var q = 0u; q <= shape.states; q++) { sum += sum_of(dreward + 1u + q); }
        loss[0] += sum;
        return;
    }
    var sum = 0.0;
    if (i < shape.hidden * shape.inputs) {
        let unit = dt + i / shape.inputs;
        for (var row = 0u; row < shape.n; row++) {
            sum += records[row * shape.record + unit] * x[row * shape.inputs + i % shape.inputs];
        }
    } else if (i >= shape.ws && i - shape.ws < shape.hidden * shape.states) {
        let place = i - shape.ws;
        let unit = dt + place / shape.states;
        for (var row = 0u; row < shape.n; row++) {
            sum += records[row * shape.record + unit] * s[row * shape.states + place % shape.states];
        }
    } else if (i >= shape.a_logit && i - shape.a_logit < shape.hidden) {
        sum = sum_of(da + i - shape.a_logit);
    } else if (i >= shape.wout_state && i - shape.wout_state < shape.states * shape.hidden) {
        let place = i - shape.wout_state;
        sum = sum_of_products(dpre + place / shape.hidden, place % shape.hidden);
    } else if (i >= shape.bout_state && i - shape.bout_state < shape.states) {
        sum = sum_of(dpre + i - shape.bout_state);
    } else if (i >= shape.wout_reward && i - shape.wout_reward < shape.hidden) {
        sum = sum_of_products(dreward, i - shape.wout_reward);
    } else if (i == shape.bout_reward) {
        sum = sum_of(dreward);
    } else {
        return;  // padding between tensors
    }
    dW[i] += sum;
}
