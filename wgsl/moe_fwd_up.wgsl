// moe_fwd: hidden = relu(w1 m + b1), shared and routed rows; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
//#include moe_params
//#include moe_group
//#include within
//#include matmul_tile

@group(0) @binding(0) var<storage, read> m: array<f32>;              // (N, D)
@group(0) @binding(1) var<storage, read> weights: array<f32>;        // (M)
@group(0) @binding(2) var<storage, read> order: array<i32>;          // (N*k)
@group(0) @binding(3) var<storage, read> starts: array<i32>;         // (E+1)
@group(0) @binding(4) var<storage, read_write> hidden: array<f32>;   // (N*(k+1), H) =
@group(0) @binding(5) var<uniform> moe: Moe;

struct Tile { a_by_depth: bool, b_by_depth: bool, group: Group, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return tokens_of(rows_of(tile.group, rows)) * moe.d; }
fn fetch_a(tile: Tile, at: vec4<u32>, c: u32) -> vec4<f32> { return vec4<f32>(m[at.x + c], m[at.y + c], m[at.z + c], m[at.w + c]); }

fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> {
    return expert_at(tile.group.expert) + within(tile.column + columns, moe.h) * moe.d;
}
fn fetch_b(tile: Tile, at: vec4<u32>, c: u32) -> vec4<f32> {
    return vec4<f32>(weights[at.x + c], weights[at.y + c], weights[at.z + c], weights[at.w + c]);
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let group = group_of_tile(id.y, 4u * W);
    if (group.rows == 0u) { return; }
    let column = id.x * 4u * W;
    var sums = tile_product(Tile(true, true, group, column), thread, 0u, moe.d);
    let bias = expert_at(group.expert) + moe.b1;
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let h = column + nth(thread.x, j);
            if (holds_row(thread, i) && nth(thread.y, i) < group.rows && h < moe.h) {
                let value = sums[i][j] + weights[bias + h];
                hidden[(group.row + nth(thread.y, i)) * moe.h + h] = select(value, 0.0, value < 0.0); // NaN stays NaN
            }
        }
    }
}
