// adamw: one step on p, m and v, skipped as a whole if stats[1] != 0; reference: backend/reference/optim.py; test: tests/ops/test_optim.py
// One invocation per element.

//#include half

struct Shape { count: u32, round_half: u32, block: u32 }  // elements per group value

struct Hyper {  // in the order of ops.HYPER
    lr: f32, beta1: f32, one_minus_beta1: f32, beta2: f32, one_minus_beta2: f32, eps: f32, weight_decay: f32,
    bias_correction1: f32, bias_correction2: f32, grad_scale: f32, inv_grad_scale: f32, max_grad_norm: f32,
}

@group(0) @binding(0) var<storage, read> g: array<u32>;  // (P), the bits of floats
@group(0) @binding(1) var<storage, read> group: array<f32>;  // (G): 1 decayed, 0 not, -1 left alone
@group(0) @binding(2) var<storage, read> hyper: Hyper;
@group(0) @binding(3) var<storage, read> stats: array<f32>;  // (2): squared norm, not finite
@group(0) @binding(4) var<storage, read_write> p: array<f32>;  // (P)
@group(0) @binding(5) var<storage, read_write> m: array<f32>;  // (P)
@group(0) @binding(6) var<storage, read_write> v: array<f32>;  // (P)
@group(0) @binding(7) var<uniform> shape: Shape;

const WG = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = id.x + id.y * groups.x * WG;
    if (i >= shape.count || stats[1] != 0.0) { return; }
    let kind = group[i / shape.block];
    if (kind < 0.0) { return; }
    var bits = g[i];
    if (shape.round_half == 1u) { bits = round_to_half(bits); }
    var gradient = bitcast<f32>(bits) * hyper.inv_grad_scale;
    let norm = sqrt(stats[0]);
    if (hyper.max_grad_norm > 0.0 && norm > hyper.max_grad_norm) { gradient *= hyper.max_grad_norm / norm; }

    let first = m[i] * hyper.beta1 + hyper.one_minus_beta1 * gradient;
    let second = v[i] * hyper.beta2 + hyper.one_minus_beta2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    let step = first / hyper.bias_correction1 / (sqrt(second / hyper.bias_correction2) + hyper.eps);
    p[i] -= hyper.lr * (step + hyper.weight_decay * kind * p[i]);
}
