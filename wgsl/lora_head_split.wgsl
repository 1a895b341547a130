// lora_head_xent_bwd: dx and du = the sums of their parts, for a chunk of rows; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// One invocation per element. A row that is not scored gets 0: its logits may have been anything.

struct Shape { first: u32, rows: u32, d: u32, r: u32, parts: u32 } // rows first..first+rows-1 of the batch

@group(0) @binding(0) var<storage, read> partial: array<f32>;      // (parts, rows, D+R)
@group(0) @binding(1) var<storage, read> row_loss: array<u32>;     // (N), f32 as bits, or NOT_SCORED
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;     // (N, D) =
@group(0) @binding(3) var<storage, read_write> du: array<f32>;     // (N, R) =
@group(0) @binding(4) var<uniform> shape: Shape;

const WG = 256u;
const NOT_SCORED = 0x80000000u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    let width = shape.d + shape.r;
    let count = shape.rows * width;
    if (i >= count) { return; }
    let row = shape.first + i / width;
    let column = i % width;
    var sum = 0.0;
    if (row_loss[row] != NOT_SCORED) {
        for (var part = 0u; part < shape.parts; part++) { sum += partial[part * count + i]; }
    }
    if (column < shape.d) { dx[row * shape.d + column] = sum; } else { du[row * shape.r + (column - shape.d)] = sum; }
}
