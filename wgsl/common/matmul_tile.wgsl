// One workgroup's tile of a matrix product: C (ROWS*W, 4W) = A (ROWS*W, depth) B (depth, 4W); W*W threads hold ROWS by 4 values each.
// The kernel defines `struct Tile { a_by_depth: bool, b_by_depth: bool, ... }`, uniform in the workgroup, and
//   place_a(tile, row) -> vec4<u32>      where rows row..row+3 of A begin; rows outside may give any place inside
//   fetch_a(tile, place, depth) -> vec4<f32>    those four rows of A at one depth
// and the same for the columns of B. a_by_depth: neighbours in depth are neighbours in memory (else rows are).
// The order of the sums depends on the depths only, so repeats give the same bits.

override W: u32 = 16u; // 16 or 8
// Rows that a thread holds. 8 (with W 16, SHARED and one slice) do twice the work for a load from workgroup memory and a half,
// where the product is large enough to fill the device with such tiles.
override ROWS: u32 = 4u; // 4 or 8
// Whether tiles go through workgroup memory, which a GPU needs for its speed. A CPU that plays GPU pays dearly for barriers
// (measured on SwiftShader: 4 to 6 times slower, 20 times longer to compile) and reads operands straight from its caches.
override SHARED: bool = true;
// Slices of the depth that a workgroup works on side by side, each W*W threads: 4 make the most of a small product with W 8.
override SLICES: u32 = 1u; // 1 or 4; SLICES * W * (W+1) <= 288
// (SLICES * W depths, a row of fours and one more, so that neighbours in depth hit different banks)
var<workgroup> tile_a: array<vec4<f32>, 528>;
var<workgroup> tile_b: array<vec4<f32>, 288>;

alias Sums = array<vec4<f32>, 8>; // of ROWS rows, four columns each

// Rows `row_held(thread, 0..ROWS-1)` (the index), columns 4*thread.x + 0..3 of the tile, summed over depths first..last-1.
// Which rows a thread holds is said by `holds_row`.
fn tile_product(tile: Tile, thread: vec3<u32>, first: u32, last: u32) -> Sums {
    if (!SHARED) { return product_without_sharing(tile, thread, first, last); }
    let a_wide = ROWS / 4u * W + 1u;
    let slice = thread.z * W;
    let a_at = select(thread.yx, thread.xy, tile.a_by_depth); // (depth, four rows) that this thread loads
    let b_at = select(thread.yx, thread.xy, tile.b_by_depth);
    let a_place = place_a(tile, 4u * a_at.y);
    let b_place = place_b(tile, 4u * b_at.y);
    let a_to = (slice + a_at.x) * a_wide + a_at.y;
    let b_to = (slice + b_at.x) * (W + 1u) + b_at.y;
    var a = load_a(tile, a_place, first + slice + a_at.x, last);
    var b = load_b(tile, b_place, first + slice + b_at.x, last);
    var a_place_below = vec4<u32>(); // of the second four of 8 rows
    var a_below = vec4<f32>();
    if (ROWS == 8u) {
        a_place_below = place_a(tile, 4u * (a_at.y + W));
        a_below = load_a(tile, a_place_below, first + a_at.x, last);
    }
    var sums = Sums();
    for (var depth = first; depth < last; depth += SLICES * W) {
        workgroupBarrier(); // the tile before this one has been used
        tile_a[a_to] = a;
        tile_b[b_to] = b;
        if (ROWS == 8u) { tile_a[a_to + W] = a_below; }
        workgroupBarrier();
        let next = depth + SLICES * W + slice; // on its way while this tile is used
        a = load_a(tile, a_place, next + a_at.x, last);
        b = load_b(tile, b_place, next + b_at.x, last);
        if (ROWS == 8u) { a_below = load_a(tile, a_place_below, next + a_at.x, last); }
        for (var step = 0u; step < W; step++) {
            let left = tile_a[(slice + step) * a_wide + thread.y];
            let right = tile_b[(slice + step) * (W + 1u) + thread.x];
            sums[0] += left.x * right;
            sums[1] += left.y * right;
            sums[2] += left.z * right;
            sums[3] += left.w * right;
            if (ROWS == 8u) {
                let below = tile_a[step * a_wide + W + thread.y];
                sums[4] += below.x * right;
                sums[5] += below.y * right;
                sums[6] += below.z * right;
                sums[7] += below.w * right;
            }
        }
    }
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
fn row_held(thread: vec3<u32>, i: u32) -> u32 { return 4u * (i / 4u * W + thread.y) + i % 4u; }

// No branches around the loads, so that they can all be under way together.
fn load_a(tile: Tile, place: vec4<u32>, depth: u32, last: u32) -> vec4<f32> {
    return select(vec4<f32>(), fetch_a(tile, place, min(depth, last - 1u)), depth < last);
}

fn load_b(tile: Tile, place: vec4<u32>, depth: u32, last: u32) -> vec4<f32> {
    return select(vec4<f32>(), fetch_b(tile, place, min(depth, last - 1u)), depth < last);
}

fn product_without_sharing(tile: Tile, thread: vec3<u32>, first: u32, last: u32) -> Sums {
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
    return Sums(sum0, sum1, sum2, sum3, vec4<f32>(), vec4<f32>(), vec4<f32>(), vec4<f32>());
}
