// sample: the next token of each sequence, greedy or drawn; reference: backend/reference/sample.py; test: tests/ops/test_sample.py
// One workgroup per sequence. Floors and the draw are searched with sums of integers, which no order of adding can change.

//#include finite
//#include row_reduce

struct Shape { v: u32, steps: u32 }

@group(0) @binding(0) var<storage, read> logits: array<u32>;  // (B, V), the bits of floats
@group(0) @binding(1) var<storage, read> sampling: array<f32>;  // (16), slots of ops.SAMPLING
@group(0) @binding(2) var<storage, read> draws: array<u32>;  // (B, S)
@group(0) @binding(3) var<storage, read> bias: array<u32>;  // (V), the bits of floats; -inf forbids
@group(0) @binding(4) var<storage, read_write> token: array<i32>;  // (B)
@group(0) @binding(5) var<storage, read_write> cursor: array<i32>;  // (B)
@group(0) @binding(6) var<storage, read_write> out: array<i32>;  // (B, 2, S): ids, bits of log-probabilities
@group(0) @binding(7) var<storage, read_write> counts: array<i32>;  // (B, V)
@group(0) @binding(8) var<uniform> shape: Shape;

const LOWEST = -3.4028234e38;
const NOT_FINITE = -1;
const NO_CANDIDATE = -2;
const TOP_K = 0u; // what is searched
const TOP_P = 1u;
const DRAW = 2u;
var<workgroup> bad: atomic<u32>;
var<workgroup> first: atomic<u32>; // place of the first best score
var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> groups: array<u32, 16>; // sums of 16 bins each

struct Rule { best: f32, floor_key: u32, min_p: f32 } // the best score, and the least key and weight that stay

// The logit after bias and penalties; LOWEST for a forbidden token. All loads come first, so that none waits for another.
fn score(row: u32, i: u32) -> f32 {
    let offset = bias[i];
    let count = counts[row + i];
    var l = bitcast<f32>(logits[row + i]) + bitcast<f32>(offset);
    if (count > 0) {
        if (l > 0.0) { l = l / sampling[4]; } else { l = l * sampling[4]; }
        l = l - sampling[5] * f32(count) - sampling[6];
    }
    return select(l, LOWEST, not_finite(offset));
}

