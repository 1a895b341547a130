// What all peers share: the sizes of the table, the data, and how a run is timed.

/** V, D, L, K, H, E, k @type {Record<string, number[]>} */
const SIZES = {
  tiny: [64, 32, 2, 3, 48, 4, 2],
  S: [512, 64, 2, 3, 128, 4, 2],
  M: [2048, 128, 4, 3, 256, 8, 2],
  L: [4096, 256, 6, 3, 512, 8, 2],
};

/** @param {string} size */
export function shape(size) {
  const [V, D, L, K, H, E, k] = SIZES[size];
  return { V, D, L, K, H, E, k };
}

/** A seeded generator of numbers in [0, 1). @param {number} seed */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Normal numbers. @param {() => number} next @param {number} n @param {number} std */
export function normal(next, n, std) {
  return Float32Array.from({ length: n }, () => std * Math.sqrt(-2 * Math.log(next() + 1e-12)) * Math.cos(2 * Math.PI * next()));
}

/** Token ids and targets (B·T) of the task that measure.py trains on. @param {number} V @param {number} B @param {number} T */
export function data(V, B, T) {
  const next = random(1);
  const tokens = new Int32Array(B * T);
  const targets = new Int32Array(B * T);
  for (let b = 0; b < B; b += 1) {
    const start = Math.floor(next() * V);
    let id = (start + Math.floor(next() * 3)) % V;
    for (let t = 0; t < T; t += 1) {
      tokens[b * T + t] = id;
      id = (start + 7 * (t + 1) + Math.floor(next() * 3)) % V;
      targets[b * T + t] = id;
    }
  }
  return { tokens, targets };
}

/** Initial weights by name, each with its shape. @param {ReturnType<typeof shape>} s */
export function weights({ V, D, L, K, H, E }) {
  const next = random(7);
  /** @type {Record<string, [Float32Array, number[]]>} */
  const out = { emb: [normal(next, V * D, 1 / Math.sqrt(D)), [V, D]] };
  for (let l = 0; l < L; l += 1) {
    out[`conv${l}`] = [normal(next, K * D, 1 / Math.sqrt(K)), [K, 1, D]];
    out[`g1${l}`] = [new Float32Array(D).fill(1), [D]];
    out[`g2${l}`] = [new Float32Array(D).fill(1), [D]];
    out[`wr${l}`] = [normal(next, D * E, 1 / Math.sqrt(D)), [D, E]];
    out[`w1${l}`] = [normal(next, (E + 1) * D * H, Math.sqrt(2 / D)), [E + 1, D, H]];
    out[`b1${l}`] = [new Float32Array((E + 1) * H), [E + 1, 1, H]];
    out[`w2${l}`] = [normal(next, (E + 1) * H * D, 0.1 / Math.sqrt(H)), [E + 1, H, D]];
    out[`b2${l}`] = [new Float32Array((E + 1) * D), [E + 1, 1, D]];
  }
  return out;
}

/** @param {number[]} values */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

/**
 * Warm up, then time parts of several steps, each ended by reading the loss.
 * @param {{ steps?: number, warm?: number, batch?: number, seqLen?: number, size?: string }} spec
 * @param {() => any} step makes one step and returns what `read` takes
 * @param {(loss: any) => Promise<number> | number} read
 */
export async function timed({ steps = 20, warm = 3, batch = 8, seqLen = 64, size = "S" }, step, read) {
  const lossFirst = await read(step());
  for (let i = 1; i < warm; i += 1) await read(step());
  const parts = Math.min(5, steps);
  const times = [];
  let lossLast = NaN;
  for (let part = 0; part < parts; part += 1) {
    const count = Math.max(1, Math.floor(steps / parts));
    const started = performance.now();
    let loss;
    for (let i = 0; i < count; i += 1) loss = step();
    lossLast = await read(loss);
    times.push((performance.now() - started) / count);
  }
  const ms = median(times);
  const tokens = batch * seqLen;
  return { size, batch, seqLen, steps, tok_s: Math.round((1000 * tokens) / ms), ms_per_step: ms, loss_first: lossFirst, loss_last: lossLast };
}

/** @typedef {{ m: number, k: number, n: number, transposed?: boolean }} Product m×k · k×n; transposed: the first is given as k×m */

/** The products of a model of size L at so many rows: forward, backward, and the sums over all rows. @param {number} rows */
const ofRows = (rows) => [
  { m: rows, k: 256, n: 512 },
  { m: rows, k: 512, n: 256 },
  { m: rows, k: 256, n: 4096 },
  { m: rows, k: 4096, n: 256 },
  { m: 256, k: rows, n: 512, transposed: true },
];
/** @type {Product[]} */
const PRODUCTS = [...ofRows(4096), ...ofRows(512)];
const FACTORS = 8; // second factors in turn: no product is asked for twice in a row
const WORTH_MS = 30; // what is measured takes at least this: a read takes a millisecond, give or take one
const MOST = 4096;
const CHECKED = 200; // values of the last product that are compared

/**
 * Time each product and check its last result.
 * @param {{ shapes?: Product[] }} spec
 * @param {(shape: Product, a: Float32Array, b: Float32Array[]) => { run: (count: number) => Promise<void>, result: () => Promise<ArrayLike<number>> }} prepare
 *   `run(count)` multiplies with every second factor in turn, `count` times all, and ends when the last is done;
 *   `result()` is the product with the last of them
 */
export async function timedProducts({ shapes = PRODUCTS }, prepare) {
  const rows = [];
  for (const shape of shapes) {
    const { m, k, n } = shape;
    const next = random(3);
    const a = normal(next, m * k, 1);
    const numbers = normal(next, k * n + 64 * FACTORS, 1);
    const b = Array.from({ length: FACTORS }, (_, i) => numbers.slice(64 * i, 64 * i + k * n));
    const { run, result } = prepare(shape, a, b);
    /** @param {number} count */
    const taken = async (count) => {
      const started = performance.now();
      await run(count);
      return performance.now() - started;
    };
    /** @param {number} count */
    const more = async (count) => (await taken(2 * count)) - (await taken(count)); // so that the read cancels out
    await run(2);
    let count = 2;
    while (count < MOST && (await more(count)) < WORTH_MS) count *= 2;
    const times = [];
    for (let i = 0; i < 5; i += 1) times.push((await more(count)) / (count * FACTORS));
    const ms = median(times);
    const max_diff = largestOff(shape, a, b[FACTORS - 1], await result());
    rows.push({ ...shape, ms, tflops: (2 * m * k * n) / ms / 1e9, max_diff, ...(max_diff < 1e-4 ? {} : { wrong: true }) });
  }
  return rows;
}

/** The largest difference of some values from dot products in float64, relative to the largest. @param {Product} shape @param {Float32Array} a @param {Float32Array} b @param {ArrayLike<number>} found */
function largestOff({ m, k, n, transposed }, a, b, found) {
  const next = random(11);
  let off = found.length === m * n ? 0 : Infinity;
  let largest = 0;
  for (let i = 0; i < CHECKED; i += 1) {
    const row = i === 0 ? m - 1 : Math.floor(next() * m);
    const column = i === 0 ? n - 1 : Math.floor(next() * n);
    let sum = 0;
    for (let j = 0; j < k; j += 1) sum += a[transposed ? j * m + row : row * k + j] * b[j * n + column];
    const difference = Math.abs(found[row * n + column] - sum);
    off = difference <= off ? off : difference; // NaN, too
    largest = Math.max(largest, Math.abs(sum));
  }
  return off / largest;
}
