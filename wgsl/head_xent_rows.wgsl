// head_xent: cross-entropy of each row of a chunk and, with GRADIENT, its gradient in place of the logits; reference: backend/reference/head.py; test: tests/ops/test_head.py
// LANES threads per row. A row that is not scored gives loss 0 and gradient 0 whatever its logits are; a scored row with a
// logit that is not finite, or a target outside the vocabulary, gives a NaN loss, found by bits.
//#include row_reduce

struct Shape { first: u32, rows: u32, v: u32 } // rows first..first+rows-1 of the batch

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;     // (rows, V), with GRADIENT: = d loss / d logits
@group(0) @binding(1) var<storage, read> targets: array<i32>;          // (N)
@group(0) @binding(2) var<storage, read> weights: array<f32>;          // (N)
@group(0) @binding(3) var<storage, read> hyper: array<f32>;            // (16), read with GRADIENT only
@group(0) @binding(4) var<storage, read_write> row_loss: array<u32>;   // (N), f32 as bits: NaN is written as an integer
@group(0) @binding(5) var<uniform> shape: Shape;

override GRADIENT: bool = false;
const IGNORE = -100;
const GRAD_SCALE = 9u; // slot of hyper, ops.HYPER
const NOT_SCORED = 0x80000000u; // -0, which no scored row gives
const NAN = 0x7fc00000u;
const LOWEST = -3.4028234e38f;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let lane = thread % LANES;
    let local = (group.x + group.y * groups.x) * (WG / LANES) + thread / LANES;
    let inside = local < shape.rows;
    let row = shape.first + min(local, shape.rows - 1u);
    let start = min(local, shape.rows - 1u) * shape.v;
    let weight = weights[row];
    let target_id = targets[row];
    let scored = inside && target_id != IGNORE && (bitcast<u32>(weight) & 0x7fffffffu) != 0u; // NaN is not 0
    let count = select(0u, shape.v, scored);

    var best = vec2<f32>(LOWEST, 0.0); // the largest logit, and 1 if one is not finite
    for (var v = lane; v < count; v += LANES) {
        let value = logits[start + v];
        if ((bitcast<u32>(value) & 0x7f800000u) == 0x7f800000u) { best.y = 1.0; } else { best.x = max(best.x, value); }
    }
    best = row_max(thread, best);

    var sum = 0.0;
    for (var v = lane; v < count; v += LANES) { sum += exp(min(logits[start + v] - best.x, 0.0)); }
    sum = row_sum(thread, sum);

    let known = target_id >= 0 && target_id < i32(shape.v);
    if (lane == 0u && inside) {
        let picked = logits[start + select(0u, u32(target_id), known)];
        var loss = bitcast<u32>(weight * (log(sum) + (best.x - picked)));
        if (loss == NOT_SCORED) { loss = 0u; }
        if (best.y > 0.0 || !known) { loss = NAN; }
        row_loss[row] = select(NOT_SCORED, loss, scored);
    }
    if (!GRADIENT) { return; }
    if (LANES > 1u) { workgroupBarrier(); } // the target's logit has been read
    if (!inside) { return; }
    let scale = hyper[GRAD_SCALE] * weight;
    for (var v = lane; v < shape.v; v += LANES) {
        var share = exp(min(logits[start + v] - best.x, 0.0)) / sum;
        if (i32(v) == target_id) { share -= 1.0; }
        let value = select(scale * share, bitcast<f32>(NAN | v), best.y > 0.0);
        logits[start + v] = select(0.0, value, scored);
    }
}
