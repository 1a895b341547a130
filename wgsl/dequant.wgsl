// dequant: values from packed fp16 or int8; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// One invocation per value. fp16 is unpacked in bits: the built-in may flush small values to zero.

struct Shape { count: u32, bits: u32, block: u32 }  // values per scale

@group(0) @binding(0) var<storage, read> codes: array<u32>;  // (C)
@group(0) @binding(1) var<storage, read> scales: array<f32>;  // (Q)
@group(0) @binding(2) var<storage, read_write> values: array<u32>;  // (P), the bits of floats
@group(0) @binding(3) var<uniform> shape: Shape;

const WG = 256u;

fn half_to_float(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let size = half & 0x7fffu;
    if (size >= 0x7c00u) { return sign | 0x7f800000u | ((size & 0x3ffu) << 13u); }
    if (size >= 0x400u) { return sign | ((size << 13u) + (112u << 23u)); }
    return sign | bitcast<u32>(f32(size) / 16777216.0);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.count) { return; }
    if (shape.bits == 16u) {
        values[i] = half_to_float((codes[i / 2u] >> (16u * (i % 2u))) & 0xffffu);
    } else {
        let code = extractBits(bitcast<i32>(codes[i / 4u]), 8u * (i % 4u), 8u);
        values[i] = bitcast<u32>(f32(code) * scales[i / shape.block]);
    }
}
