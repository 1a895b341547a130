// lora_up: x += drop(alpha * u a); reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// One invocation per element; the rank is small.
//#include noise
//#include drop

struct Shape { n: u32, d: u32, r: u32 }

@group(0) @binding(0) var<storage, read> noise: array<u32>;        // (64)
@group(0) @binding(1) var<storage, read> u: array<f32>;            // (N, R)
@group(0) @binding(2) var<storage, read> a: array<f32>;            // (R, D)
@group(0) @binding(3) var<storage, read> alpha: array<f32>;        // (1)
@group(0) @binding(4) var<storage, read_write> x: array<f32>;      // (N, D) +=
@group(0) @binding(5) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.n * shape.d) { return; }
    let row = (i / shape.d) * shape.r;
    let c = i % shape.d;
    var sum = 0.0;
    for (var r = 0u; r < shape.r; r++) { sum += u[row + r] * a[r * shape.d + c]; }
    x[i] += alpha[0] * sum * drop_factor(i);
}
