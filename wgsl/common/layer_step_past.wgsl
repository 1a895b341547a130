// x + what the convolution takes from the past of its column, without the newest row. Needs the bindings conv and state.
fn past(row: u32, c: u32, value: f32) -> f32 {
    let kept = shape.taps - 1u;
    let first = row * shape.q * shape.d + c;
    var sum = value;
    for (var j = 1u; j <= kept; j++) { sum += conv[c * shape.taps + j] * state[first + (kept - j) * shape.d]; }
    return sum;
}
