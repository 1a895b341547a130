// balance_bwd: dlogit[j] = balance * probs[j] * (f[j] - sum_e f[e] probs[e]), dm += dlogit wr; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// One workgroup per row.

struct Shape { n: u32, d: u32, e: u32 }

@group(0) @binding(0) var<storage, read> wr: array<f32>;  // (E, D), the start of W
@group(0) @binding(1) var<storage, read> probs: array<f32>;  // (N, E)
@group(0) @binding(2) var<storage, read> balance: array<f32>;  // (N)
@group(0) @binding(3) var<storage, read> shares: array<f32>;  // (E)
@group(0) @binding(4) var<storage, read_write> dlogits: array<f32>;  // (N, E)
@group(0) @binding(5) var<storage, read_write> dm: array<f32>;  // (N, D)
@group(0) @binding(6) var<uniform> shape: Shape;

const WG = 64u;
var<workgroup> partial: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if (row >= shape.n) { return; }
    var sum = 0.0;
    for (var e = lane; e < shape.e; e += WG) { sum += shares[e] * probs[row * shape.e + e]; }
    partial[lane] = sum;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { partial[lane] += partial[lane + half]; }
    }
    workgroupBarrier();
    let mean = partial[0];
    for (var e = lane; e < shape.e; e += WG) {
        let place = row * shape.e + e;
        dlogits[place] = balance[row] * probs[place] * (shares[e] - mean);
    }
    for (var c = lane; c < shape.d; c += WG) {
        sum = 0.0;
        for (var e = 0u; e < shape.e; e++) {  // computed again: other lanes' dlogits are not visible here
            sum += balance[row] * probs[row * shape.e + e] * (shares[e] - mean) * wr[e * shape.d + c];
        }
        dm[row * shape.d + c] += sum;
    }
}
