// One workgroup's tile of a matrix product: C (4W, 4W) = A (4W, depth) B (depth, 4W); W*W threads hold 4 by 4 values each.
// The kernel defines `struct Tile { a_by_depth: bool, b_by_depth: bool, ... }`, uniform in the workgroup, and
//   place_a(tile, row) -> vec4<u32>      where rows row..row+3 of A begin; rows outside may give any place inside
//   fetch_a(tile, place, depth) -> vec4<f32>    those four rows of A at one depth
// and the same for the columns of B. a_by_depth: neighbours in depth are neighbours in memory (else rows are).
// The order of the sums depends on the depths only, so repeats give the same bits.

override W: u32 = 16u; // 16 or 8
// Whether tiles go through workgroup memory, which a GPU needs for its speed. A CPU that plays GPU pays dearly for barriers
// (measured on SwiftShader: 4 to 6 times slower, 20 times longer to compile) and reads operands straight from its caches.
override SHARED: bool = true;
const PITCH = 17u; // one more than W, so that threads that store a column of the tile hit different banks
var<workgroup> tile_a: array<vec4<f32>, 272>;
var<workgroup> tile_b: array<vec4<f32>, 272>;

// Values of this thread's rows 4*thread.y + 0..3 (the index), columns 4*thread.x + 0..3, summed over depths from..to-1.
fn tile_product(tile: Tile, thread: vec2<u32>, first: u32, last: u32) -> array<vec4<f32>, 4> {
    if (!SHARED) { return product_without_sharing(tile, thread, first, last); }
    let a_at = select(thread.yx, thread.xy, tile.a_by_depth); // (depth, four rows) that this thread loads
    let b_at = select(thread.yx, thread.xy, tile.b_by_depth);
    let a_place = place_a(tile, 4u * a_at.y);
    let b_place = place_b(tile, 4u * b_at.y);
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var depth = first; depth < last; depth += W) {
        var a = vec4<f32>();
        var b = vec4<f32>();
        if (depth + a_at.x < last) { a = fetch_a(tile, a_place, depth + a_at.x); }
        if (depth + b_at.x < last) { b = fetch_b(tile, b_place, depth + b_at.x); }
        workgroupBarrier(); // the tile before this one has been used
        tile_a[a_at.x * PITCH + a_at.y] = a;
        tile_b[b_at.x * PITCH + b_at.y] = b;
        workgroupBarrier();
        for (var step = 0u; step < W; step++) {
            let left = tile_a[step * PITCH + thread.y];
            let right = tile_b[step * PITCH + thread.x];
            sum0 += left.x * right;
            sum1 += left.y * right;
            sum2 += left.z * right;
            sum3 += left.w * right;
        }
    }
    return array<vec4<f32>, 4>(sum0, sum1, sum2, sum3);
}

fn product_without_sharing(tile: Tile, thread: vec2<u32>, first: u32, last: u32) -> array<vec4<f32>, 4> {
    let a_place = place_a(tile, 4u * thread.y);
    let b_place = place_b(tile, 4u * thread.x);
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var depth = first; depth < last; depth++) {
        let left = fetch_a(tile, a_place, depth);
        let right = fetch_b(tile, b_place, depth);
        sum0 += left.x * right;
        sum1 += left.y * right;
        sum2 += left.z * right;
        sum3 += left.w * right;
    }
    return array<vec4<f32>, 4>(sum0, sum1, sum2, sum3);
}
