// conv_norm_fwd: a = x + the convolution of n, m = g * a * rstd; reference: backend/reference/conv.py; test: tests/ops/test_conv.py
// LANES threads per row; each has columns of its own.
//#include row_reduce

struct Shape { n: u32, d: u32, k: u32 }

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> n: array<f32>;  // (N, D)
@group(0) @binding(2) var<storage, read> w: array<f32>;  // (D, K)
@group(0) @binding(3) var<storage, read> pos: array<i32>;  // (N)
@group(0) @binding(4) var<storage, read> g: array<f32>;  // (D)
@group(0) @binding(5) var<storage, read_write> a: array<f32>;  // (N, D) =
@group(0) @binding(6) var<storage, read_write> m: array<f32>;  // (N, D) =
@group(0) @binding(7) var<storage, read_write> rstd: array<f32>;  // (N) =
@group(0) @binding(8) var<uniform> shape: Shape;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let row = (group.x + group.y * groups.x) * (WG / LANES) + thread / LANES;
    let lane = thread % LANES;
    var squares = 0.0;
    if (row < shape.n) {
        let taps = min(shape.k, min(u32(max(pos[row], 0)), row) + 1u);
        for (var c = lane; c < shape.d; c += LANES) {
            let i = row * shape.d + c;
            var sum = x[i];
            for (var j = 0u; j < taps; j++) { sum += w[c * shape.k + j] * n[i - j * shape.d]; }
            a[i] = sum;
            squares += sum * sum;
        }
    }
    let scale = 1.0 / sqrt(row_sum(thread, squares) / f32(shape.d) + 1e-5);
    if (row >= shape.n) { return; }
    for (var c = lane; c < shape.d; c += LANES) { m[row * shape.d + c] = g[c] * a[row * shape.d + c] * scale; }
    if (lane == 0u) { rstd[row] = scale; }
}
