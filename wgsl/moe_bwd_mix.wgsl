// moe_bwd: gradients of the router logits, and dm; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// Inverts `out = shared y + sum gate * y` and `gates = softmax over the chosen logits`:
// dlogit = gate * (dgate - sum gate*dgate); dm = shared dx + sum (expert dx + dlogit * router row).
//#include moe_params
//#include row_reduce

@group(0) @binding(0) var<storage, read> dy: array<f32>;              // (N, D)
@group(0) @binding(1) var<storage, read> weights: array<f32>;         // (M)
@group(0) @binding(2) var<storage, read> experts: array<i32>;         // (N, k)
@group(0) @binding(3) var<storage, read> gates: array<f32>;           // (N, k)
@group(0) @binding(4) var<storage, read> inverse: array<i32>;         // (N*k)
@group(0) @binding(5) var<storage, read> sums: array<f32>;            // (N*k, column_sums), then dx (N*(k+1), D)
@group(0) @binding(6) var<storage, read_write> dm: array<f32>;        // (N, D) =
@group(0) @binding(7) var<storage, read_write> dlogits: array<f32>;   // after dpre (N*(k+1), H): (N, k) =
@group(0) @binding(8) var<uniform> moe: Moe;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let lane = thread % LANES;
    let row = (group.x + group.y * groups.x) * (WG / LANES) + thread / LANES;
    let inside = row < moe.n;
    let slot = min(row, moe.n - 1u) * moe.k;
    let source = min(row, moe.n - 1u) * moe.d;
    let dlogit = moe.n * (moe.k + 1u) * moe.h + slot;
    if (moe.k > 1u) { // a softmax over one logit is constant
        for (var i = 0u; i < moe.k; i++) {
            let bias = expert_at(u32(experts[slot + i]) + 1u) + moe.b2;
            var sum = 0.0;
            for (var c = lane; c < moe.d; c += LANES) { sum += weights[bias + c] * dy[source + c]; }
            let tiles = u32(inverse[slot + i]) * moe.column_sums;
            for (var t = lane; t < moe.column_sums; t += LANES) { sum += sums[tiles + t]; }
            sum = row_sum(thread, sum);
            if (lane == 0u && inside) { dlogits[dlogit + i] = sum; } // dgate until the end of this block
        }
        if (lane == 0u && inside) {
            var mean = 0.0;
            for (var i = 0u; i < moe.k; i++) { mean += gates[slot + i] * dlogits[dlogit + i]; }
            for (var i = 0u; i < moe.k; i++) { dlogits[dlogit + i] = gates[slot + i] * (dlogits[dlogit + i] - mean); }
        }
        if (LANES > 1u) {
            storageBarrier();
            workgroupBarrier();
        }
    }
    if (!inside) { return; }
    let dx = moe.n * moe.k * moe.column_sums;
    for (var c = lane; c < moe.d; c += LANES) {
        var sum = sums[dx + source + c];
        for (var i = 0u; i < moe.k; i++) {
            sum += sums[dx + (moe.n + u32(inverse[slot + i])) * moe.d + c];
            if (moe.k > 1u) { sum += dlogits[dlogit + i] * weights[u32(experts[slot + i]) * moe.d + c]; }
        }
        dm[source + c] = sum;
    }
}
