// lora_bwd: db += alpha * dw a^T; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// A workgroup makes a tile of 16 rows of V by 16 of R, walking along D in steps of 16.

struct Shape { v: u32, d: u32, r: u32 }

@group(0) @binding(0) var<storage, read> dw: array<f32>;  // (V, D)
@group(0) @binding(1) var<storage, read> a: array<f32>;  // (R, D)
@group(0) @binding(2) var<storage, read> alpha: array<f32>;  // (1)
@group(0) @binding(3) var<storage, read_write> db: array<f32>;  // (V, R)
@group(0) @binding(4) var<uniform> shape: Shape;

const TILE = 16u;
const STRIDE = 17u;  // no two lanes of a column in one bank
var<workgroup> dw_tile: array<f32, 272>;
var<workgroup> a_tile: array<f32, 272>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let v = group.x * TILE + local.y;
    let r = group.y * TILE + local.x;
    let own = local.y * STRIDE + local.x;
    var sum = 0.0;
    for (var step = 0u; step < shape.d; step += TILE) {
        let c = step + local.x;
        let a_row = group.y * TILE + local.y;
        dw_tile[own] = 0.0;
        a_tile[own] = 0.0;
        if (v < shape.v && c < shape.d) { dw_tile[own] = dw[v * shape.d + c]; }
        if (a_row < shape.r && c < shape.d) { a_tile[own] = a[a_row * shape.d + c]; }
        workgroupBarrier();
        for (var i = 0u; i < TILE; i++) {
            sum += dw_tile[local.y * STRIDE + i] * a_tile[local.x * STRIDE + i];
        }
        workgroupBarrier();
    }
    if (v < shape.v && r < shape.r) { db[v * shape.r + r] += alpha[0] * sum; }
}
