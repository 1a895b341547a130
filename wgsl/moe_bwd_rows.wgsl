// moe_bwd: dx = w1^T dpre for every row of hidden; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// Inverts `pre = w1 x + b1`.
//#include moe_params
//#include moe_group
//#include within
//#include matmul_tile

@group(0) @binding(0) var<storage, read> dpre: array<f32>;       // (N*(k+1), H)
@group(0) @binding(1) var<storage, read> weights: array<f32>;    // (M)
@group(0) @binding(2) var<storage, read> order: array<i32>;      // (N*k)
@group(0) @binding(3) var<storage, read> starts: array<i32>;     // (E+1)
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;   // after the sums of moe_bwd_hidden: (N*(k+1), D) =
@group(0) @binding(5) var<uniform> moe: Moe;

struct Tile { a_by_depth: bool, b_by_depth: bool, group: Group, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return rows_of(tile.group, rows) * moe.h; }
fn fetch_a(tile: Tile, at: vec4<u32>, h: u32) -> vec4<f32> {
    return vec4<f32>(dpre[at.x + h], dpre[at.y + h], dpre[at.z + h], dpre[at.w + h]);
}

fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return expert_at(tile.group.expert) + within(tile.column + columns, moe.d); }
fn fetch_b(tile: Tile, start: vec4<u32>, h: u32) -> vec4<f32> {
    let at = start + h * moe.d;
    return vec4<f32>(weights[at.x], weights[at.y], weights[at.z], weights[at.w]);
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let group = group_of_tile(id.y, 4u * W);
    if (group.rows == 0u) { return; }
    let column = id.x * 4u * W;
    var sums = tile_product(Tile(true, false, group, column), thread, 0u, moe.h);
    let rows = moe.n * moe.k * moe.column_sums;
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let c = column + nth(thread.x, j);
            if (holds_row(thread, i) && nth(thread.y, i) < group.rows && c < moe.d) {
                dx[rows + (group.row + nth(thread.y, i)) * moe.d + c] = sums[i][j];
            }
        }
    }
}
