// head_xent_fwd: loss += sum of the row losses; reference: backend/reference/head.py; test: tests/ops/test_head.py
//#include loss_sum

struct Shape { n: u32 }

@group(0) @binding(0) var<storage, read> row_loss: array<u32>;      // (N), f32 as bits
@group(0) @binding(1) var<storage, read_write> loss: array<u32>;    // (1) +=, f32 as bits
@group(0) @binding(2) var<uniform> shape: Shape;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32) { add_loss(thread, shape.n); }
