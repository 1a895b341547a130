// lora_down: u = alpha * drop(x) a^T, and db of lora_bwd, whose x is dw; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
//#include within
//#include matmul_tile
//#include noise
//#include drop

struct Shape { n: u32, d: u32, r: u32 }

@group(0) @binding(0) var<storage, read> noise: array<u32>;        // (64)
@group(0) @binding(1) var<storage, read> x: array<f32>;            // (N, D)
@group(0) @binding(2) var<storage, read> a: array<f32>;            // (R, D)
@group(0) @binding(3) var<storage, read> alpha: array<f32>;        // (1)
@group(0) @binding(4) var<storage, read_write> u: array<f32>;      // (N, R) =, with ADD +=
@group(0) @binding(5) var<uniform> shape: Shape;

override ADD: bool = false;

struct Tile { a_by_depth: bool, b_by_depth: bool, row: u32, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return within(tile.row + rows, shape.n) * shape.d; }
fn fetch_a(tile: Tile, at: vec4<u32>, c: u32) -> vec4<f32> {
    let i = at + c;
    let keep = vec4<f32>(drop_factor(i.x), drop_factor(i.y), drop_factor(i.z), drop_factor(i.w));
    return keep * vec4<f32>(x[i.x], x[i.y], x[i.z], x[i.w]);
}
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, shape.r) * shape.d; }
fn fetch_b(tile: Tile, at: vec4<u32>, c: u32) -> vec4<f32> { return vec4<f32>(a[at.x + c], a[at.y + c], a[at.z + c], a[at.w + c]); }

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_id) thread: vec3<u32>) {
    let side = 4u * W;
    let across = (shape.r + side - 1u) / side;
    let number = id.x + id.y * groups.x;
    let tile = Tile(true, true, number / across * side, number % across * side);
    if (tile.row >= shape.n) { return; }
    var sums = tile_product(tile, thread, 0u, shape.d);
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let row = tile.row + nth(thread.y, i);
            let column = tile.column + nth(thread.x, j);
            if (!holds_row(thread, i) || row >= shape.n || column >= shape.r) { continue; }
            let at = row * shape.r + column;
            let value = alpha[0] * sums[i][j];
            if (ADD) { u[at] += value; } else { u[at] = value; }
        }
    }
}
