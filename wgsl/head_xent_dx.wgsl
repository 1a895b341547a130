// head_xent_bwd: dx = the sum of its parts, for a chunk of rows; reference: backend/reference/head.py; test: tests/ops/test_head.py

struct Shape { first: u32, count: u32, parts: u32 } // elements of dx: where the chunk begins, and how many it has

@group(0) @binding(0) var<storage, read> partial: array<f32>;    // (parts, rows, D)
@group(0) @binding(1) var<storage, read_write> dx: array<f32>;   // (N, D) =
@group(0) @binding(2) var<uniform> shape: Shape;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let at = (group.x + group.y * groups.x) * 256u + thread;
    if (at >= shape.count) { return; }
    var sum = 0.0;
    for (var part = 0u; part < shape.parts; part++) { sum += partial[part * shape.count + at]; }
    dx[shape.first + at] = sum;
}
