// rmsnorm_bwd: dx += rstd*(g*dy) - x * rstd^3 * mean(g*dy*x); reference: backend/reference/norm.py; test: tests/ops/test_norm.py
// One workgroup per row. The gain's gradient is rmsnorm_bwd_gain.

struct Shape { n: u32, d: u32 }

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> g: array<f32>;  // (D)
@group(0) @binding(2) var<storage, read> rstd: array<f32>;  // (N)
@group(0) @binding(3) var<storage, read> dy: array<f32>;  // (N, D)
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;  // (N, D)
@group(0) @binding(5) var<uniform> shape: Shape;

const WG = 64u;
var<workgroup> partial: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if (row >= shape.n) { return; }
    let start = row * shape.d;
    var sum = 0.0;
    for (var c = lane; c < shape.d; c += WG) {
        sum += g[c] * dy[start + c] * x[start + c];
    }
    partial[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { partial[lane] += partial[lane + half]; }
    }
    workgroupBarrier();
    let scale = rstd[row];
    let pull = partial[0] / f32(shape.d) * scale * scale * scale;
    for (var c = lane; c < shape.d; c += WG) {
        dx[start + c] += scale * (g[c] * dy[start + c]) - x[start + c] * pull;
    }
}
