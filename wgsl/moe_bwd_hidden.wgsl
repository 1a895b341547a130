// moe_bwd: dpre = gate * (w2^T dy) where hidden > 0, and sums for the gates' gradients; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// Inverts `y = w2 hidden + b2; out += gate * y`: dgate = hidden . (w2^T dy) + b2 . dy. The sum over H is left as
// one value per tile, or per thread where tiles are not shared.
//#include moe_params
//#include moe_group
//#include moe_gate
//#include within
//#include matmul_tile

@group(0) @binding(0) var<storage, read> dy: array<f32>;              // (N, D)
@group(0) @binding(1) var<storage, read> weights: array<f32>;         // (M)
@group(0) @binding(2) var<storage, read> gates: array<f32>;           // (N, k)
@group(0) @binding(3) var<storage, read> order: array<i32>;           // (N*k)
@group(0) @binding(4) var<storage, read> starts: array<i32>;          // (E+1)
@group(0) @binding(5) var<storage, read> hidden: array<f32>;          // (N*(k+1), H)
@group(0) @binding(6) var<storage, read_write> dpre: array<f32>;      // (N*(k+1), H) =
@group(0) @binding(7) var<storage, read_write> partial: array<f32>;   // (N*k, column_sums) =, at the start of its buffer
@group(0) @binding(8) var<uniform> moe: Moe;

struct Tile { a_by_depth: bool, b_by_depth: bool, group: Group, column: u32 }

fn place_a(tile: Tile, rows: vec4<u32>) -> vec4<u32> { return tokens_of(rows_of(tile.group, rows)) * moe.d; }
fn fetch_a(tile: Tile, at: vec4<u32>, c: u32) -> vec4<f32> { return vec4<f32>(dy[at.x + c], dy[at.y + c], dy[at.z + c], dy[at.w + c]); }

fn place_b(tile: Tile, columns: vec4<u32>) -> vec4<u32> {
    return expert_at(tile.group.expert) + moe.w2 + within(tile.column + columns, moe.h);
}
fn fetch_b(tile: Tile, start: vec4<u32>, c: u32) -> vec4<f32> {
    let at = start + c * moe.h;
    return vec4<f32>(weights[at.x], weights[at.y], weights[at.z], weights[at.w]);
}

// dpre of four columns of a row, of which `unit` is what hidden has there; returns their part of hidden . (w2^T dy).
fn put(row: u32, columns: vec4<u32>, unit: vec4<f32>, gate: f32, sum: vec4<f32>) -> f32 {
    var dgate = 0.0;
    for (var j = 0u; j < 4u; j++) {
        if (columns[j] < moe.h) {
            dgate += unit[j] * sum[j];
            dpre[row * moe.h + columns[j]] = select(0.0, gate * sum[j], unit[j] > 0.0);
        }
    }
    return dgate;
}

@compute @workgroup_size(W, W, SLICES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_id) thread: vec3<u32>) {
    let group = group_of_tile(id.y, 4u * W);
    if (group.rows == 0u) { return; }
    let column = id.x * 4u * W;
    var sums = tile_product(Tile(true, false, group, column), thread, 0u, moe.d);
    let rows = rows_of(group, four(thread.y));
    let columns = column + four(thread.x);
    // All is read before anything is written: a read behind a write waits for it, as both might be of the same place.
    var gate = vec4<f32>();
    var unit = array<vec4<f32>, 4>();
    for (var i = 0u; i < 4u; i++) {
        if (holds_row(thread, i)) {
            let at = rows[i] * moe.h + within(columns, moe.h);
            unit[i] = vec4<f32>(hidden[at.x], hidden[at.y], hidden[at.z], hidden[at.w]);
            gate[i] = gate_of(rows[i]);
        }
    }
    var dgate = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (holds_row(thread, i) && nth(thread.y, i) < group.rows) { dgate[i] = put(rows[i], columns, unit[i], gate[i], sums[i]); }
    }
    if (SHARED) {
        workgroupBarrier();
        tile_a[(thread.z * W + thread.x) * (W + 1u) + thread.y] = dgate; // 0 in rows that the thread does not hold
        workgroupBarrier();
        if (thread.x > 0u || thread.z > 0u) { return; }
        dgate = vec4<f32>();
        for (var x = 0u; x < SLICES * W; x++) { dgate += tile_a[x * (W + 1u) + thread.y]; }
    }
    if (group.expert == 0u) { return; }
    let number = select(id.x * W + thread.x, id.x, SHARED);
    for (var i = 0u; i < 4u; i++) {
        if (nth(thread.y, i) < group.rows) {
            partial[(group.row - moe.n + nth(thread.y, i)) * moe.column_sums + number] = dgate[i];
        }
    }
}
