// Sums and maxima over the LANES threads that share a row; WG / LANES rows per workgroup. All threads of a workgroup must call.
// LANES 1 has no barriers, which a CPU that plays GPU pays dearly for. A tree of fixed shape: repeats give the same bits.

override WG: u32 = 64u; // threads of a workgroup, at most 256
override LANES: u32 = 32u; // a power of two, at most WG
var<workgroup> lane_values: array<vec2<f32>, 256>;

fn row_sum(thread: u32, value: f32) -> f32 {
    if (LANES == 1u) { return value; }
    let lane = thread % LANES;
    lane_values[thread].x = value;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { lane_values[thread].x += lane_values[thread + half].x; }
    }
    workgroupBarrier();
    let sum = lane_values[thread - lane].x;
    workgroupBarrier();
    return sum;
}

fn row_max(thread: u32, value: vec2<f32>) -> vec2<f32> {
    if (LANES == 1u) { return value; }
    let lane = thread % LANES;
    lane_values[thread] = value;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { lane_values[thread] = max(lane_values[thread], lane_values[thread + half]); }
    }
    workgroupBarrier();
    let best = lane_values[thread - lane];
    workgroupBarrier();
    return best;
}
