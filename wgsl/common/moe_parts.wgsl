// Where moe_bwd_weights leaves the shared expert's gradients of all parts of the rows but the first: (parts - 1, stride).
fn parts_at() -> u32 { return moe.n * (moe.k + 1u) * moe.h + moe.n * moe.k; }
