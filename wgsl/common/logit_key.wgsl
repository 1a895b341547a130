// Larger logits give larger keys, -0 equals 0, and NaN is 0, below everything: compares as integers, whatever a compiler does with NaN.
fn key_of(logit: f32) -> u32 {
    let bits = bitcast<u32>(logit);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0u; }
    if ((bits & 0x7fffffffu) == 0u) { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}
