// embed_bwd: demb[tokens[n]] += dx[n]; reference: backend/reference/embed.py; test: tests/ops/test_embed.py
// One workgroup per row: the first row of a token adds all rows of that token in ascending order, the others stop.

struct Shape { n: u32, d: u32, v: u32 }

@group(0) @binding(0) var<storage, read> tokens: array<i32>;  // (N)
@group(0) @binding(1) var<storage, read> dx: array<f32>;  // (N, D)
@group(0) @binding(2) var<storage, read_write> demb: array<f32>;  // (V, D)
@group(0) @binding(3) var<uniform> shape: Shape;

const WG = 128u;
const WORDS = WG / 32u;
var<workgroup> earlier: atomic<u32>;
var<workgroup> is_first: u32;
var<workgroup> found: array<atomic<u32>, WORDS>;  // one bit per row of the chunk
var<workgroup> chunk_rows: array<u32, WORDS>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * groups.x;
    if (row >= shape.n) { return; }
    let token = tokens[row];
    if (lane == 0u) { atomicStore(&earlier, 0u); }  // not every driver starts workgroup memory at zero
    workgroupBarrier();
    for (var other = lane; other < row; other += WG) {
        if (tokens[other] == token) { atomicStore(&earlier, 1u); }
    }
    workgroupBarrier();
    if (lane == 0u) { is_first = 1u - atomicLoad(&earlier); }
    if (workgroupUniformLoad(&is_first) == 0u) { return; }

    let start = u32(clamp(token, 0, i32(shape.v) - 1)) * shape.d;
    for (var chunk = row; chunk < shape.n; chunk += WG) {
        if (lane < WORDS) { atomicStore(&found[lane], 0u); }
        workgroupBarrier();
        let other = chunk + lane;
        if (other < shape.n && tokens[min(other, shape.n - 1u)] == token) {
            atomicOr(&found[lane / 32u], 1u << (lane % 32u));
        }
        workgroupBarrier();
        if (lane < WORDS) { chunk_rows[lane] = atomicLoad(&found[lane]); }
        workgroupBarrier();
        for (var c = lane; c < shape.d; c += WG) {
            var sum = demb[start + c];
            for (var word = 0u; word < WORDS; word++) {
                for (var rest = chunk_rows[word]; rest != 0u; rest &= rest - 1u) {
                    sum += dx[(chunk + 32u * word + countTrailingZeros(rest)) * shape.d + c];
                }
            }
            demb[start + c] = sum;
        }
        workgroupBarrier();
    }
}
