// packed_embed_fwd: x[n] = the row tokens[n] of a packed matrix; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// One invocation per element.
//#include half_to_float
//#include packed

struct Shape { n: u32, d: u32, v: u32, block: u32 }

@group(0) @binding(0) var<storage, read> tokens: array<i32>;       // (N)
@group(0) @binding(1) var<storage, read> base: array<u32>;         // (C), the matrix (V, D)
@group(0) @binding(2) var<storage, read> scales: array<f32>;       // (Q)
@group(0) @binding(3) var<storage, read_write> x: array<f32>;      // (N, D) =
@group(0) @binding(4) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.n * shape.d) { return; }
    let token = u32(clamp(tokens[i / shape.d], 0, i32(shape.v) - 1));
    x[i] = base_at(token * shape.d + i % shape.d);
}
