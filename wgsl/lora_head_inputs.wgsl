// lora_head_xent_bwd: (dx | du) = d (emb | b) for a chunk of rows, in parts of the vocabulary; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// Columns 0..D-1 are dx, D..D+R-1 du. lora_head_split adds the parts in order.
//#include within
//#include matmul_tile
//#include half_to_float
//#include packed

struct Shape { rows: u32, d: u32, r: u32, v: u32, part: u32, block: u32 } // part: rows of emb in one part

@group(0) @binding(0) var<storage, read> grad: array<f32>;            // (rows, V) d loss / d logits
@group(0) @binding(1) var<storage, read> base: array<u32>;            // emb (V, D)
@group(0) @binding(2) var<storage, read> scales: array<f32>;          // (Q), read with BITS 8 only
@group(0) @binding(3) var<storage, read> b: array<f32>;               // (V, R)
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;   // (parts, rows, D+R) =
@group(0) @binding(5) var<uniform> shape: Shape;

struct Tile { a_by_depth: bool, b_by_depth: bool, row: u32, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return within(tile.row + rows, shape.rows) * shape.v; }
fn fetch_a(tile: Tile, at: vec4<u32>, v: u32) -> vec4<f32> {
    return vec4<f32>(grad[at.x + v], grad[at.y + v], grad[at.z + v], grad[at.w + v]);
}
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, shape.d + shape.r); }
fn value_b(v: u32, column: u32) -> f32 {
    if (column < shape.d) { return base_at(v * shape.d + column); }
    return b[v * shape.r + (column - shape.d)];
}
fn fetch_b(tile: Tile, column: vec4<u32>, v: u32) -> vec4<f32> {
    return vec4<f32>(value_b(v, column.x), value_b(v, column.y), value_b(v, column.z), value_b(v, column.w));
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let width = shape.d + shape.r;
    let tile = Tile(true, false, id.y * 4u * W, id.x * 4u * W);
    let first = min(id.z * shape.part, shape.v);
    var sums = tile_product(tile, thread, first, min(first + shape.part, shape.v));
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let row = tile.row + nth(thread.y, i);
            let column = tile.column + nth(thread.x, j);
            if (holds_row(thread, i) && row < shape.rows && column < width) {
                partial[(id.z * shape.rows + row) * width + column] = sums[i][j];
            }
        }
    }
}
