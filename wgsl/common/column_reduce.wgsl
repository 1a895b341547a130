// Sums over the SHARES threads that share a column; WG / SHARES neighbouring columns per workgroup, thread % (WG / SHARES).
// All threads of a workgroup must call; the first WG / SHARES get the sums. The kernel declares WG, at most 256, `term(t, c, tap)`
// and a shape with n rows, d columns, and the rows of one part.
// SHARES 1 has no barriers, which a CPU that plays GPU pays dearly for. A tree of fixed shape: repeats give the same bits.

override SHARES: u32 = 32u; // a power of two, at most WG
var<workgroup> column_values: array<f32, 256>;

fn column_sum(thread: u32, value: f32) -> f32 {
    if (SHARES == 1u) { return value; }
    column_values[thread] = value;
    for (var half = SHARES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        let reach = half * (WG / SHARES);
        if (thread < reach) { column_values[thread] += column_values[thread + reach]; }
    }
    return column_values[thread];
}

// Of column first + thread % (WG / SHARES): the sum of its terms over the rows of a part.
fn column_of_part(first: u32, part: u32, tap: u32, thread: u32) -> f32 {
    let columns = WG / SHARES;
    let c = first + thread % columns;
    let end = min(shape.n, (part + 1u) * shape.rows);
    var sum = 0.0;
    if (c < shape.d) {
        for (var t = part * shape.rows + thread / columns; t < end; t += SHARES) { sum += term(t, c, tap); }
    }
    return column_sum(thread, sum);
}
