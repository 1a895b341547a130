// conv_bwd: dn[t,c] = sum_{j: pos[t+j]>=j} da[t+j,c] * w[c,j]; reference: backend/reference/conv.py; test: tests/ops/test_conv.py
// One invocation per element. The taps' gradient is conv_bwd_taps.

struct Shape { n: u32, d: u32, k: u32 }

@group(0) @binding(0) var<storage, read> w: array<f32>;  // (D, K)
@group(0) @binding(1) var<storage, read> pos: array<i32>;  // (N)
@group(0) @binding(2) var<storage, read> da: array<f32>;  // (N, D)
@group(0) @binding(3) var<storage, read_write> dn: array<f32>;  // (N, D)
@group(0) @binding(4) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.n * shape.d) { return; }
    let t = i / shape.d;
    let c = i % shape.d;
    let taps = min(shape.k, shape.n - t);
    var sum = 0.0;
    for (var j = 0u; j < taps; j++) {
        if (pos[t + j] >= i32(j)) { sum += da[i + j * shape.d] * w[c * shape.k + j]; }
    }
    dn[i] = sum;
}
