// moe_bwd: dw1, db1, dw2, db2 of every expert and the router's gradient, added to dW; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// Row y of the grid is a part of the shared expert's rows, or beyond those a routed expert. Along x: tiles of dw1, tiles of
// dw2, then columns of db1, db2, dwr. An expert without rows is left alone. Parts but the first are left for moe_bwd_shared:
// the shared expert has many more rows than the others, which would wait for it.
//#include moe_params
//#include moe_group
//#include moe_gate
//#include moe_parts
//#include within
//#include matmul_tile

@group(0) @binding(0) var<storage, read> m: array<f32>;          // (N, D)
@group(0) @binding(1) var<storage, read> gates: array<f32>;      // (N, k)
@group(0) @binding(2) var<storage, read> order: array<i32>;      // (N*k)
@group(0) @binding(3) var<storage, read> starts: array<i32>;     // (E+1)
@group(0) @binding(4) var<storage, read> hidden: array<f32>;     // (N*(k+1), H)
@group(0) @binding(5) var<storage, read> dy: array<f32>;         // (N, D)
@group(0) @binding(6) var<storage, read_write> dpre: array<f32>; // (N*(k+1), H), then dlogits (N, k), then parts =
@group(0) @binding(7) var<storage, read_write> dW: array<f32>;   // (M) +=
@group(0) @binding(8) var<uniform> moe: Moe;

const W1 = 0u;
const W2 = 1u;
const B1 = 2u;
const B2 = 3u;
const WR = 4u;

var<private> part_of_rows: u32; // of the shared expert

// dW of an expert, at a place in its block, += a sum over the rows.
fn add(expert: u32, place: u32, value: f32) {
    if (part_of_rows == 0u) {
        dW[expert_at(expert) + place] += value;
    } else {
        dpre[parts_at() + (part_of_rows - 1u) * moe.stride + place] = value;
    }
}

struct Tile { a_by_depth: bool, b_by_depth: bool, group: Group, part: u32, row: u32, column: u32 }

fn four_dpre(row: u32, h: vec4<u32>) -> vec4<f32> {
    let at = row * moe.h + h;
    return vec4<f32>(dpre[at.x], dpre[at.y], dpre[at.z], dpre[at.w]);
}
fn four_m(row: u32, c: vec4<u32>) -> vec4<f32> {
    let at = token_of(row) * moe.d + c;
    return vec4<f32>(m[at.x], m[at.y], m[at.z], m[at.w]);
}
fn four_dy(row: u32, c: vec4<u32>) -> vec4<f32> {
    let at = token_of(row) * moe.d + c;
    return gate_of(row) * vec4<f32>(dy[at.x], dy[at.y], dy[at.z], dy[at.w]);
}

// dw1 (H, D) = dpre^T m, dw2 (D, H) = (gate dy)^T hidden; the depth counts rows of the group.
fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return within(tile.row + rows, select(moe.d, moe.h, tile.part == W1)); }
fn fetch_a(tile: Tile, at: vec4<u32>, depth: u32) -> vec4<f32> {
    if (tile.part == W1) { return four_dpre(tile.group.row + depth, at); }
    return four_dy(tile.group.row + depth, at);
}
fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> { return within(tile.column + columns, select(moe.h, moe.d, tile.part == W1)); }
fn fetch_b(tile: Tile, column: vec4<u32>, depth: u32) -> vec4<f32> {
    if (tile.part == W1) { return four_m(tile.group.row + depth, column); }
    let at = (tile.group.row + depth) * moe.h + column;
    return vec4<f32>(hidden[at.x], hidden[at.y], hidden[at.z], hidden[at.w]);
}

fn add_tile(group: Group, part: u32, number: u32, thread: vec3<u32>) {
    let rows = select(moe.d, moe.h, part == W1);
    let columns = select(moe.h, moe.d, part == W1);
    let side = 4u * W;
    let across = (columns + side - 1u) / side;
    let tile = Tile(false, false, group, part, number / across * side, number % across * side);
    var sums = tile_product(tile, thread, 0u, group.rows);
    let start = select(moe.w2, 0u, part == W1);
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let row = tile.row + nth(thread.y, i);
            let column = tile.column + nth(thread.x, j);
            if (holds_row(thread, i) && row < rows && column < columns) { add(group.expert, start + row * columns + column, sums[i][j]); }
        }
    }
}

fn term(part: u32, row: u32, at: vec4<u32>) -> vec4<f32> {
    if (part == B1) { return four_dpre(row, at); }
    if (part == B2) { return four_dy(row, at); }
    let dlogit = dpre[moe.n * (moe.k + 1u) * moe.h + u32(order[row - moe.n])];
    return dlogit * four_m(row, at);
}

// Columns 4*W*number.. of a sum over the rows of the group: SLICES * W threads share the rows of four columns.
fn add_columns(group: Group, part: u32, number: u32, thread: vec3<u32>) {
    let count = select(moe.d, moe.h, part == B1);
    let columns = number * 4u * W + four(thread.x);
    let at = within(columns, count);
    var sum = vec4<f32>();
    if (SHARED) {
        let share = thread.z * W + thread.y;
        for (var row = share; row < group.rows; row += SLICES * W) { sum += term(part, group.row + row, at); }
        tile_a[share * (W + 1u) + thread.x] = sum;
        workgroupBarrier();
        if (share > 0u) { return; }
        sum = vec4<f32>();
        for (var y = 0u; y < SLICES * W; y++) { sum += tile_a[y * (W + 1u) + thread.x]; }
    } else {
        if (thread.y > 0u) { return; }
        for (var row = 0u; row < group.rows; row++) { sum += term(part, group.row + row, at); }
    }
    for (var j = 0u; j < 4u; j++) {
        if (columns[j] >= count) { continue; }
        if (part == WR) {
            dW[(group.expert - 1u) * moe.d + columns[j]] += sum[j];
        } else {
            add(group.expert, select(moe.b2, moe.b1, part == B1) + columns[j], sum[j]);
        }
    }
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    var group = group_of_expert(max(id.y + 1u, moe.parts) - moe.parts);
    part_of_rows = select(0u, id.y, id.y < moe.parts);
    if (id.y < moe.parts) {
        let rows = (moe.n + moe.parts - 1u) / moe.parts;
        let first = min(id.y * rows, moe.n);
        group = Group(0u, first, min(rows, moe.n - first));
    }
    if (group.rows == 0u) { return; }
    let side = 4u * W;
    let tiles_h = (moe.h + side - 1u) / side;
    let tiles_d = (moe.d + side - 1u) / side;
    var number = id.x;
    if (number < 2u * tiles_h * tiles_d) {
        let part = number / (tiles_h * tiles_d);
        add_tile(group, part, number % (tiles_h * tiles_d), thread);
        return;
    }
    number -= 2u * tiles_h * tiles_d;
    if (number < tiles_h) {
        add_columns(group, B1, number, thread);
        return;
    }
    number -= tiles_h;
    let part = B2 + number / tiles_d;
    if (part == WR && group.expert == 0u) { return; } // the shared expert is not routed
    add_columns(group, part, number % tiles_d, thread);
}
