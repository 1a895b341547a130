// conv_bwd: dn[t,c] = sum_{j: pos[t+j]>=j} da[t+j,c] * w[c,j]; dw[c,j] += sum_t da[t,c] * n[t-j,c]; reference: backend/reference/conv.py; test: tests/ops/test_conv.py
// The first `element_groups` workgroups have WG elements of dn each; the others columns of one tap over a part of the rows.
// One part adds to dw; several leave sums for sum_parts.
override WG: u32 = 256u;
//#include column_reduce

struct Shape { n: u32, d: u32, k: u32, element_groups: u32, column_groups: u32, parts: u32, rows: u32 } // rows of one part

@group(0) @binding(0) var<storage, read> n: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> w: array<f32>;  // (D, K)
@group(0) @binding(2) var<storage, read> pos: array<i32>;  // (N)
@group(0) @binding(3) var<storage, read> da: array<f32>;  // (N, D)
@group(0) @binding(4) var<storage, read_write> dn: array<f32>;  // (N, D) =
@group(0) @binding(5) var<storage, read_write> dw: array<f32>;  // (D, K) +=, or (parts, D, K) =
@group(0) @binding(6) var<uniform> shape: Shape;

fn set_element(i: u32) {
    if (i >= shape.n * shape.d) { return; }
    let t = i / shape.d;
    let c = i % shape.d;
    let taps = min(shape.k, shape.n - t);
    var sum = 0.0;
    for (var j = 0u; j < taps; j++) {
        if (pos[t + j] >= i32(j)) { sum += da[i + j * shape.d] * w[c * shape.k + j]; }
    }
    dn[i] = sum;
}

fn term(t: u32, c: u32, j: u32) -> f32 {
    if (t < j || pos[t] < i32(j)) { return 0.0; }
    return da[t * shape.d + c] * n[(t - j) * shape.d + c];
}

fn add_columns(first: u32, j: u32, part: u32, thread: u32) {
    let sum = column_of_part(first, part, j, thread);
    let c = first + thread;
    if (thread < WG / SHARES && c < shape.d) {
        let place = (part * shape.d + c) * shape.k + j;
        if (shape.parts == 1u) { dw[place] += sum; } else { dw[place] = sum; }
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let group = id.x + id.y * groups.x;
    if (group < shape.element_groups) {
        set_element(group * WG + thread);
        return;
    }
    let number = group - shape.element_groups;
    let block = number / shape.column_groups;
    if (block / shape.k < shape.parts) {
        add_columns(number % shape.column_groups * (WG / SHARES), block % shape.k, block / shape.k, thread);
    }
}
