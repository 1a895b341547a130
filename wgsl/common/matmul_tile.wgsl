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
override LOADS: u32 = 1u; // fours of A and of B that a thread loads at once: depths of a tile / W; at most 4, and LOADS * W * (W+1) <= 288
var<workgroup> tile_a: array<vec4<f32>, 288>; // (depths, W+1): one more than W, so that neighbours in depth hit different banks
var<workgroup> tile_b: array<vec4<f32>, 288>;

// Values of this thread's rows 4*thread.y + 0..3 (the index), columns 4*thread.x + 0..3, summed over depths first..last-1.
fn tile_product(tile: Tile, thread: vec2<u32>, first: u32, last: u32) -> array<vec4<f32>, 4> {
    if (!SHARED) { return product_without_sharing(tile, thread, first, last); }
    let a_at = select(thread.yx, thread.xy, tile.a_by_depth); // (depth, four rows) that this thread loads
    let b_at = select(thread.yx, thread.xy, tile.b_by_depth);
    let a_place = place_a(tile, 4u * a_at.y);
    let b_place = place_b(tile, 4u * b_at.y);
    var a = array<vec4<f32>, 4>();
    var b = array<vec4<f32>, 4>();
    for (var i = 0u; i < LOADS; i++) {
        a[i] = load_a(tile, a_place, first + a_at.x + i * W, last);
        b[i] = load_b(tile, b_place, first + b_at.x + i * W, last);
    }
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var depth = first; depth < last; depth += LOADS * W) {
        workgroupBarrier(); // the tile before this one has been used
        for (var i = 0u; i < LOADS; i++) {
            tile_a[(a_at.x + i * W) * (W + 1u) + a_at.y] = a[i];
            tile_b[(b_at.x + i * W) * (W + 1u) + b_at.y] = b[i];
        }
        workgroupBarrier();
        let next = depth + LOADS * W; // on its way while this tile is used
        for (var i = 0u; i < LOADS; i++) {
            a[i] = load_a(tile, a_place, next + a_at.x + i * W, last);
            b[i] = load_b(tile, b_place, next + b_at.x + i * W, last);
        }
        for (var step = 0u; step < LOADS * W; step++) {
            let left = tile_a[step * (W + 1u) + thread.y];
            let right = tile_b[step * (W + 1u) + thread.x];
            sum0 += left.x * right;
            sum1 += left.y * right;
            sum2 += left.z * right;
            sum3 += left.w * right;
        }
    }
    return array<vec4<f32>, 4>(sum0, sum1, sum2, sum3);
}

fn load_a(tile: Tile, place: vec4<u32>, depth: u32, last: u32) -> vec4<f32> {
    if (depth >= last) { return vec4<f32>(); }
    return fetch_a(tile, place, depth);
}

fn load_b(tile: Tile, place: vec4<u32>, depth: u32, last: u32) -> vec4<f32> {
    if (depth >= last) { return vec4<f32>(); }
    return fetch_b(tile, place, depth);
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
