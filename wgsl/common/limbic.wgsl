// The limbic model's sizes and the parts that forward and backward share. The kernel binds x, s and W.
struct Shape {
    n: u32, inputs: u32, hidden: u32, states: u32,
    ws: u32, a_logit: u32, wout_state: u32, bout_state: u32, wout_reward: u32, bout_reward: u32,  // layout.limbic_layout
    params: u32, record: u32,  // of W; words that backward keeps per row
}

// A clamp may turn NaN into one of its bounds, so NaN is asked for by its bits.
fn is_nan(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u;
}

// The built-in gives NaN for large inputs on some GPUs.
fn safe_tanh(value: f32) -> f32 {
    if (is_nan(value)) { return value; }
    return tanh(clamp(value, -15.0, 15.0));
}

fn stay(unit: u32) -> f32 {  // how much of the old state stays
    let logit = W[shape.a_logit + unit];
    if (is_nan(logit)) { return logit; }
    return 1.0 / (1.0 + exp(clamp(-logit, -80.0, 80.0)));
}

fn fresh(row: u32, unit: u32) -> f32 {  // tanh(win x + ws s)
    var sum = 0.0;
    for (var i = 0u; i < shape.inputs; i++) { sum += W[unit * shape.inputs + i] * x[row * shape.inputs + i]; }
    for (var i = 0u; i < shape.states; i++) {
        sum += W[shape.ws + unit * shape.states + i] * s[row * shape.states + i];
    }
    return safe_tanh(sum);
}
