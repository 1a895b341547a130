// head_xent: cross-entropy of each row of a chunk and, with GRADIENT, its gradient in place of the logits; reference: backend/reference/head.py; test: tests/backend/test_matmul_kernels.py
// One workgroup per row. A row that is not scored gives loss 0 and gradient 0 whatever its logits are; a scored row with a
// logit that is not finite, or a target outside the vocabulary, gives a NaN loss, found by bits.

struct Shape { first: u32, rows: u32, v: u32 } // rows first..first+rows-1 of the batch

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;     // (rows, V), with GRADIENT: = d loss / d logits
@group(0) @binding(1) var<storage, read> targets: array<i32>;          // (N)
@group(0) @binding(2) var<storage, read> weights: array<f32>;          // (N)
@group(0) @binding(3) var<storage, read> hyper: array<f32>;            // (16), read with GRADIENT only
@group(0) @binding(4) var<storage, read_write> row_loss: array<u32>;   // (N), f32 as bits: NaN is written as an integer
@group(0) @binding(5) var<uniform> shape: Shape;

override GRADIENT: bool = false;
const WG = 256u;
const IGNORE = -100;
const GRAD_SCALE = 9u; // slot of hyper, ops.HYPER
const NOT_SCORED = 0x80000000u; // -0, which no scored row gives
const NAN = 0x7fc00000u;
const LOWEST = -3.4028234e38f;
var<workgroup> partial: array<vec2<f32>, WG>; // maximum, and 1 where something is not finite; then sums

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let local = group.x + group.y * groups.x;
    if (local >= shape.rows) { return; }
    let row = shape.first + local;
    let start = local * shape.v;
    let weight = weights[row];
    let target_id = targets[row];
    if (target_id == IGNORE || weight == 0.0) {
        if (thread == 0u) { row_loss[row] = NOT_SCORED; }
        if (GRADIENT) {
            for (var v = thread; v < shape.v; v += WG) { logits[start + v] = 0.0; }
        }
        return;
    }

    var best = vec2<f32>(LOWEST, 0.0);
    for (var v = thread; v < shape.v; v += WG) {
        let value = logits[start + v];
        if ((bitcast<u32>(value) & 0x7f800000u) == 0x7f800000u) { best.y = 1.0; } else { best.x = max(best.x, value); }
    }
    partial[thread] = best;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread] = max(partial[thread], partial[thread + half]); }
    }
    workgroupBarrier();
    best = partial[0];
    workgroupBarrier();

    var sum = 0.0;
    for (var v = thread; v < shape.v; v += WG) { sum += exp(min(logits[start + v] - best.x, 0.0)); }
    partial[thread].x = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) { partial[thread].x += partial[thread + half].x; }
    }
    workgroupBarrier();
    sum = partial[0].x;

    let inside = target_id >= 0 && target_id < i32(shape.v);
    if (thread == 0u) {
        let picked = logits[start + select(0u, u32(target_id), inside)];
        let loss = bitcast<u32>(weight * (log(sum) + (best.x - picked)));
        row_loss[row] = select(select(loss, 0u, loss == NOT_SCORED), NAN, best.y > 0.0 || !inside);
    }
    if (!GRADIENT) { return; }
    workgroupBarrier(); // the target's logit has been read
    let scale = hyper[GRAD_SCALE] * weight;
    for (var v = thread; v < shape.v; v += WG) {
        var share = exp(min(logits[start + v] - best.x, 0.0)) / sum;
        if (i32(v) == target_id) { share -= 1.0; }
        logits[start + v] = select(scale * share, bitcast<f32>(NAN | v), best.y > 0.0);
    }
}
