// moe_fwd: out = a + shared y + sum of gate * expert y; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
//#include moe_params

@group(0) @binding(0) var<storage, read> a: array<f32>;            // (N, D)
@group(0) @binding(1) var<storage, read> gates: array<f32>;        // (N, k)
@group(0) @binding(2) var<storage, read> inverse: array<i32>;      // (N*k)
@group(0) @binding(3) var<storage, read> y: array<f32>;            // (N*(k+1), D)
@group(0) @binding(4) var<storage, read_write> out: array<f32>;    // (N, D) =
@group(0) @binding(5) var<uniform> moe: Moe;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let at = (group.x + group.y * groups.x) * 256u + thread;
    if (at >= moe.n * moe.d) { return; }
    let row = at / moe.d;
    let column = at % moe.d;
    var sum = a[at] + y[at];
    for (var slot = row * moe.k; slot < (row + 1u) * moe.k; slot++) {
        sum += gates[slot] * y[(moe.n + u32(inverse[slot])) * moe.d + column];
    }
    out[at] = sum;
}
