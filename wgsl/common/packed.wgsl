// One value of a matrix that lies as float32, or packed as `ops.dequant` says.
// Needs the bindings base: array<u32> and scales: array<f32>, and shape.block, the number of values per scale.
override BITS: u32 = 32u; // 32: floats; 16: two fp16 in a word; 8: four int8 in a word, times their scale

fn base_at(at: u32) -> f32 {
    if (BITS == 8u) {
        return f32(extractBits(bitcast<i32>(base[at / 4u]), 8u * (at % 4u), 8u)) * scales[at / shape.block];
    }
    if (BITS == 16u) { return bitcast<f32>(half_to_float((base[at / 2u] >> (16u * (at % 2u))) & 0xffffu)); }
    return bitcast<f32>(base[at]);
}

fn four_base(at: vec4<u32>) -> vec4<f32> { return vec4<f32>(base_at(at.x), base_at(at.y), base_at(at.z), base_at(at.w)); }
