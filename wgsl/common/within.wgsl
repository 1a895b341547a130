// Four places, none beyond the last of `count`.
fn within(at: vec4<u32>, count: u32) -> vec4<u32> {
    return min(at, vec4<u32>(count - 1u));
}
