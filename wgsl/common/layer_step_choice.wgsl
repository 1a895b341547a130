// The choice of experts for a row. The kernel says where the logits are: `fn logit(row, e) -> f32`; and has the binding records.

// The place of expert e when all are sorted, largest logit first, equal ones lowest index first.
fn place_of(row: u32, e: u32) -> u32 {
    let own = key_of(logit(row, e));
    var before = 0u;
    for (var other = 0u; other < shape.e; other++) {
        let key = key_of(logit(row, other));
        before += select(0u, 1u, key > own || (key == own && other < e));
    }
    return before;
}

// Softmax over the chosen experts' logits, of the i-th; NaN if any logit is: its expert is passed over, but the gates tell.
fn gate(row: u32, i: u32) -> f32 {
    let top = logit(row, u32(records[chosen_at(row)]));
    var sum = 0.0;
    for (var j = 0u; j < shape.k; j++) { sum += exp(logit(row, u32(records[chosen_at(row) + j])) - top); }
    var bad = false;
    for (var e = 0u; e < shape.e; e++) { bad = bad || key_of(logit(row, e)) == 0u; }
    let value = exp(logit(row, u32(records[chosen_at(row) + i])) - top) / sum;
    return select(value, bitcast<f32>(0x7fc00000u | i), bad);
}
