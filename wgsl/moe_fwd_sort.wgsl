// moe_fwd: stable counting sort of the slots n*k+i by expert; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// One workgroup per expert. Each thread looks at a run of consecutive slots, so places follow slots: stable, and without atomics.
//#include moe_params

@group(0) @binding(0) var<storage, read> experts: array<i32>;        // (N, k)
@group(0) @binding(1) var<storage, read_write> order: array<i32>;    // (N*k) =
@group(0) @binding(2) var<storage, read_write> inverse: array<i32>;  // (N*k) =
@group(0) @binding(3) var<storage, read_write> starts: array<i32>;   // (E+1) =
@group(0) @binding(4) var<uniform> moe: Moe;

const WG = 256u;
var<workgroup> counts: array<vec2<u32>, WG>; // slots of smaller experts, and of this one

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let expert = i32(group.x);
    let slots = moe.n * moe.k;
    let run = (slots + WG - 1u) / WG;
    let first = min(thread * run, slots);
    let last = min(first + run, slots);
    var mine = vec2<u32>();
    for (var slot = first; slot < last; slot++) {
        let other = experts[slot];
        mine += vec2<u32>(u32(other < expert), u32(other == expert));
    }
    counts[thread] = mine;
    workgroupBarrier();
    for (var step = 1u; step < WG; step *= 2u) { // running sums
        var before = vec2<u32>();
        if (thread >= step) { before = counts[thread - step]; }
        workgroupBarrier();
        counts[thread] += before;
        workgroupBarrier();
    }
    let start = counts[WG - 1u].x;
    var place = start + counts[thread].y - mine.y;
    for (var slot = first; slot < last; slot++) {
        if (experts[slot] == expert) {
            order[place] = i32(slot);
            inverse[slot] = i32(place);
            place++;
        }
    }
    if (thread == 0u) {
        starts[group.x] = i32(start);
        if (group.x + 1u == moe.e) { starts[moe.e] = i32(slots); }
    }
}
