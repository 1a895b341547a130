// Whether the bits are those of NaN or infinity. A comparison of floats would not do: compilers may assume neither occurs.
fn not_finite(bits: u32) -> bool {
    return (bits & 0x7f800000u) == 0x7f800000u;
}
