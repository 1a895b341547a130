// dequant: values from packed fp16 or int8; reference: backend/reference/lora.py; test: tests/ops/test_lora.py
// One invocation per value.
//#include half_to_float

struct Shape { count: u32, bits: u32, block: u32 }  // values per scale

@group(0) @binding(0) var<storage, read> codes: array<u32>;  // (C)
@group(0) @binding(1) var<storage, read> scales: array<f32>;  // (Q)
@group(0) @binding(2) var<storage, read_write> values: array<u32>;  // (P), the bits of floats
@group(0) @binding(3) var<uniform> shape: Shape;

const WG = 256u;

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
