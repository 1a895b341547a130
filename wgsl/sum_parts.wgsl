// sum_parts: out += the sum of its parts, in order, the last stage of long sums; reference: backend/reference/norm.py; test: tests/ops/test_norm.py
// One invocation per element of out.

struct Shape { count: u32, parts: u32 }

@group(0) @binding(0) var<storage, read> values: array<f32>;  // (parts, count)
@group(0) @binding(1) var<storage, read_write> out: array<f32>;  // (count)
@group(0) @binding(2) var<uniform> shape: Shape;

const WG = 64u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.count) { return; }
    var sum = 0.0;
    for (var part = 0u; part < shape.parts; part++) {
        sum += values[part * shape.count + i];
    }
    out[i] += sum;
}
