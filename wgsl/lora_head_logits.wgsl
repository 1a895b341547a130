// lora_head_logits: logits = x emb^T + u b^T for a chunk of rows, emb plain or packed; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// One product: the depths 0..D-1 are those of x and emb, D..D+R-1 those of u and b.
//#include within
//#include matmul_tile
//#include half_to_float
//#include packed

struct Shape { first: u32, rows: u32, d: u32, r: u32, v: u32, block: u32 } // rows first..first+rows-1 of x

@group(0) @binding(0) var<storage, read> x: array<f32>;               // (N, D)
@group(0) @binding(1) var<storage, read> u: array<f32>;               // (N, R)
@group(0) @binding(2) var<storage, read> base: array<u32>;            // emb (V, D)
@group(0) @binding(3) var<storage, read> scales: array<f32>;          // (Q), read with BITS 8 only
@group(0) @binding(4) var<storage, read> b: array<f32>;               // (V, R)
@group(0) @binding(5) var<storage, read_write> logits: array<f32>;    // (rows, V) =
@group(0) @binding(6) var<uniform> shape: Shape;

struct Tile { a_by_depth: bool, b_by_depth: bool, row: u32, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return shape.first + within(tile.row + rows, shape.rows); }
fn fetch_a(tile: Tile, row: vec4<u32>, c: u32) -> vec4<f32> {
    if (c < shape.d) {
        let at = row * shape.d + c;
        return vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]);
    }
    let at = row * shape.r + (c - shape.d);
    return vec4<f32>(u[at.x], u[at.y], u[at.z], u[at.w]);
}
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, shape.v); }
fn fetch_b(tile: Tile, row: vec4<u32>, c: u32) -> vec4<f32> {
    if (c < shape.d) { return four_base(row * shape.d + c); }
    let at = row * shape.r + (c - shape.d);
    return vec4<f32>(b[at.x], b[at.y], b[at.z], b[at.w]);
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let tile = Tile(true, true, id.y * 4u * W, id.x * 4u * W);
    var sums = tile_product(tile, thread, 0u, shape.d + shape.r);
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let row = tile.row + nth(thread.y, i);
            let column = tile.column + nth(thread.x, j);
            if (holds_row(thread, i) && row < shape.rows && column < shape.v) { logits[row * shape.v + column] = sums[i][j]; }
        }
    }
}
