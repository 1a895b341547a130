// moe_fwd: router logits, the k best experts, gates and probs; reference: backend/reference/moe.py; test: tests/ops/test_moe.py
// WG / LANES rows per workgroup. Every logit is summed in the same order, so equal router rows give equal logits.
//#include moe_params
//#include noise
//#include logit_key

@group(0) @binding(0) var<storage, read> m: array<f32>;              // (N, D)
@group(0) @binding(1) var<storage, read> weights: array<f32>;        // (M)
@group(0) @binding(2) var<storage, read> noise: array<u32>;          // (64)
@group(0) @binding(3) var<storage, read_write> experts: array<i32>;  // (N, k) =
@group(0) @binding(4) var<storage, read_write> gates: array<f32>;    // (N, k) =
@group(0) @binding(5) var<storage, read_write> probs: array<f32>;    // (N, E) =, holds the logits first
@group(0) @binding(6) var<uniform> moe: Moe;

override LANES: u32 = 32u; // threads that share a row; 1 needs no barriers: for a CPU that plays GPU
const WG = 64u;
const AT_ONCE = 8u; // experts whose partial sums are in workgroup memory at the same time
var<workgroup> partial: array<f32, WG * AT_ONCE>; // (rows, AT_ONCE, LANES)

// One thread: the k largest logits of `row`, equal ones lowest index first; gates over them, probs over all.
fn choose(row: u32) {
    let logits = row * moe.e;
    var worst_key = 0xffffffffu;
    var worst = 0u;
    var bad = false; // a logit is NaN: the expert that it belongs to is passed over, but the gates tell
    for (var i = 0u; i < moe.k; i++) {
        var best_key = 0u;
        var best = moe.e;
        for (var e = 0u; e < moe.e; e++) {
            let key = key_of(probs[logits + e]);
            bad = bad || key == 0u;
            let open = i == 0u || key < worst_key || (key == worst_key && e > worst); // comes after the last one chosen
            if (open && (best == moe.e || key > best_key)) {
                best_key = key;
                best = e;
            }
        }
        worst_key = best_key;
        worst = best;
        experts[row * moe.k + i] = i32(best);
    }
    let top = probs[logits + u32(experts[row * moe.k])];
    var sum = 0.0;
    for (var i = 0u; i < moe.k; i++) {
        let value = exp(probs[logits + u32(experts[row * moe.k + i])] - top);
        gates[row * moe.k + i] = value;
        sum += value;
    }
    for (var i = 0u; i < moe.k; i++) {
        let at = row * moe.k + i;
        gates[at] = select(gates[at] / sum, bitcast<f32>(0x7fc00000u | i), bad);
    }
    sum = 0.0;
    for (var e = 0u; e < moe.e; e++) {
        let value = exp(probs[logits + e] - top);
        probs[logits + e] = value;
        sum += value;
    }
    for (var e = 0u; e < moe.e; e++) { probs[logits + e] /= sum; }
}

// A lane's shares of the logits of AT_ONCE experts from `first` on, in the same order for every expert.
fn shares_of_logits(row: u32, first: u32, lane: u32) -> array<f32, AT_ONCE> {
    var sums = array<f32, AT_ONCE>();
    for (var c = lane; c < moe.d; c += LANES) {
        let value = m[row * moe.d + c];
        for (var e = 0u; e < AT_ONCE; e++) { sums[e] += value * weights[min(first + e, moe.e - 1u) * moe.d + c]; }
    }
    return sums;
}

// What training adds to the logit at `place` of (N, E): amplitude * u, u uniform in [-1, 1).
fn jitter(place: u32) -> f32 {
    let amplitude = bitcast<f32>(noise[4]);
    if (amplitude == 0.0) { return 0.0; }
    let bits = mix_bits(noise_key(noise[0], noise[1], noise[2]) ^ (0x80000000u + place));
    return amplitude * (f32(bits) / 2147483648.0 - 1.0);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let rows = WG / LANES;
    let first_row = (group.x + group.y * groups.x) * rows;
    if (LANES == 1u) {
        let row = first_row + thread;
        if (row < moe.n) {
            for (var first = 0u; first < moe.e; first += AT_ONCE) {
                var logits = shares_of_logits(row, first, 0u);
                for (var e = 0u; e < min(AT_ONCE, moe.e - first); e++) {
                    let place = row * moe.e + first + e;
                    probs[place] = logits[e] + jitter(place);
                }
            }
            choose(row);
        }
        return;
    }
    let lane = thread % LANES;
    let own = thread / LANES;
    for (var first = 0u; first < moe.e; first += AT_ONCE) {
        let count = min(AT_ONCE, moe.e - first);
        var shares = shares_of_logits(min(first_row + own, moe.n - 1u), first, lane);
        for (var e = 0u; e < AT_ONCE; e++) { partial[(own * AT_ONCE + e) * LANES + lane] = shares[e]; }
        workgroupBarrier();
        let row = first_row + thread / AT_ONCE;
        let e = thread % AT_ONCE;
        if (thread < rows * AT_ONCE && e < count && row < moe.n) {
            var sum = 0.0;
            for (var i = 0u; i < LANES; i++) { sum += partial[thread * LANES + i]; }
            let place = row * moe.e + first + e;
            probs[place] = sum + jitter(place);
        }
        workgroupBarrier();
    }
    storageBarrier();
    if (thread < rows && first_row + thread < moe.n) { choose(first_row + thread); }
}
