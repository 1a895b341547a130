// One workgroup's tile of a matrix product: C (4W, 4W) = A (4W, depth) B (depth, 4W); W*W threads hold 4 by 4 values each.
// The kernel defines `struct Tile { a_by_depth: bool, b_by_depth: bool, ... }`, uniform in the workgroup, and
//   place_a(tile, rows) -> vec4<u32>     where four rows of A begin; rows outside may give any place inside
//   fetch_a(tile, place, depth) -> vec4<f32>    those four rows of A at one depth
// and the same for the columns of B. a_by_depth: neighbours in depth are neighbours in memory (else rows are).
// The order of the sums depends on the depths only, so repeats give the same bits.

override W: u32 = 16u; // 16 or 8
// Whether tiles go through workgroup memory, which a GPU needs for its speed. A CPU that plays GPU pays dearly for barriers
// (measured on SwiftShader: 4 to 6 times slower, 20 times longer to compile) and reads operands straight from its caches.
override SHARED: bool = true;
// Slices of the depth that a workgroup works on side by side, each W*W threads: 4 make the most of a small product with W 8.
override SLICES: u32 = 1u; // 1 or 4; SLICES * W * (W+1) <= 288
var<workgroup> tile_a: array<vec4<f32>, 288>; // (SLICES * W depths, W+1): one more than W, so that neighbours in depth hit different banks
var<workgroup> tile_b: array<vec4<f32>, 288>;

// The four rows or columns of the tile that belong to place `at` of W along its side: W apart, so that threads side by side
// read and write values side by side.
fn nth(at: u32, i: u32) -> u32 { return at + i * W; }
fn four(at: u32) -> vec4<u32> { return vec4<u32>(nth(at, 0u), nth(at, 1u), nth(at, 2u), nth(at, 3u)); }

// Rows four(thread.y) (the index), columns four(thread.x) of the tile, summed over depths first..last-1.
// Which rows a thread holds is said by `holds_row`.
fn tile_product(tile: Tile, thread: vec3<u32>, first: u32, last: u32) -> array<vec4<f32>, 4> {
    if (!SHARED) { return product_without_sharing(tile, thread, first, last); }
    let slice = thread.z * W;
    let a_at = select(thread.yx, thread.xy, tile.a_by_depth); // (depth, four rows) that this thread loads
    let b_at = select(thread.yx, thread.xy, tile.b_by_depth);
    let a_place = place_a(tile, four(a_at.y));
    let b_place = place_b(tile, four(b_at.y));
    let a_to = (slice + a_at.x) * (W + 1u) + a_at.y;
    let b_to = (slice + b_at.x) * (W + 1u) + b_at.y;
    var a = load_a(tile, a_place, first + slice + a_at.x, last);
    var b = load_b(tile, b_place, first + slice + b_at.x, last);
    // Each sum has a name: an array that is indexed by a loop somewhere below may be kept in memory as a whole
    // (measured: ten times slower in moe_bwd_hidden, and a training step of size M twice as slow).
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var depth = first; depth < last; depth += SLICES * W) {
        workgroupBarrier(); // the tile before this one has been used
        tile_a[a_to] = a;
        tile_b[b_to] = b;
        workgroupBarrier();
        let next = depth + SLICES * W + slice; // on its way while this tile is used
        a = load_a(tile, a_place, next + a_at.x, last);
        b = load_b(tile, b_place, next + b_at.x, last);
        for (var step = 0u; step < W; step++) {
            let left = tile_a[(slice + step) * (W + 1u) + thread.y];
            let right = tile_b[(slice + step) * (W + 1u) + thread.x];
            sum0 += left.x * right;
            sum1 += left.y * right;
            sum2 += left.z * right;
            sum3 += left.w * right;
        }
    }
    var sums = array<vec4<f32>, 4>(sum0, sum1, sum2, sum3);
    if (SLICES == 1u) { return sums; }
    let flat = thread.y * W + thread.x;
    for (var i = 0u; i < 4u; i++) { // the slices of row i, added by the threads of slice i
        workgroupBarrier();
        tile_a[thread.z * W * W + flat] = sums[i];
        workgroupBarrier();
        if (thread.z == i) {
            sums[i] = tile_a[flat];
            for (var z = 1u; z < SLICES; z++) { sums[i] += tile_a[z * W * W + flat]; }
        }
    }
    return sums;
}

fn holds_row(thread: vec3<u32>, i: u32) -> bool { return SLICES == 1u || thread.z == i; }

// No branches around the loads, so that they can all be under way together.
fn load_a(tile: Tile, place: vec4<u32>, depth: u32, last: u32) -> vec4<f32> {
    return select(vec4<f32>(), fetch_a(tile, place, min(depth, last - 1u)), depth < last);
}

fn load_b(tile: Tile, place: vec4<u32>, depth: u32, last: u32) -> vec4<f32> {
    return select(vec4<f32>(), fetch_b(tile, place, min(depth, last - 1u)), depth < last);
}

fn product_without_sharing(tile: Tile, thread: vec3<u32>, first: u32, last: u32) -> array<vec4<f32>, 4> {
    let a_place = place_a(tile, four(thread.y));
    let b_place = place_b(tile, four(thread.x));
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
