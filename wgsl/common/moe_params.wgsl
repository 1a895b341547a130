// Shapes of a mixture of experts, and where its parts lie in the block W or dW (layout.MoeLayout), in elements.
// Expert 0 is the shared one; expert e > 0 is the routed expert e-1.

struct Moe {
    n: u32, d: u32, h: u32, e: u32, k: u32,
    experts: u32, stride: u32, b1: u32, w2: u32, b2: u32, // w1 is at 0 of an expert
    column_sums: u32, // in backward: in how many parts moe_bwd_hidden leaves a sum over H
    parts: u32, // in backward: in how many parts of the rows moe_bwd_weights makes the shared expert's gradient
}

fn expert_at(expert: u32) -> u32 { return moe.experts + expert * moe.stride; }
