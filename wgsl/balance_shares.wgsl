// balance_bwd: the share of each expert in the choices of the rows whose balance is not 0; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// One workgroup per expert.

struct Shape { n: u32, k: u32 }

@group(0) @binding(0) var<storage, read> experts: array<i32>;  // (N, k)
@group(0) @binding(1) var<storage, read> balance: array<f32>;  // (N)
@group(0) @binding(2) var<storage, read_write> shares: array<f32>;  // (E)
@group(0) @binding(3) var<uniform> shape: Shape;

const WG = 64u;
var<workgroup> own: array<u32, WG>;
var<workgroup> all: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    own[lane] = 0u;
    all[lane] = 0u;
    for (var slot = lane; slot < shape.n * shape.k; slot += WG) {
        if (balance[slot / shape.k] != 0.0) {
            all[lane] += 1u;
            if (experts[slot] == i32(group.x)) { own[lane] += 1u; }
        }
    }
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            own[lane] += own[lane + half];
            all[lane] += all[lane + half];
        }
    }
    if (lane == 0u) { shares[group.x] = f32(own[0]) / f32(max(all[0], 1u)); }
}
