// grad_stats: stats from the sums and flags of the first stage; reference: backend/reference/optim.py; test: tests/ops/test_optim.py
// One workgroup.

struct Shape { parts: u32, add: u32 }

@group(0) @binding(0) var<storage, read> parts: array<f32>;  // (parts, 2)
@group(0) @binding(1) var<storage, read_write> stats: array<f32>;  // (2)
@group(0) @binding(2) var<uniform> shape: Shape;

const WG = 256u;
var<workgroup> sums: array<f32, WG>;
var<workgroup> flags: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = 0.0;
    var flag = 0.0;
    for (var i = lane; i < shape.parts; i += WG) {
        sum += parts[2u * i];
        flag += parts[2u * i + 1u];
    }
    sums[lane] = sum;
    flags[lane] = flag;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
            flags[lane] += flags[lane + half];
        }
    }
    if (lane == 0u) {
        var before = vec2(0.0, 0.0);
        if (shape.add == 1u) { before = vec2(stats[0], stats[1]); }
        stats[0] = before.x + sums[0];
        stats[1] = select(0.0, 1.0, before.y + flags[0] != 0.0);
    }
}
