// lora_bwd: da += alpha * b^T dw; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// A workgroup makes a tile of 16 rows of R by 16 columns over its part of V. One part adds to da; several leave sums for sum_parts.

struct Shape { v: u32, d: u32, r: u32, parts: u32, rows: u32 }  // rows of one part

@group(0) @binding(0) var<storage, read> dw: array<f32>;  // (V, D)
@group(0) @binding(1) var<storage, read> b: array<f32>;  // (V, R)
@group(0) @binding(2) var<storage, read> alpha: array<f32>;  // (1)
@group(0) @binding(3) var<storage, read_write> da: array<f32>;  // (R, D), or (parts, R, D)
@group(0) @binding(4) var<uniform> shape: Shape;

const TILE = 16u;
var<workgroup> dw_tile: array<f32, 256>;
var<workgroup> b_tile: array<f32, 256>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let c = group.x * TILE + local.x;
    let r = group.z * TILE + local.y;
    let own = local.y * TILE + local.x;
    let end = min(shape.v, (group.y + 1u) * shape.rows);
    var sum = 0.0;
    for (var step = group.y * shape.rows; step < end; step += TILE) {
        let v = step + local.y;
        let b_column = group.z * TILE + local.x;
        dw_tile[own] = 0.0;
        b_tile[own] = 0.0;
        if (v < end && c < shape.d) { dw_tile[own] = dw[v * shape.d + c]; }
        if (v < end && b_column < shape.r) { b_tile[own] = b[v * shape.r + b_column]; }
        workgroupBarrier();
        for (var i = 0u; i < TILE; i++) {
            sum += b_tile[i * TILE + local.y] * dw_tile[i * TILE + local.x];
        }
        workgroupBarrier();
    }
    if (c < shape.d && r < shape.r) {
        let place = (group.y * shape.r + r) * shape.d + c;
        if (shape.parts == 1u) { da[place] += alpha[0] * sum; } else { da[place] = alpha[0] * sum; }
    }
}
