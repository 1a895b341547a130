// embed_fwd: x[n] = emb[tokens[n]]; reference: backend/reference/embed.py; test: tests/ops/test_embed.py
// One invocation per element.

struct Shape { n: u32, d: u32, v: u32 }

@group(0) @binding(0) var<storage, read> tokens: array<i32>;  // (N)
@group(0) @binding(1) var<storage, read> emb: array<f32>;  // (V, D)
@group(0) @binding(2) var<storage, read_write> x: array<f32>;  // (N, D)
@group(0) @binding(3) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.n * shape.d) { return; }
    let token = u32(clamp(tokens[i / shape.d], 0, i32(shape.v) - 1));
    x[i] = emb[token * shape.d + i % shape.d];
}
