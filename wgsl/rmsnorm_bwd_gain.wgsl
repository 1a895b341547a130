// rmsnorm_bwd: dg += sum_n dy*x*rstd; reference: backend/reference/norm.py; test: tests/ops/test_norm.py
// A workgroup sums 16 columns over the rows of its part. One part adds to dg; several leave sums for sum_parts.

struct Shape { n: u32, d: u32, parts: u32, rows: u32 }  // rows of one part

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> rstd: array<f32>;  // (N)
@group(0) @binding(2) var<storage, read> dy: array<f32>;  // (N, D)
@group(0) @binding(3) var<storage, read_write> dg: array<f32>;  // (D), or (parts, D)
@group(0) @binding(4) var<uniform> shape: Shape;

const COLUMNS = 16u;
const LANES = 16u;
var<workgroup> partial: array<f32, 256>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let c = group.x * COLUMNS + local.x;
    let end = min(shape.n, (group.y + 1u) * shape.rows);
    var sum = 0.0;
    if (c < shape.d) {
        for (var t = group.y * shape.rows + local.y; t < end; t += LANES) {
            sum += dy[t * shape.d + c] * x[t * shape.d + c] * rstd[t];
        }
    }
    partial[local.y * COLUMNS + local.x] = sum;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (local.y < half) {
            partial[local.y * COLUMNS + local.x] += partial[(local.y + half) * COLUMNS + local.x];
        }
    }
    if (local.y == 0u && c < shape.d) {
        let place = group.y * shape.d + c;
        if (shape.parts == 1u) { dg[place] += partial[local.x]; } else { dg[place] = partial[local.x]; }
    }
}
