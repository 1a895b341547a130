// A lane's share of the product of two rows, for row_reduce to add up. Needs row_reduce, and the bindings
// weights: array<vec4<f32>> and given: array<vec4<f32>>.
override FOURS: bool = true; // whether all rows begin at a multiple of 4 values, and end there

// `length` values of weights from `at` on, times those of given from `other` on.
fn share_of_product(at: u32, other: u32, length: u32, lane: u32) -> f32 {
    if (FOURS) {
        var sums = vec4<f32>();
        for (var i = lane; i < length / 4u; i += LANES) { sums += weights[at / 4u + i] * given[other / 4u + i]; }
        return (sums.x + sums.y) + (sums.z + sums.w);
    }
    var sum = 0.0;
    for (var i = lane; i < length; i += LANES) {
        sum += weights[(at + i) / 4u][(at + i) % 4u] * given[(other + i) / 4u][(other + i) % 4u];
    }
    return sum;
}
