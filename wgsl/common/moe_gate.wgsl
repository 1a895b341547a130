// What a row of hidden counts for in the output of its token. Needs the bindings moe, order (N*k) and gates (N, k).
fn gate_of(row: u32) -> f32 {
    if (row < moe.n) { return 1.0; }
    return gates[order[row - moe.n]];
}
