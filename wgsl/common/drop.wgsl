// Dropout of one element by its draw, as in backend/reference/noise.py. Needs the binding noise: array<u32> (64) and noise.wgsl.
override DROP: bool = true; // false: nothing is dropped, and noise is not read

fn drop_factor(element: u32) -> f32 {
    if (!DROP) { return 1.0; }
    let threshold = noise[3];
    if (threshold == 0u) { return 1.0; }
    let kept = mix_bits(noise_key(noise[0], noise[1], noise[2]) ^ element) >= threshold;
    return select(0.0, 1.0 / (1.0 - f32(threshold) / 4294967296.0), kept);
}
