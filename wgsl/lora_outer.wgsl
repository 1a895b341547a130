// lora_outer: da += alpha * u^T drop(x), and da of lora_bwd, whose u is b and x is dw; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// A long sum over N in parts: y of the grid. One part adds to da; several leave sums for sum_parts.
//#include within
//#include matmul_tile
//#include noise
//#include drop

struct Shape { n: u32, d: u32, r: u32, parts: u32, rows: u32 } // rows of one part

@group(0) @binding(0) var<storage, read> noise: array<u32>;        // (64)
@group(0) @binding(1) var<storage, read> u: array<f32>;            // (N, R)
@group(0) @binding(2) var<storage, read> x: array<f32>;            // (N, D)
@group(0) @binding(3) var<storage, read> alpha: array<f32>;        // (1)
@group(0) @binding(4) var<storage, read_write> da: array<f32>;     // (R, D) +=, or (parts, R, D) =
@group(0) @binding(5) var<uniform> shape: Shape;

struct Tile { a_by_depth: bool, b_by_depth: bool, row: u32, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return within(tile.row + rows, shape.r); }
fn fetch_a(tile: Tile, at: vec4<u32>, n: u32) -> vec4<f32> {
    let i = n * shape.r + at;
    return vec4<f32>(u[i.x], u[i.y], u[i.z], u[i.w]);
}
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, shape.d); }
fn fetch_b(tile: Tile, at: vec4<u32>, n: u32) -> vec4<f32> {
    let i = n * shape.d + at;
    let keep = vec4<f32>(drop_factor(i.x), drop_factor(i.y), drop_factor(i.z), drop_factor(i.w));
    return keep * vec4<f32>(x[i.x], x[i.y], x[i.z], x[i.w]);
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let side = 4u * W;
    let across = (shape.d + side - 1u) / side;
    let tile = Tile(false, false, id.x / across * side, id.x % across * side);
    let first = min(id.y * shape.rows, shape.n);
    var sums = tile_product(tile, thread, first, min(first + shape.rows, shape.n));
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let row = tile.row + nth(thread.y, i);
            let column = tile.column + nth(thread.x, j);
            if (!holds_row(thread, i) || row >= shape.r || column >= shape.d) { continue; }
            let at = (id.y * shape.r + row) * shape.d + column;
            let value = alpha[0] * sums[i][j];
            if (shape.parts == 1u) { da[at] += value; } else { da[at] = value; }
        }
    }
}
