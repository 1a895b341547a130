// conv_step: a = x + w[:,0]*n + sum_j w[:,j]*state[K-1-j], then n becomes the newest row; reference: backend/reference/conv.py; test: tests/ops/test_conv.py
// One invocation per sequence and column: it alone reads and shifts its column of the state.

struct Shape { b: u32, d: u32, k: u32, q: u32 }

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (B, D)
@group(0) @binding(1) var<storage, read> n: array<f32>;  // (B, D)
@group(0) @binding(2) var<storage, read> w: array<f32>;  // (D, K)
@group(0) @binding(3) var<storage, read_write> a: array<f32>;  // (B, D)
@group(0) @binding(4) var<storage, read_write> state: array<f32>;  // (B, Q, D), oldest row first
@group(0) @binding(5) var<uniform> shape: Shape;

const WG = 64u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.b * shape.d) { return; }
    let c = i % shape.d;
    let start = (i / shape.d) * shape.q * shape.d + c;
    let kept = shape.k - 1u;
    var sum = x[i] + w[c * shape.k] * n[i];
    for (var j = 1u; j <= kept; j++) {
        sum += w[c * shape.k + j] * state[start + (kept - j) * shape.d];
    }
    a[i] = sum;
    for (var row = 1u; row < kept; row++) {
        state[start + (row - 1u) * shape.d] = state[start + row * shape.d];
    }
    if (kept > 0u) { state[start + (kept - 1u) * shape.d] = n[i]; }
}
