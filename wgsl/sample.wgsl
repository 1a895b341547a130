// sample: the next token of each sequence, greedy or drawn; reference: backend/reference/sample.py; test: tests/ops/test_sample.py
// One workgroup per sequence; each lane holds a run of neighbouring tokens, so that sums run in index order.

//#include finite

struct Shape { v: u32, steps: u32, run: u32 }  // run: tokens of one lane

@group(0) @binding(0) var<storage, read> logits: array<u32>;  // (B, V), the bits of floats
@group(0) @binding(1) var<storage, read> sampling: array<f32>;  // (16): temperature first
@group(0) @binding(2) var<storage, read> draws: array<u32>;  // (B, S)
@group(0) @binding(3) var<storage, read_write> token: array<i32>;  // (B)
@group(0) @binding(4) var<storage, read_write> cursor: array<i32>;  // (B)
@group(0) @binding(5) var<storage, read_write> out: array<i32>;  // (B, S)
@group(0) @binding(6) var<uniform> shape: Shape;

const WG = 256u;
const LOWEST = -3.4028234e38;
var<workgroup> bad: atomic<u32>;
var<workgroup> values: array<f32, WG>;
var<workgroup> places: array<u32, WG>;

// exp((logit - largest) / temperature) without a division that overflows.
fn weight(logit: f32, largest: f32, temperature: f32) -> f32 {
    let below = logit - largest;
    if (below == 0.0) { return 1.0; }
    if (below < -100.0 * temperature) { return 0.0; }
    return exp(below / temperature);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.x * shape.v;
    let begin = min(shape.v, lane * shape.run);
    let end = min(shape.v, begin + shape.run);
    let temperature = sampling[0];
    let at = u32(clamp(cursor[group.x], 0, i32(shape.steps) - 1));

    if (lane == 0u) { atomicStore(&bad, 0u); }  // not every driver starts workgroup memory at zero
    workgroupBarrier();

    // The largest logit, and the first place that has it.
    var largest = LOWEST;
    var place = shape.v - 1u;
    for (var i = begin; i < end; i++) {
        let bits = logits[row + i];
        if (not_finite(bits)) { atomicStore(&bad, 1u); }
        let logit = bitcast<f32>(bits);
        if (logit > largest || i == begin) {
            largest = logit;
            place = i;
        }
    }
    values[lane] = largest;
    places[lane] = place;
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
    largest = values[0];
    let first_largest = places[0];
    workgroupBarrier();

    // values[lane] = the sum of all weights up to the end of the lane's run.
    var own = 0.0;
    for (var i = begin; i < end; i++) { own += weight(bitcast<f32>(logits[row + i]), largest, temperature); }
    values[lane] = own;
    for (var reach = 1u; reach < WG; reach *= 2u) {
        workgroupBarrier();
        var before = 0.0;
        if (lane >= reach) { before = values[lane - reach]; }
        workgroupBarrier();
        values[lane] += before;
    }
    workgroupBarrier();

    // The first place at which the running sum reaches the draw.
    let target_sum = f32(draws[group.x * shape.steps + at]) / 4294967296.0 * values[WG - 1u];
    var running = 0.0;
    if (lane > 0u) { running = values[lane - 1u]; }
    place = shape.v - 1u;
    for (var i = begin; i < end; i++) {
        running += weight(bitcast<f32>(logits[row + i]), largest, temperature);
        if (target_sum <= running) {
            place = i;
            break;
        }
    }
    places[lane] = place;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) { places[lane] = min(places[lane], places[lane + half]); }
    }

    if (lane == 0u) {
        var choice = i32(places[0]);
        if (temperature == 0.0) { choice = i32(first_largest); }
        if (atomicLoad(&bad) != 0u) { choice = -1; }
        token[group.x] = choice;
        if (cursor[group.x] < i32(shape.steps)) { out[group.x * shape.steps + at] = choice; }
        cursor[group.x] += 1;
    }
}
