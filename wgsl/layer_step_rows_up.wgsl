// layer_step: both norms, the convolution, the choice of experts and hidden = relu(w1 m + b1) at once; reference: backend/reference/step.py; test: tests/ops/test_step.py
// Every workgroup makes m of its row anew: for few rows that is less than the wait for another dispatch. The first one that
// has the last of the chosen experts leaves what layer_step_down needs. LANES threads per value of hidden, or per logit: each
// logit is summed in the same order, so equal router rows tie.
//#include layer_step
//#include row_reduce
//#include row_dot
//#include layer_step_hidden
//#include logit_key
//#include layer_step_past
//#include layer_step_choice

@group(0) @binding(0) var<storage, read> x: array<f32>;              // (B, D)
@group(0) @binding(1) var<storage, read> norm_conv: array<f32>;      // (D)
@group(0) @binding(2) var<storage, read> conv: array<f32>;           // (D, K)
@group(0) @binding(3) var<storage, read> norm_moe: array<f32>;       // (D)
@group(0) @binding(4) var<storage, read> weights: array<vec4<f32>>;  // (M)
@group(0) @binding(5) var<storage, read> state: array<f32>;          // (B, Q, D), oldest row first
@group(0) @binding(6) var<storage, read_write> records: array<f32>;  // (B, record) =, without m and logits
@group(0) @binding(7) var<storage, read_write> hidden: array<f32>;   // (B, k+1, deep) =
@group(0) @binding(8) var<uniform> shape: Step;

const MOST = 1024u; // D and E at most, for 16 KiB of workgroup memory
var<workgroup> a_values: array<f32, MOST>;
var<workgroup> given: array<vec4<f32>, 256>; // m, and zeros up to the next multiple of 4
var<workgroup> logits: array<f32, MOST>;
var<workgroup> group_sums: array<f32, 32>; // of LANES threads each
var<workgroup> expert: u32; // 0 is the shared one

fn logit(row: u32, e: u32) -> f32 { return logits[e]; }

// The sum over all threads.
fn whole_sum(thread: u32, value: f32) -> f32 {
    let part = row_sum(thread, value);
    if (thread % LANES == 0u) { group_sums[thread / LANES] = part; }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < WG / LANES; i++) { sum += group_sums[i]; }
    workgroupBarrier();
    return sum;
}

// given = m, a_values = a; `leads` leaves a and n in the row's record.
fn normed(row: u32, thread: u32, leads: bool) {
    var squares = 0.0;
    for (var c = thread; c < shape.d; c += WG) {
        let value = x[row * shape.d + c];
        squares += value * value;
        a_values[c] = past(row, c, value);
    }
    var scale = 1.0 / sqrt(whole_sum(thread, squares) / f32(shape.d) + 1e-5);
    squares = 0.0;
    for (var c = thread; c < shape.d; c += WG) {
        let n = norm_conv[c] * x[row * shape.d + c] * scale;
        let a = a_values[c] + conv[c * shape.taps] * n;
        a_values[c] = a;
        squares += a * a;
        if (leads) {
            records[n_at(row) + c] = n;
            records[a_at(row) + c] = a;
        }
    }
    scale = 1.0 / sqrt(whole_sum(thread, squares) / f32(shape.d) + 1e-5);
    for (var i = thread; i < shape.wide / 4u; i += WG) {
        var m = vec4<f32>();
        for (var j = 0u; j < min(4u, shape.d - 4u * i); j++) { m[j] = norm_moe[4u * i + j] * a_values[4u * i + j] * scale; }
        given[i] = m;
    }
    workgroupBarrier();
}

// expert = the one that is `slot`-th; `leads` leaves all chosen ones and their gates in the row's record.
fn choose(row: u32, thread: u32, slot: u32, leads: bool) {
    for (var first = 0u; first < shape.e; first += WG / LANES) {
        let e = first + thread / LANES;
        let sum = row_sum(thread, share_of_product(min(e, shape.e - 1u) * shape.d, 0u, shape.d, thread % LANES));
        if (thread % LANES == 0u && e < shape.e) { logits[e] = sum; }
    }
    workgroupBarrier();
    for (var e = thread; e < shape.e; e += WG) {
        let place = place_of(row, e);
        if (place + 1u == slot) { expert = e + 1u; }
        if (leads && place < shape.k) { records[chosen_at(row) + place] = f32(e); }
    }
    storageBarrier();
    if (leads) {
        for (var i = thread; i < shape.k; i += WG) { records[gates_at(row) + i] = gate(row, i); }
    }
    workgroupBarrier();
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let slot = group.y;
    let row = group.z;
    let leads = group.x == 0u && slot == shape.k;
    if (thread == 0u) { expert = 0u; }
    normed(row, thread, leads);
    if (slot > 0u) { choose(row, thread, slot, leads); }
    put_hidden(group.x, slot, row, expert, 0u, thread);
}
