// The bits of a float32 from those of an fp16, exactly: the built-in may flush small values to zero.
fn half_to_float(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let size = half & 0x7fffu;
    if (size >= 0x7c00u) { return sign | 0x7f800000u | ((size & 0x3ffu) << 13u); }
    if (size >= 0x400u) { return sign | ((size << 13u) + (112u << 23u)); }
    return sign | bitcast<u32>(f32(size) / 16777216.0);
}
