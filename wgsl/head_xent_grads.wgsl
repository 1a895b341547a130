// head_xent_bwd: demb += d^T x, dx = d emb in parts, and the loss, for a chunk of rows; reference: backend/reference/head.py; test: tests/ops/test_head.py
// Along x of the grid: tiles of dx for each part of the vocabulary (a long sum cut up, added in order by head_xent_dx),
// then tiles of demb, then, with the last chunk, one workgroup that adds up the loss.
//#include within
//#include matmul_tile
//#include loss_sum

struct Shape {
    first: u32, rows: u32, d: u32, v: u32, // rows first..first+rows-1 of the batch
    parts: u32, part: u32, // parts of the vocabulary for dx, and the length of one
    dx_first: u32, // row of dx where the chunk begins
    loss_rows: u32, // 0: the loss waits for a later chunk
}

@group(0) @binding(0) var<storage, read> d: array<f32>;             // (rows, V) d loss / d logits
@group(0) @binding(1) var<storage, read> x: array<f32>;             // (N, D)
@group(0) @binding(2) var<storage, read> emb: array<f32>;           // (V, D)
@group(0) @binding(3) var<storage, read> row_loss: array<u32>;      // (N), f32 as bits, or NOT_SCORED
@group(0) @binding(4) var<storage, read_write> loss: array<u32>;    // (1) +=, f32 as bits
@group(0) @binding(5) var<storage, read_write> dx: array<f32>;      // (parts, rows, D) =, or rows of (N, D) for one part
@group(0) @binding(6) var<storage, read_write> demb: array<f32>;    // (V, D) +=
@group(0) @binding(7) var<uniform> shape: Shape;

// 0 instead of values of rows that are not scored: those may be NaN, and 0 * NaN is not 0.
fn if_scored(local: u32, values: vec4<f32>) -> vec4<f32> {
    return select(values, vec4<f32>(), row_loss[shape.first + local] == NOT_SCORED);
}

struct Tile { a_by_depth: bool, b_by_depth: bool, for_x: bool, row: u32, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> {
    if (tile.for_x) { return within(tile.row + rows, shape.rows) * shape.v; }
    return within(tile.row + rows, shape.v);
}
fn fetch_a(tile: Tile, place: vec4<u32>, depth: u32) -> vec4<f32> {
    let at = place + depth * select(shape.v, 1u, tile.for_x);
    return vec4<f32>(d[at.x], d[at.y], d[at.z], d[at.w]);
}
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, shape.d); }
fn fetch_b(tile: Tile, column: vec4<u32>, depth: u32) -> vec4<f32> {
    if (tile.for_x) {
        let at = depth * shape.d + column;
        return vec4<f32>(emb[at.x], emb[at.y], emb[at.z], emb[at.w]);
    }
    let at = (shape.first + depth) * shape.d + column;
    return if_scored(depth, vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]));
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_id) thread: vec3<u32>) {
    let side = 4u * W;
    let across = (shape.d + side - 1u) / side;
    let x_tiles = (shape.rows + side - 1u) / side * across;
    let v_tiles = (shape.v + side - 1u) / side * across;
    var number = id.x + id.y * groups.x;
    if (number < shape.parts * x_tiles) {
        let part = number / x_tiles;
        number %= x_tiles;
        let tile = Tile(true, false, true, number / across * side, number % across * side);
        let last = min((part + 1u) * shape.part, shape.v);
        var sums = tile_product(tile, thread, min(part * shape.part, last), last);
        for (var i = 0u; i < 4u; i++) {
            let row = tile.row + nth(thread.y, i);
            if (!holds_row(thread, i) || row >= shape.rows) { continue; }
            let values = if_scored(row, sums[i]);
            for (var j = 0u; j < 4u; j++) {
                let column = tile.column + nth(thread.x, j);
                if (column < shape.d) { dx[(shape.dx_first + part * shape.rows + row) * shape.d + column] = values[j]; }
            }
        }
        return;
    }
    number -= shape.parts * x_tiles;
    if (number < v_tiles) {
        let tile = Tile(false, false, false, number / across * side, number % across * side);
        var sums = tile_product(tile, thread, 0u, shape.rows);
        for (var i = 0u; i < 4u; i++) {
            for (var j = 0u; j < 4u; j++) {
                let row = tile.row + nth(thread.y, i);
                let column = tile.column + nth(thread.x, j);
                if (holds_row(thread, i) && row < shape.v && column < shape.d) { demb[row * shape.d + column] += sums[i][j]; }
            }
        }
        return;
    }
    if (number == v_tiles && shape.loss_rows > 0u) { add_loss((thread.z * W + thread.y) * W + thread.x, shape.loss_rows); }
}
