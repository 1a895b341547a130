// moe_bwd: adds the parts that moe_bwd_weights left to the shared expert's gradient; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// One invocation per element of its block, in which padding is left alone.
//#include moe_params
//#include moe_parts

@group(0) @binding(0) var<storage, read> dpre: array<f32>;      // (N*(k+1), H), dlogits (N, k), (parts - 1, stride)
@group(0) @binding(1) var<storage, read_write> dW: array<f32>;  // (M) +=
@group(0) @binding(2) var<uniform> moe: Moe;

const WG = 256u;

fn inside(i: u32, first: u32, count: u32) -> bool { return i >= first && i < first + count; }

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    let matrix = moe.h * moe.d;
    if (inside(i, 0u, matrix) || inside(i, moe.b1, moe.h) || inside(i, moe.w2, matrix) || inside(i, moe.b2, moe.d)) {
        var sum = dW[expert_at(0u) + i];
        for (var part = 1u; part < moe.parts; part++) { sum += dpre[parts_at() + (part - 1u) * moe.stride + i]; }
        dW[expert_at(0u) + i] = sum;
    }
}
