// hidden = relu(w1 m + b1) of one expert for a row, by LANES threads per value. Needs layer_step, row_reduce, row_dot, and the
// binding hidden: (B, k+1, deep).

// The values that workgroup `block` makes in `slot` of the row; m lies at `m` of given. All threads must call.
fn put_hidden(block: u32, slot: u32, row: u32, expert: u32, m: u32, thread: u32) {
    let h = block * (WG / LANES) + thread / LANES;
    let start = expert_at(expert);
    let sum = row_sum(thread, share_of_product(start + min(h, shape.h - 1u) * shape.d, m, shape.d, thread % LANES));
    if (thread % LANES == 0u && h < shape.h) {
        let bias = start + shape.b1 + h;
        let value = sum + weights[bias / 4u][bias % 4u];
        hidden[(row * (shape.k + 1u) + slot) * shape.deep + h] = select(value, 0.0, value < 0.0); // NaN stays NaN
    }
}
