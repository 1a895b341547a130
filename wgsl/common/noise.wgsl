// Draws from where they are used, as in backend/reference/noise.py: the draw of element i is mix_bits(key ^ i).
fn mix_bits(bits: u32) -> u32 {
    var x = bits;
    x = (x ^ (x >> 16u)) * 0x7feb352du;
    x = (x ^ (x >> 15u)) * 0x846ca68bu;
    return x ^ (x >> 16u);
}

fn noise_key(seed: u32, step: u32, salt: u32) -> u32 {
    return mix_bits(mix_bits(mix_bits(seed) ^ step) ^ salt);
}
