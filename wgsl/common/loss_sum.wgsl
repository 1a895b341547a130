// Sum of row losses in a fixed order, by one workgroup; NaN as soon as one of them is not finite, by bits.
// The kernel declares row_loss: array<u32> (f32 as bits) and loss: array<u32> (1).

const SUMMERS = 64u; // threads that take part
const NOT_SCORED = 0x80000000u; // -0: a row that counts nothing
const NOT_FINITE = 0x7f800000u;
var<workgroup> summed: array<f32, SUMMERS>;
var<workgroup> broken: array<u32, SUMMERS>;

fn add_loss(thread: u32, count: u32) {
    if (thread < SUMMERS) {
        var sum = 0.0;
        var bad = 0u;
        for (var row = thread; row < count; row += SUMMERS) {
            let bits = row_loss[row];
            if ((bits & NOT_FINITE) == NOT_FINITE) { bad = 1u; } else { sum += bitcast<f32>(bits); }
        }
        summed[thread] = sum;
        broken[thread] = bad;
    }
    workgroupBarrier();
    if (thread == 0u) {
        var sum = 0.0;
        var bad = 0u;
        for (var i = 0u; i < SUMMERS; i++) {
            sum += summed[i];
            bad |= broken[i];
        }
        let before = loss[0];
        let after = bitcast<u32>(bitcast<f32>(before) + sum);
        let stays_bad = (before & NOT_FINITE) == NOT_FINITE;
        loss[0] = select(select(after, 0x7fc00000u, bad == 1u), before, stays_bad);
    }
}
