// lora_dropout: columns of a dropped in place; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// One invocation per element.
//#include noise
//#include drop

struct Shape { count: u32, d: u32 }

@group(0) @binding(0) var<storage, read> noise: array<u32>;        // (64)
@group(0) @binding(1) var<storage, read_write> a: array<f32>;      // (R, D)
@group(0) @binding(2) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.count) { return; }
    a[i] *= drop_factor(i % shape.d);
}
