// Rounding to fp16 and back, to nearest even, in bits: 65520 and more become infinite, NaN and infinity stay.
fn round_to_half(bits: u32) -> u32 {
    let sign = bits & 0x80000000u;
    let size = bits & 0x7fffffffu;
    if (size >= 0x7f800000u) { return bits; }
    if (size >= 0x477ff000u) { return sign | 0x7f800000u; }  // 65520
    if (size >= 0x38800000u) {  // 2^-14, the smallest normal half
        return sign | ((size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u);
    }
    return sign | bitcast<u32>(round(bitcast<f32>(size) * 16777216.0) / 16777216.0);  // whole multiples of 2^-24
}
