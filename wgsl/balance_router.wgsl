// balance_bwd: dwr += dlogits^T m; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// A workgroup makes a tile of 16 rows of E by 16 columns over its part of the rows. One part adds to dwr; several leave sums for sum_parts.

struct Shape { n: u32, d: u32, e: u32, parts: u32, rows: u32 }  // rows of one part

@group(0) @binding(0) var<storage, read> m: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> dlogits: array<f32>;  // (N, E)
@group(0) @binding(2) var<storage, read_write> dwr: array<f32>;  // (E, D), or (parts, E, D)
@group(0) @binding(3) var<uniform> shape: Shape;

const TILE = 16u;
var<workgroup> m_tile: array<f32, 256>;
var<workgroup> d_tile: array<f32, 256>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let c = group.x * TILE + local.x;
    let e = group.z * TILE + local.y;
    let own = local.y * TILE + local.x;
    let end = min(shape.n, (group.y + 1u) * shape.rows);
    var sum = 0.0;
    for (var step = group.y * shape.rows; step < end; step += TILE) {
        let t = step + local.y;
        let e_column = group.z * TILE + local.x;
        m_tile[own] = 0.0;
        d_tile[own] = 0.0;
        if (t < end && c < shape.d) { m_tile[own] = m[t * shape.d + c]; }
        if (t < end && e_column < shape.e) { d_tile[own] = dlogits[t * shape.e + e_column]; }
        workgroupBarrier();
        for (var i = 0u; i < TILE; i++) {
            sum += d_tile[i * TILE + local.y] * m_tile[i * TILE + local.x];
        }
        workgroupBarrier();
    }
    if (c < shape.d && e < shape.e) {
        let place = (group.y * shape.e + e) * shape.d + c;
        if (shape.parts == 1u) { dwr[place] += sum; } else { dwr[place] = sum; }
    }
}
