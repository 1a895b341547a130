// Sums over the SHARES threads that share a column; WG / SHARES neighbouring columns per workgroup, thread % (WG / SHARES).
// All threads of a workgroup must call; the first WG / SHARES get the sums. The kernel declares WG, at most 256.
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
