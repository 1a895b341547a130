// Four neighbours from `at` on, none beyond the last of `count`.
fn four_of(at: u32, count: u32) -> vec4<u32> {
    return min(vec4<u32>(at) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(count - 1u));
}
