// Rows of one expert: rows 0..N-1 are the shared expert's, row N + place is place `place` of `order`.
// Needs the bindings moe, starts (E+1) and order (N*k).

override TOP_K: u32 = 1u; // k, as a constant: dividing by it is then a multiplication

struct Group { expert: u32, row: u32, rows: u32 }

// The rows of tile number `tile` of `side` rows; 0 rows for a tile beyond the last one. Row tiles never cross experts.
fn group_of_tile(tile: u32, side: u32) -> Group {
    let shared_tiles = (moe.n + side - 1u) / side;
    if (tile < shared_tiles) { return Group(0u, tile * side, min(side, moe.n - tile * side)); }
    var left = tile - shared_tiles;
    var first = 0u;
    for (var e = 0u; e < moe.e; e++) {
        let last = u32(starts[e + 1u]);
        let tiles = (last - first + side - 1u) / side;
        if (left < tiles) { return Group(e + 1u, moe.n + first + left * side, min(side, last - first - left * side)); }
        left -= tiles;
        first = last;
    }
    return Group(0u, 0u, 0u);
}

// All rows of one expert.
fn group_of_expert(expert: u32) -> Group {
    if (expert == 0u) { return Group(0u, 0u, moe.n); }
    let first = u32(starts[expert - 1u]);
    return Group(expert, moe.n + first, u32(starts[expert]) - first);
}

// The token that a row belongs to.
fn token_of(row: u32) -> u32 {
    if (row < moe.n) { return row; }
    return u32(order[row - moe.n]) / TOP_K;
}

// Four rows of the group, none beyond its last one.
fn rows_of(group: Group, rows: vec4<u32>) -> vec4<u32> {
    return group.row + min(rows, vec4<u32>(group.rows - 1u));
}

fn tokens_of(rows: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(token_of(rows.x), token_of(rows.y), token_of(rows.z), token_of(rows.w));
}
