// rmsnorm_bwd: dx += rstd*(g*dy) - x*rstd^3*mean(g*dy*x), dg += sum_n dy*x*rstd; reference: backend/reference/norm.py; test: tests/ops/test_norm.py
// The first `row_groups` workgroups have WG / LANES rows of dx each; the others columns of dg over a part of the rows.
// One part adds to dg; several leave sums for sum_parts.
//#include row_reduce
//#include column_reduce

struct Shape { n: u32, d: u32, row_groups: u32, column_groups: u32, parts: u32, rows: u32 } // rows of one part

@group(0) @binding(0) var<storage, read> x: array<f32>;  // (N, D)
@group(0) @binding(1) var<storage, read> g: array<f32>;  // (D)
@group(0) @binding(2) var<storage, read> rstd: array<f32>;  // (N)
@group(0) @binding(3) var<storage, read> dy: array<f32>;  // (N, D)
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;  // (N, D) +=
@group(0) @binding(5) var<storage, read_write> dg: array<f32>;  // (D) +=, or (parts, D) =
@group(0) @binding(6) var<uniform> shape: Shape;

fn add_rows(first: u32, thread: u32) {
    let row = first + thread / LANES;
    let start = min(row, shape.n - 1u) * shape.d;
    let lane = thread % LANES;
    var sum = 0.0;
    for (var c = lane; c < shape.d; c += LANES) { sum += g[c] * dy[start + c] * x[start + c]; }
    sum = row_sum(thread, sum);
    if (row >= shape.n) { return; }
    let scale = rstd[row];
    let pull = sum / f32(shape.d) * scale * scale * scale;
    for (var c = lane; c < shape.d; c += LANES) {
        dx[start + c] += scale * (g[c] * dy[start + c]) - x[start + c] * pull;
    }
}

fn term(t: u32, c: u32, tap: u32) -> f32 { // there are no taps
    return dy[t * shape.d + c] * x[t * shape.d + c] * rstd[t];
}

fn add_columns(first: u32, part: u32, thread: u32) {
    let sum = column_of_part(first, part, 0u, thread);
    let c = first + thread;
    if (thread < WG / SHARES && c < shape.d) {
        if (shape.parts == 1u) { dg[c] += sum; } else { dg[part * shape.d + c] = sum; }
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let group = id.x + id.y * groups.x;
    if (group < shape.row_groups) {
        add_rows(group * (WG / LANES), thread);
        return;
    }
    let number = group - shape.row_groups;
    let part = number / shape.column_groups;
    if (part < shape.parts) { add_columns(number % shape.column_groups * (WG / SHARES), part, thread); }
}