// Unsigned integers in the order of the floats; one for both zeros.
fn key(value: f32) -> u32 {
    let bits = select(bitcast<u32>(value), 0u, value == 0.0);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// exp((value - largest) / temperature) without a division that overflows; 0 for a forbidden token.
fn weight(value: f32, largest: f32, temperature: f32) -> f32 {
    if (value == LOWEST) { return 0.0; }
    let below = value - largest;
    if (below == 0.0) { return 1.0; }
    if (below < -100.0 * temperature) { return 0.0; }
    return exp(below / temperature);
}

// The weight of a token that stays, 0 for others.
fn staying(row: u32, i: u32, rule: Rule) -> f32 {
    let value = score(row, i);
    if (key(value) < rule.floor_key) { return 0.0; }
    let w = weight(value, rule.best, sampling[0]);
    return select(0.0, w, w >= rule.min_p);
}

// The largest key such that the tokens with this key or a larger one hold `share` of all: eight of its bits at a time, by
// the sums of the 256 keys that begin so. TOP_K: keys of scores; each token counts 1, and `share` is a number of tokens.
// TOP_P: keys of scores, DRAW: the first token has the largest key; those that stay count their weights in units of the sum
// / 2^31. What rounding to them adds up to, V / 2^32 of the sum, is no more than float sums lose.
fn search(lane: u32, row: u32, rule: Rule, aim: u32, share: f32) -> u32 {
    var scale = 0.0;
    if (aim != TOP_K) {
        for (var i = lane; i < shape.v; i += WG) { scale += staying(row, i, rule); }
        scale = 2147483648.0 / row_sum(lane, scale);
    }
    var found = 0u; // the bits that are known,
    var known = 0u; // where they are,
    var above = 0u; // and what the larger keys hold
    var wanted = 0u;
    for (var shift = select(32u, 32u - countLeadingZeros(shape.v - 1u), aim == DRAW); shift > 0u;) {
        shift = max(shift, 8u) - 8u;
        for (var i = lane; i < 256u; i += WG) { atomicStore(&bins[i], 0u); }
        workgroupBarrier();
        for (var i = lane; i < shape.v; i += WG) {
            var at = shape.v - 1u - i;
            if (aim != DRAW) { at = key(score(row, i)); }
            if (((at ^ found) & known) != 0u) { continue; }
            var amount = 1u;
            if (aim != TOP_K) { amount = u32(staying(row, i, rule) * scale + 0.5); }
            if (amount > 0u) { atomicAdd(&bins[(at >> shift) & 255u], amount); }
        }
        workgroupBarrier();
        if (lane < 16u) {
            var sum = 0u;
            for (var i = 0u; i < 16u; i++) { sum += atomicLoad(&bins[16u * lane + i]); }
            groups[lane] = sum;
        }
        workgroupBarrier();
        if (known == 0u) {
            var sum = 0u;
            for (var i = 0u; i < 16u; i++) { sum += groups[i]; }
            wanted = min(sum, max(1u, u32(ceil(select(share * f32(sum), share, aim == TOP_K)))));
        }
        var bin = 255u;
        while (bin > 15u && above + groups[bin / 16u] < wanted) {
            above += groups[bin / 16u];
            bin -= 16u;
        }
        while (bin % 16u > 0u && above + atomicLoad(&bins[bin]) < wanted) {
            above += atomicLoad(&bins[bin]);
            bin--;
        }
        found |= bin << shift;
        known = 0xffffffffu << shift;
        workgroupBarrier();
    }
    return found;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * shape.v;
    let top_k = sampling[1];
    let top_p = sampling[2];
    let at = u32(clamp(cursor[group.x], 0, i32(shape.steps) - 1));

    if (lane == 0u) { // not every driver starts workgroup memory at zero
        atomicStore(&bad, 0u);
        atomicStore(&first, shape.v - 1u);
    }
    workgroupBarrier();
    var own = vec2<f32>(LOWEST); // the largest after bias and penalties, and before
    var own_place = shape.v - 1u;
    for (var i = lane; i < shape.v; i += WG) {
        let refused = not_finite(bias[i]) && bias[i] != 0xff800000u; // -inf
        if (not_finite(logits[row + i]) || refused) { atomicStore(&bad, 1u); }
        let tried = score(row, i);
        if (tried > own.x) { own_place = i; }
        own = max(own, vec2<f32>(tried, bitcast<f32>(logits[row + i])));
    }
    let best = row_max(lane, own);
    if (own.x == best.x) { atomicMin(&first, own_place); }
    var sum = 0.0; // of the model's own softmax
    for (var i = lane; i < shape.v; i += WG) { sum += weight(bitcast<f32>(logits[row + i]), best.y, 1.0); }
    sum = row_sum(lane, sum);

    var choice = i32(atomicLoad(&first));
    if (sampling[0] > 0.0) {
        var rule = Rule(best.x, 0u, 0.0);
        if (top_k > 0.0 && top_k < f32(shape.v)) { rule.floor_key = search(lane, row, rule, TOP_K, top_k); }
        if (top_p < 1.0) { rule.floor_key = search(lane, row, rule, TOP_P, top_p); }
        rule.min_p = sampling[3];
        // the first token at which the sum of what stays reaches the draw
        let share = f32(draws[group.x * shape.steps + at]) / 4294967296.0;
        choice = i32(shape.v - 1u - search(lane, row, rule, DRAW, share));
    }

    if (lane == 0u) {
        if (best.x == LOWEST) { choice = NO_CANDIDATE; }
        if (atomicLoad(&bad) != 0u) { choice = NOT_FINITE; }
        token[group.x] = choice;
        if (cursor[group.x] < i32(shape.steps)) {
            let slot = group.x * 2u * shape.steps + at;
            out[slot] = choice;
            if (choice >= 0) {
                let logprob = bitcast<f32>(logits[row + u32(choice)]) - best.y - log(sum);
                out[slot + shape.steps] = bitcast<i32>(logprob);
                counts[row + u32(choice)] += 1;
            }
        }
        cursor[group.x] += 1;
    }
}
