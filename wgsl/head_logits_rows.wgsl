// head_logits: logits = x emb^T for a few rows, as when decoding; reference: backend/reference/head.py; test: tests/ops/test_head.py
// LANES threads share a row of emb, and use it for four rows of x; D is a multiple of 4.

struct Shape { n: u32, d: u32, v: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;        // (N, D)
@group(0) @binding(1) var<storage, read> emb: array<vec4<f32>>;      // (V, D)
@group(0) @binding(2) var<storage, read_write> logits: array<f32>;   // (N, V) =
@group(0) @binding(3) var<uniform> shape: Shape;

override LANES: u32 = 16u; // a power of two, at most WG; 1 has no barriers
const WG = 64u;
var<workgroup> sums: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let v = (group.x + group.y * groups.x) * (WG / LANES) + thread / LANES;
    let lane = thread % LANES;
    let fours = shape.d / 4u;
    let first = 4u * group.z;
    let rows = min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(shape.n - 1u)) * fours;
    let at = min(v, shape.v - 1u) * fours;
    var sum = vec4<f32>();
    for (var i = lane; i < fours; i += LANES) {
        let e = emb[at + i];
        sum += vec4<f32>(dot(e, x[rows.x + i]), dot(e, x[rows.y + i]), dot(e, x[rows.z + i]), dot(e, x[rows.w + i]));
    }
    if (LANES > 1u) {
        sums[thread] = sum;
        for (var half = LANES / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if (lane < half) { sums[thread] += sums[thread + half]; }
        }
        sum = sums[thread];
    }
    if (lane == 0u && v < shape.v) {
        for (var i = 0u; i < min(4u, shape.n - first); i++) { logits[(first + i) * shape.v + v] = sum[i]; }
    }
}
