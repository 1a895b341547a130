// sample: the next token of each sequence, greedy or drawn; reference: backend/reference/sample.py; test: tests/ops/test_sample.py
// One workgroup per sequence; each lane holds a run of neighbouring tokens, so that sums run in index order.

//#include finite

struct Shape { v: u32, steps: u32, run: u32 }  // run: tokens of one lane

@group(0) @binding(0) var<storage, read> logits: array<u32>;  // (B, V), the bits of floats
@group(0) @binding(1) var<storage, read> sampling: array<f32>;  // (16), slots of ops.SAMPLING
@group(0) @binding(2) var<storage, read> draws: array<u32>;  // (B, S)
@group(0) @binding(3) var<storage, read> bias: array<u32>;  // (V), the bits of floats; -inf forbids
@group(0) @binding(4) var<storage, read_write> token: array<i32>;  // (B)
@group(0) @binding(5) var<storage, read_write> cursor: array<i32>;  // (B)
@group(0) @binding(6) var<storage, read_write> out: array<i32>;  // (B, 2, S): ids, bits of log-probabilities
@group(0) @binding(7) var<storage, read_write> counts: array<i32>;  // (B, V)
@group(0) @binding(8) var<uniform> shape: Shape;

const WG = 256u;
const LOWEST = -3.4028234e38;
const NOT_FINITE = -1;
const NO_CANDIDATE = -2;
var<workgroup> bad: atomic<u32>;
var<workgroup> values: array<f32, WG>;
var<workgroup> places: array<u32, WG>;

struct Peak { value: f32, place: u32 }

// The logit after bias and penalties; LOWEST for a forbidden token.
fn score(row: u32, i: u32) -> f32 {
    if (not_finite(bias[i])) { return LOWEST; }
    var l = bitcast<f32>(logits[row + i]) + bitcast<f32>(bias[i]);
    let count = counts[row + i];
    if (count > 0) {
        if (l > 0.0) { l = l / sampling[4]; } else { l = l * sampling[4]; }
        l = l - sampling[5] * f32(count) - sampling[6];
    }
    return l;
}

// Unsigned integers in the order of the floats.
fn key(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
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

// The largest of all lanes' values and the first place that has it.
fn peak_of(lane: u32, own: Peak) -> Peak {
    workgroupBarrier();
    values[lane] = own.value;
    places[lane] = own.place;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let other = values[lane + half];
            if (other > values[lane] || (other == values[lane] && places[lane + half] < places[lane])) {
                values[lane] = other;
                places[lane] = places[lane + half];
            }
        }
    }
    workgroupBarrier();
    return Peak(values[0], places[0]);
}

// values[lane] = the sum over the lanes up to this one; returns the whole sum.
fn running_sums(lane: u32, own: f32) -> f32 {
    workgroupBarrier();
    values[lane] = own;
    for (var reach = 1u; reach < WG; reach *= 2u) {
        workgroupBarrier();
        var before = 0.0;
        if (lane >= reach) { before = values[lane - reach]; }
        workgroupBarrier();
        values[lane] += before;
    }
    workgroupBarrier();
    return values[WG - 1u];
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * shape.v;
    let begin = min(shape.v, lane * shape.run);
    let end = min(shape.v, begin + shape.run);
    let temperature = sampling[0];
    let top_k = sampling[1];
    let top_p = sampling[2];
    let min_p = sampling[3];
    let at = u32(clamp(cursor[group.x], 0, i32(shape.steps) - 1));

    if (lane == 0u) { atomicStore(&bad, 0u); }  // not every driver starts workgroup memory at zero
    workgroupBarrier();
    var best = Peak(LOWEST, shape.v - 1u);
    var raw = Peak(LOWEST, shape.v - 1u);
    for (var i = begin; i < end; i++) {
        let forbidden = bias[i] == 0xff800000u; // -inf
        if (not_finite(logits[row + i]) || (not_finite(bias[i]) && !forbidden)) { atomicStore(&bad, 1u); }
        let logit = bitcast<f32>(logits[row + i]);
        if (logit > raw.value) { raw = Peak(logit, i); }
        let value = score(row, i);
        if (value > best.value) { best = Peak(value, i); }
    }
    best = peak_of(lane, best);
    raw = peak_of(lane, raw);
    var own = 0.0;
    for (var i = begin; i < end; i++) { own += weight(bitcast<f32>(logits[row + i]), raw.value, 1.0); }
    let raw_sum = running_sums(lane, own);

    // Tokens below `floor_key` do not stay. Each bit of the floor is kept while enough stays above it.
    var floor_key = 0u;
    if (top_k > 0.0 && top_k < f32(shape.v)) {
        for (var bit = 32u; bit > 0u; bit--) {
            let tried = floor_key | (1u << (bit - 1u));
            own = 0.0;
            for (var i = begin; i < end; i++) { own += select(0.0, 1.0, key(score(row, i)) >= tried); }
            if (running_sums(lane, own) >= top_k) { floor_key = tried; }
        }
    }
    if (top_p < 1.0) {
        own = 0.0;
        for (var i = begin; i < end; i++) {
            let value = score(row, i);
            if (key(value) >= floor_key) { own += weight(value, best.value, temperature); }
        }
        let wanted = top_p * running_sums(lane, own);
        var nucleus = 0u;
        for (var bit = 32u; bit > 0u; bit--) {
            let tried = nucleus | (1u << (bit - 1u));
            own = 0.0;
            for (var i = begin; i < end; i++) {
                let value = score(row, i);
                if (key(value) >= max(tried, floor_key)) { own += weight(value, best.value, temperature); }
            }
            if (running_sums(lane, own) >= wanted) { nucleus = tried; }
        }
        floor_key = max(floor_key, nucleus);
    }

    // The first token at which the running sum of what stays reaches the draw.
    own = 0.0;
    for (var i = begin; i < end; i++) {
        let value = score(row, i);
        let w = weight(value, best.value, temperature);
        if (key(value) >= floor_key && w >= min_p) { own += w; }
    }
    let target_sum = f32(draws[group.x * shape.steps + at]) / 4294967296.0 * running_sums(lane, own);
    var running = 0.0;
    if (lane > 0u) { running = values[lane - 1u]; }
    var first = shape.v;
    var last = 0u;
    for (var i = begin; i < end; i++) {
        let value = score(row, i);
        let w = weight(value, best.value, temperature);
        if (w > 0.0 && key(value) >= floor_key && w >= min_p) {
            running += w;
            last = i;
            if (target_sum <= running && first == shape.v) { first = i; }
        }
    }
    let reached = peak_of(lane, Peak(-f32(first), first));
    let final_place = peak_of(lane, Peak(f32(last), last));

    if (lane == 0u) {
        var choice = i32(select(reached.place, final_place.place, reached.place == shape.v));
        if (temperature == 0.0) { choice = i32(best.place); }
        if (best.value == LOWEST) { choice = NO_CANDIDATE; }
        if (atomicLoad(&bad) != 0u) { choice = NOT_FINITE; }
        token[group.x] = choice;
        if (cursor[group.x] < i32(shape.steps)) {
            let slot = group.x * 2u * shape.steps + at;
            out[slot] = choice;
            if (choice >= 0) {
                let logprob = bitcast<f32>(logits[row + u32(choice)]) - raw.value - log(raw_sum);
                out[slot + shape.steps] = bitcast<i32>(logprob);
                counts[row + u32(choice)] += 1;
            }
        }
        cursor[group.x] += 1;
    }
}
