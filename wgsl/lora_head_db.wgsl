// lora_head_xent_bwd: db += d^T u for a chunk of rows; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
//#include within
//#include matmul_tile

struct Shape { first: u32, rows: u32, r: u32, v: u32 } // rows first..first+rows-1 of u

@group(0) @binding(0) var<storage, read> grad: array<f32>;         // (rows, V) d loss / d logits
@group(0) @binding(1) var<storage, read> u: array<f32>;            // (N, R)
@group(0) @binding(2) var<storage, read> row_loss: array<u32>;     // (N), f32 as bits, or NOT_SCORED
@group(0) @binding(3) var<storage, read_write> db: array<f32>;     // (V, R) +=
@group(0) @binding(4) var<uniform> shape: Shape;

const NOT_SCORED = 0x80000000u;

struct Tile { a_by_depth: bool, b_by_depth: bool, row: u32, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return within(tile.row + rows, shape.v); }
fn fetch_a(tile: Tile, column: vec4<u32>, n: u32) -> vec4<f32> {
    let at = n * shape.v + column;
    return vec4<f32>(grad[at.x], grad[at.y], grad[at.z], grad[at.w]);
}
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, shape.r); }
fn fetch_b(tile: Tile, column: vec4<u32>, n: u32) -> vec4<f32> {
    let row = shape.first + n;
    let at = row * shape.r + column;
    // 0 instead of values of rows that are not scored: those may be NaN, and 0 * NaN is not 0
    return select(vec4<f32>(u[at.x], u[at.y], u[at.z], u[at.w]), vec4<f32>(), row_loss[row] == NOT_SCORED);
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_id) thread: vec3<u32>) {
    let side = 4u * W;
    let across = (shape.r + side - 1u) / side;
    let number = id.x + id.y * groups.x;
    let tile = Tile(false, false, number / across * side, number % across * side);
    if (tile.row >= shape.v) { return; }
    var sums = tile_product(tile, thread, 0u, shape.rows);
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let row = tile.row + nth(thread.y, i);
            let column = tile.column + nth(thread.x, j);
            if (holds_row(thread, i) && row < shape.v && column < shape.r) { db[row * shape.r + column] += sums[i][j]; }
        }
    }
}
