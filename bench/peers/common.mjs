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
