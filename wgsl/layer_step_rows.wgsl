// layer_step: both norms, the convolution and the choice of experts; reference: backend/reference/step.py; test: tests/ops/test_step.py
// One workgroup per row; each thread has columns of its own. Every logit is summed in the same order: equal router rows tie.
//#include layer_step
//#include row_reduce
//#include logit_key
//#include layer_step_past
//#include layer_step_choice

@group(0) @binding(0) var<storage, read> x: array<f32>;              // (B, D)
@group(0) @binding(1) var<storage, read> norm_conv: array<f32>;      // (D)
@group(0) @binding(2) var<storage, read> conv: array<f32>;           // (D, K)
@group(0) @binding(3) var<storage, read> norm_moe: array<f32>;       // (D)
@group(0) @binding(4) var<storage, read> weights: array<f32>;        // (M), of which the router
@group(0) @binding(5) var<storage, read> state: array<f32>;          // (B, Q, D), oldest row first
@group(0) @binding(6) var<storage, read_write> records: array<f32>;  // (B, record) =
@group(0) @binding(7) var<uniform> shape: Step;

const AT_ONCE = 8u; // experts whose partial sums are in workgroup memory at the same time
var<workgroup> partial: array<f32, 2048>; // (AT_ONCE, WG)
var<workgroup> columns: array<f32, 256>; // (WG / AT_ONCE, AT_ONCE)

// The logits of AT_ONCE experts from `first` on; m of the thread's columns is kept the first time.
fn score(row: u32, first: u32, thread: u32, scale: f32) {
    var shares = array<f32, AT_ONCE>();
    for (var c = thread; c < shape.d; c += WG) {
        let m = norm_moe[c] * records[a_at(row) + c] * scale;
        if (first == 0u) { records[m_at(row) + c] = m; }
        for (var e = 0u; e < AT_ONCE; e++) { shares[e] += m * weights[min(first + e, shape.e - 1u) * shape.d + c]; }
    }
    let count = min(AT_ONCE, shape.e - first);
    if (WG == 1u) {
        for (var e = 0u; e < count; e++) { records[logits_at(row) + first + e] = shares[e]; }
        return;
    }
    for (var e = 0u; e < AT_ONCE; e++) { partial[e * WG + thread] = shares[e]; }
    workgroupBarrier();
    let run = WG / AT_ONCE;
    var sum = 0.0;
    for (var i = 0u; i < AT_ONCE; i++) { sum += partial[thread % AT_ONCE * WG + thread / AT_ONCE + i * run]; }
    columns[thread] = sum;
    workgroupBarrier();
    if (thread < count) {
        sum = 0.0;
        for (var i = 0u; i < run; i++) { sum += columns[i * AT_ONCE + thread]; }
        records[logits_at(row) + first + thread] = sum;
    }
}

fn logit(row: u32, e: u32) -> f32 { return records[logits_at(row) + e]; }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let row = group.x + group.y * groups.x;
    if (row >= shape.b) { return; }
    var squares = 0.0;
    for (var c = thread; c < shape.d; c += WG) {
        let value = x[row * shape.d + c];
        squares += value * value;
        records[a_at(row) + c] = past(row, c, value);
    }
    var scale = 1.0 / sqrt(row_sum(thread, squares) / f32(shape.d) + 1e-5);
    squares = 0.0;
    for (var c = thread; c < shape.d; c += WG) {
        let n = norm_conv[c] * x[row * shape.d + c] * scale;
        let a = records[a_at(row) + c] + conv[c * shape.taps] * n;
        records[n_at(row) + c] = n;
        records[a_at(row) + c] = a;
        squares += a * a;
    }
    scale = 1.0 / sqrt(row_sum(thread, squares) / f32(shape.d) + 1e-5);
    for (var first = 0u; first < shape.e; first += AT_ONCE) { score(row, first, thread, scale); }
    if (WG > 1u) { storageBarrier(); }
    for (var e = thread; e < shape.e; e += WG) {
        let place = place_of(row, e);
        if (place < shape.k) { records[chosen_at(row) + place] = f32(e); }
    }
    if (WG > 1u) { storageBarrier(); }
    for (var i = thread; i < shape.k; i += WG) { records[gates_at(row) + i] = gate(row, i); }
}
