// layer_step: both norms, the convolution, the choice of experts and hidden = relu(w1 m + b1) at once; reference: backend/reference/step.py; test: tests/ops/test_step.py
// Every workgroup makes m of its row anew: for few rows that is less than the wait for another dispatch. The first one that
// has the last of the chosen experts leaves what layer_step_down needs. LANES threads per value of hidden, or per logit: each
// logit is summed in the same order, so equal router rows tie.
//#include layer_step
//#include row_reduce
//#include row_dot
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
const OWN = 4u; // columns of a thread at most: MOST / WG
const SUMS = 16u;
var<workgroup> values: array<f32, MOST>; // m, then the numbers of the chosen experts
var<workgroup> given: array<vec4<f32>, 256>; // m, and zeros up to the next multiple of 4
var<workgroup> logits: array<f32, MOST>;
var<workgroup> sums: array<f32, SUMS>;

fn logit(row: u32, e: u32) -> f32 { return logits[e]; }
fn chosen(row: u32, i: u32) -> u32 { return u32(values[i]); }

// The sum over all threads, with two barriers.
fn whole_sum(thread: u32, value: f32) -> f32 {
    lane_values[thread].x = value;
    workgroupBarrier();
    var sum = 0.0;
    if (thread < SUMS) {
        for (var i = thread; i < WG; i += SUMS) { sum += lane_values[i].x; }
        sums[thread] = sum;
    }
    workgroupBarrier();
    sum = 0.0;
    for (var i = 0u; i < SUMS; i++) { sum += sums[i]; }
    return sum;
}

// given = m; `leads` leaves a and n in the row's record.
fn normed(row: u32, thread: u32, leads: bool) {
    // All that is to be read is read at once, before the first wait.
    var own = array<vec4<f32>, OWN>(); // of a column: x, what the past brings, norm_conv, the newest tap of conv
    var gains = vec4<f32>();
    var squares = 0.0;
    for (var i = 0u; i < OWN; i++) {
        let c = thread + i * WG;
        if (c < shape.d) {
            let value = x[row * shape.d + c];
            own[i] = vec4<f32>(value, past(row, c, value), norm_conv[c], conv[c * shape.taps]);
            gains[i] = norm_moe[c];
            squares += value * value;
        }
    }
    var scale = 1.0 / sqrt(whole_sum(thread, squares) / f32(shape.d) + 1e-5);
    squares = 0.0;
    var a = vec4<f32>();
    for (var i = 0u; i < OWN; i++) {
        let c = thread + i * WG;
        let n = own[i].z * own[i].x * scale;
        a[i] = own[i].y + own[i].w * n;
        squares += a[i] * a[i];
        if (leads && c < shape.d) {
            records[n_at(row) + c] = n;
            records[a_at(row) + c] = a[i];
        }
    }
    scale = 1.0 / sqrt(whole_sum(thread, squares) / f32(shape.d) + 1e-5);
    for (var i = 0u; i < OWN; i++) {
        let c = thread + i * WG;
        if (c < MOST) { values[c] = gains[i] * a[i] * scale; } // 0 from D on, if the sums are numbers
    }
    workgroupBarrier();
    for (var i = thread; i < shape.wide / 4u; i += WG) {
        let at = 4u * i;
        let m = vec4<f32>(values[at], values[at + 1u], values[at + 2u], values[at + 3u]);
        given[i] = select(vec4<f32>(), m, vec4<u32>(at, at + 1u, at + 2u, at + 3u) < vec4<u32>(shape.d));
    }
    workgroupBarrier();
}

// values = the chosen experts; `leads` leaves them and their gates in the row's record.
fn choose(row: u32, thread: u32, leads: bool) {
    for (var first = 0u; first < shape.e; first += WG / LANES) {
        let e = first + thread / LANES;
        let sum = row_sum(thread, share_of_product(min(e, shape.e - 1u) * shape.d, 0u, shape.d, thread % LANES));
        if (thread % LANES == 0u && e < shape.e) { logits[e] = sum; }
    }
    workgroupBarrier();
    for (var e = thread; e < shape.e; e += WG) {
        let place = place_of(row, e);
        if (place < shape.k) { values[place] = f32(e); }
    }
    workgroupBarrier();
    if (leads) {
        for (var i = thread; i < shape.k; i += WG) {
            records[chosen_at(row) + i] = values[i];
            records[gates_at(row) + i] = gate(row, i);
        }
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let slot = group.y;
    let row = group.z;
    let leads = group.x == 0u && slot == shape.k;
    normed(row, thread, leads);
    var expert = 0u; // the shared one
    if (slot > 0u) {
        choose(row, thread, leads);
        expert = 1u + chosen(row, slot - 1u);
    }
    let h = group.x * (WG / LANES) + thread / LANES;
    let start = expert_at(expert);
    let sum = row_sum(thread, share_of_product(start + min(h, shape.h - 1u) * shape.d, 0u, shape.d, thread % LANES));
    if (thread % LANES == 0u && h < shape.h) {
        let bias = start + shape.b1 + h;
        let value = sum + weights[bias / 4u][bias % 4u];
        hidden[(row * (shape.k + 1u) + slot) * shape.deep + h] = select(value, 0.0, value < 0.0); // NaN stays NaN
    }
}
