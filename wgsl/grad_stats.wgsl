// grad_stats: sums of (g*inv_grad_scale)^2 and whether any is not finite; reference: backend/reference/optim.py; test: tests/ops/test_optim.py
// First stage: each workgroup leaves one sum and one flag; grad_stats_total adds them.

//#include finite
//#include half

struct Shape { count: u32, round_half: u32 }

@group(0) @binding(0) var<storage, read> g: array<u32>;  // (P), the bits of floats
@group(0) @binding(1) var<storage, read> hyper: array<f32>;  // (16)
@group(0) @binding(2) var<storage, read_write> parts: array<f32>;  // (workgroups, 2)
@group(0) @binding(3) var<uniform> shape: Shape;

const INV_GRAD_SCALE = 10u;
const WG = 256u;
var<workgroup> sums: array<f32, WG>;
var<workgroup> bad: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    if (lane == 0u) { atomicStore(&bad, 0u); }  // not every driver starts workgroup memory at zero
    workgroupBarrier();
    var sum = 0.0;
    for (var i = group.x * WG + lane; i < shape.count; i += groups.x * WG) {
        var bits = g[i];
        if (shape.round_half == 1u) { bits = round_to_half(bits); }
        let value = bitcast<f32>(bits) * hyper[INV_GRAD_SCALE];
        if (not_finite(bits) || not_finite(bitcast<u32>(value))) { atomicStore(&bad, 1u); }
        sum += value * value;
    }
    sums[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { sums[lane] += sums[lane + half]; }
    }
    workgroupBarrier();
    if (lane == 0u) {
        parts[2u * group.x] = sums[0];
        parts[2u * group.x + 1u] = f32(atomicLoad(&bad));
    }
}
