// conv_bwd: dw[c,j] += sum_t da[t,c] * n[t-j,c]; reference: backend/reference/conv.py; test: tests/ops/test_conv.py
// A workgroup sums 16 columns of one tap over the rows of its part. One part adds to dw; several leave sums for sum_parts.

struct Shape { n: u32, d: u32, k: u32, parts: u32, rows: u32 }  // rows of one part

@group(0) @binding(0) var<storage, read> n: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> pos: array<i32>;  // (N)
@group(0) @binding(2) var<storage, read> da: array<f32>;  // (N, D)
@group(0) @binding(3) var<storage, read_write> dw: array<f32>;  // (D, K), or (parts, D, K)
@group(0) @binding(4) var<uniform> shape: Shape;

const COLUMNS = 16u;
const LANES = 16u;
var<workgroup> partial: array<f32, 256>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let c = group.x * COLUMNS + local.x;
    let j = group.z;
    let end = min(shape.n, (group.y + 1u) * shape.rows);
    var sum = 0.0;
    if (c < shape.d) {
        for (var t = group.y * shape.rows + local.y; t < end; t += LANES) {
            if (t >= j && pos[t] >= i32(j)) { sum += da[t * shape.d + c] * n[(t - j) * shape.d + c]; }
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
        let place = (group.y * shape.d + c) * shape.k + j;
        if (shape.parts == 1u) { dw[place] += partial[local.x]; } else { dw[place] = partial[local.x]; }
    }
}
