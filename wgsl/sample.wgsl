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
var<workgroup> values: array<vec2<f32>, WG>;
var<workgroup> places: array<vec2<u32>, WG>;

struct Peaks { values: vec2<f32>, places: vec2<u32> } // two of them, found side by side

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

// The largest of all lanes' values and the first place that has it, twice.
fn peaks_of(lane: u32, own: Peaks) -> Peaks {
    workgroupBarrier();
    values[lane] = own.values;
    places[lane] = own.places;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let mine = values[lane];
            let other = values[lane + half];
            let earlier = places[lane + half] < places[lane];
            let better = (other > mine) | ((other == mine) & earlier);
            values[lane] = select(mine, other, better);
            places[lane] = select(places[lane], places[lane + half], better);
        }
    }
    workgroupBarrier();
    return Peaks(values[0], places[0]);
}

// values[lane] = the sums over the lanes up to this one; returns the whole sums.
fn running_sums(lane: u32, own: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    values[lane] = own;
    for (var reach = 1u; reach < WG; reach *= 2u) {
        workgroupBarrier();
        var before = vec2<f32>();
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
    var found = Peaks(vec2<f32>(LOWEST), vec2<u32>(shape.v - 1u)); // after bias and penalties, and before
    for (var i = begin; i < end; i++) {
        let forbidden = bias[i] == 0xff800000u; // -inf
        if (not_finite(logits[row + i]) || (not_finite(bias[i]) && !forbidden)) { atomicStore(&bad, 1u); }
        let logit = bitcast<f32>(logits[row + i]);
        let tried = vec2<f32>(score(row, i), logit);
        let better = tried > found.values;
        found = Peaks(select(found.values, tried, better), select(found.places, vec2<u32>(i), better));
    }
    found = peaks_of(lane, found);
    let best = found.values.x;
    let raw = found.values.y;
    var own = 0.0;

    // Tokens below `floor_key` do not stay. Each bit of the floor is kept while enough stays above it.
    var floor_key = 0u;
    if (top_k > 0.0 && top_k < f32(shape.v)) {
        for (var bit = 32u; bit > 0u; bit--) {
            let tried = floor_key | (1u << (bit - 1u));
            own = 0.0;
            for (var i = begin; i < end; i++) { own += select(0.0, 1.0, key(score(row, i)) >= tried); }
            if (running_sums(lane, vec2<f32>(own)).x >= top_k) { floor_key = tried; }
        }
    }
    if (top_p < 1.0) {
        own = 0.0;
        for (var i = begin; i < end; i++) {
            let value = score(row, i);
            if (key(value) >= floor_key) { own += weight(value, best, temperature); }
        }
        let wanted = top_p * running_sums(lane, vec2<f32>(own)).x;
        var nucleus = 0u;
        for (var bit = 32u; bit > 0u; bit--) {
            let tried = nucleus | (1u << (bit - 1u));
            own = 0.0;
            for (var i = begin; i < end; i++) {
                let value = score(row, i);
                if (key(value) >= max(tried, floor_key)) { own += weight(value, best, temperature); }
            }
            if (running_sums(lane, vec2<f32>(own)).x >= wanted) { nucleus = tried; }
        }
        floor_key = max(floor_key, nucleus);
    }

    // The first token at which the running sum of what stays reaches the draw; beside it the sum of the model's own softmax.
    var both = vec2<f32>();
    for (var i = begin; i < end; i++) {
        let value = score(row, i);
        let w = weight(value, best, temperature);
        let stays = key(value) >= floor_key && w >= min_p;
        both += vec2<f32>(select(0.0, w, stays), weight(bitcast<f32>(logits[row + i]), raw, 1.0));
    }
    let sums = running_sums(lane, both);
    let target_sum = f32(draws[group.x * shape.steps + at]) / 4294967296.0 * sums.x;
    var running = 0.0;
    if (lane > 0u) { running = values[lane - 1u].x; }
    var first = shape.v;
    var last = 0u;
    for (var i = begin; i < end; i++) {
        let value = score(row, i);
        let w = weight(value, best, temperature);
        if (w > 0.0 && key(value) >= floor_key && w >= min_p) {
            running += w;
            last = i;
            if (target_sum <= running && first == shape.v) { first = i; }
        }
    }
    let ends = peaks_of(lane, Peaks(vec2<f32>(-f32(first), f32(last)), vec2<u32>(first, last))).places;

    if (lane == 0u) {
        var choice = i32(select(ends.x, ends.y, ends.x == shape.v));
        if (temperature == 0.0) { choice = i32(found.places.x); }
        if (best == LOWEST) { choice = NO_CANDIDATE; }
        if (atomicLoad(&bad) != 0u) { choice = NOT_FINITE; }
        token[group.x] = choice;
        if (cursor[group.x] < i32(shape.steps)) {
            let slot = group.x * 2u * shape.steps + at;
            out[slot] = choice;
            if (choice >= 0) {
                let logprob = bitcast<f32>(logits[row + u32(choice)]) - raw - log(sums.y);
                out[slot + shape.steps] = bitcast<i32>(logprob);
                counts[row + u32(choice)] += 1;
            }
        }
        cursor[group.x] += 1;
    }
}
