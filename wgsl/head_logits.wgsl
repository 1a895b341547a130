// head_logits: logits = x emb^T, for all rows or for a chunk of them; reference: backend/reference/head.py; test: tests/ops/test_head.py
//#include within
//#include matmul_tile

struct Shape { first: u32, rows: u32, d: u32, v: u32 } // rows first..first+rows-1 of x

@group(0) @binding(0) var<storage, read> x: array<f32>;              // (N, D)
@group(0) @binding(1) var<storage, read> emb: array<f32>;            // (V, D)
@group(0) @binding(2) var<storage, read_write> logits: array<f32>;   // (rows, V) =
@group(0) @binding(3) var<uniform> shape: Shape;

struct Tile { a_by_depth: bool, b_by_depth: bool, row: u32, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return (shape.first + within(tile.row + rows, shape.rows)) * shape.d; }
fn fetch_a(tile: Tile, at: vec4<u32>, c: u32) -> vec4<f32> { return vec4<f32>(x[at.x + c], x[at.y + c], x[at.z + c], x[at.w + c]); }
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, shape.v) * shape.d; }
fn fetch_b(tile: Tile, at: vec4<u32>, c: u32) -> vec4<f32> {
    return vec4<f32>(emb[at.x + c], emb[at.y + c], emb[at.z + c], emb[at.w + c]);
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let tile = Tile(true, true, id.y * 4u * W, id.x * 4u * W);
    var sums = tile_product(tile, thread, 0u, shape.d);
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let row = tile.row + nth(thread.y, i);
            let column = tile.column + nth(thread.x, j);
            if (holds_row(thread, i) && row < shape.rows && column < shape.v) { logits[row * shape.v + column] = sums[i][j]; }
        }
    }
}
