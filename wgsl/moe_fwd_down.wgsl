// moe_fwd: y = w2 hidden + b2 for every row of hidden; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
//#include moe_params
//#include moe_group
//#include within
//#include matmul_tile

@group(0) @binding(0) var<storage, read> hidden: array<f32>;     // (N*(k+1), H)
@group(0) @binding(1) var<storage, read> weights: array<f32>;    // (M)
@group(0) @binding(2) var<storage, read> order: array<i32>;      // (N*k)
@group(0) @binding(3) var<storage, read> starts: array<i32>;     // (E+1)
@group(0) @binding(4) var<storage, read_write> y: array<f32>;    // (N*(k+1), D) =
@group(0) @binding(5) var<uniform> moe: Moe;

struct Tile { a_by_depth: bool, b_by_depth: bool, group: Group, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return rows_of(tile.group, rows) * moe.h; }
fn fetch_a(tile: Tile, at: vec4<u32>, h: u32) -> vec4<f32> {
    return vec4<f32>(hidden[at.x + h], hidden[at.y + h], hidden[at.z + h], hidden[at.w + h]);
}

fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> {
    return expert_at(tile.group.expert) + moe.w2 + within(tile.column + columns, moe.d) * moe.h;
}
fn fetch_b(tile: Tile, at: vec4<u32>, h: u32) -> vec4<f32> {
    return vec4<f32>(weights[at.x + h], weights[at.y + h], weights[at.z + h], weights[at.w + h]);
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let group = group_of_tile(id.y, 4u * W);
    if (group.rows == 0u) { return; }
    let column = id.x * 4u * W;
    var sums = tile_product(Tile(true, true, group, column), thread, 0u, moe.h);
    let bias = expert_at(group.expert) + moe.b2;
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let c = column + nth(thread.x, j);
            if (holds_row(thread, i) && nth(thread.y, i) < group.rows && c < moe.d) {
                y[(group.row + nth(thread.y, i)) * moe.d + c] = sums[i][j] + weights[bias + c];
            }
        }
    }
}
