// dropout: x *= keep / (1 - p), drawn from seed, step, salt and place; reference: backend/reference/noise.py; test: tests/ops/test_noise.py
// One invocation per element.

//#include noise

struct Shape { count: u32 }

@group(0) @binding(0) var<storage, read> noise: array<u32>;  // (64)
@group(0) @binding(1) var<storage, read_write> x: array<f32>;  // (N, D)
@group(0) @binding(2) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.count) { return; }
    let threshold = noise[3];
    let scale = 1.0 / (1.0 - f32(threshold) / 4294967296.0);
    let kept = mix_bits(noise_key(noise[0], noise[1], noise[2]) ^ i) >= threshold;
    x[i] = select(0.0, x[i] * scale, kept);
}
