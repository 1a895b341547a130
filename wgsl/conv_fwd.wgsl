// conv_fwd: a[t,c] = x[t,c] + sum_{j<K, pos[t]>=j} w[c,j] * n[t-j,c]; reference: backend/reference/conv.py; test: tests/ops/test_conv.py
// One invocation per element.

struct Shape { n: u32, d: u32, k: u32 }

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> n: array<f32>;  // (N, D)
@group(0) @binding(2) var<storage, read> w: array<f32>;  // (D, K)
@group(0) @binding(3) var<storage, read> pos: array<i32>;  // (N)
@group(0) @binding(4) var<storage, read_write> a: array<f32>;  // (N, D)
@group(0) @binding(5) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.n * shape.d) { return; }
    let t = i / shape.d;
    let c = i % shape.d;
    let taps = min(shape.k, min(u32(max(pos[t], 0)), t) + 1u);
    var sum = x[i];
    for (var j = 0u; j < taps; j++) {
        sum += w[c * shape.k + j] * n[i - j * shape.d];
    }
    a[i] = sum;
}
