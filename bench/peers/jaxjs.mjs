// jax-js on WebGPU, jitted. As in tfjs.mjs, every expert runs on every row.

import { init, jit, lax, numpy as np, tree, valueAndGrad, nn, defaultDevice } from "@jax-js/jax";
import { data, shape, timed, timedProducts, weights } from "./common.mjs";

/** @param {string} device */
async function start(device) {
  await init(/** @type {any} */ (device));
  defaultDevice(/** @type {any} */ (device));
}

/** @param {any} x @param {any} g */
function norm(x, g) {
  return x.ref.mul(np.reciprocal(np.sqrt(np.mean(np.square(x), -1, { keepdims: true }).add(1e-5)))).mul(g);
}

/** @param {any} spec */
export async function train(spec) {
  const { size = "S", batch: B = 8, seqLen: T = 64, device = "webgpu" } = spec;
  await start(device);
  const { V, D, L, K, E, k } = shape(size);
  const N = B * T;
  /** @type {Record<string, any>} */
  let w = {};
  for (const [name, [values, dims]] of Object.entries(weights(shape(size)))) w[name] = np.array(values).reshape(dims);
  const given = data(V, B, T);
  const tokens = np.array(given.tokens, { dtype: np.int32 });
  const targets = np.array(given.targets, { dtype: np.int32 });

  /** @param {Record<string, any>} p @param {any} ids @param {any} goal */
  const loss = (p, ids, goal) => {
    let x = nn.oneHot(ids, V).astype(np.float32);
    x = np.matmul(x, p.emb.ref);
    for (let l = 0; l < L; l += 1) {
      const n = np.pad(norm(x.ref, p[`g1${l}`]).reshape([B, T, D]), [[0, 0], [K - 1, 0], [0, 0]]);
      let mixed = x.reshape([B, T, D]);
      for (let j = 0; j < K; j += 1) {
        const tap = p[`conv${l}`].ref.slice([j, j + 1]);
        mixed = mixed.add(n.ref.slice([], [K - 1 - j, K - 1 - j + T]).mul(tap));
      }
      n.dispose();
      p[`conv${l}`].dispose();
      x = mixed.reshape([N, D]);
      const m = norm(x.ref, p[`g2${l}`]);
      const scores = np.matmul(m.ref, p[`wr${l}`]);
      const fixed = lax.stopGradient(scores.ref);
      const [values, chosen] = lax.topK(fixed.ref, k);
      values.dispose();
      const mask = nn.oneHot(chosen, E).astype(np.float32).sum(1);
      const raised = np.exp(scores.sub(np.max(fixed, -1, { keepdims: true }))).mul(mask);
      const gates = raised.ref.div(np.sum(raised, -1, { keepdims: true }));
      const all = np.concatenate([np.ones([N, 1]), gates], 1); // the shared expert first
      const h = nn.relu(np.matmul(m.reshape([1, N, D]), p[`w1${l}`]).add(p[`b1${l}`]));
      const y = np.matmul(h, p[`w2${l}`]).add(p[`b2${l}`]);
      x = x.add(y.mul(np.transpose(all).reshape([E + 1, N, 1])).sum(0));
    }
    const logits = np.matmul(x, np.transpose(p.emb));
    const logp = nn.logSoftmax(logits, -1);
    return nn.oneHot(goal, V).astype(np.float32).mul(logp).sum().mul(-1 / N);
  };
  const update = jit((/** @type {any} */ p, /** @type {any} */ m, /** @type {any} */ v, /** @type {any} */ t, /** @type {any} */ ids, /** @type {any} */ goal) => {
    const [value, g] = valueAndGrad(loss)(tree.ref(p), ids, goal);
    const m2 = tree.map((/** @type {any} */ a, /** @type {any} */ b) => a.mul(0.9).add(b.mul(0.1)), m, tree.ref(g));
    const v2 = tree.map((/** @type {any} */ a, /** @type {any} */ b) => a.mul(0.999).add(np.square(b).mul(0.001)), v, g);
    const c1 = np.subtract(1, np.exp(t.ref.mul(Math.log(0.9))));
    const c2 = np.subtract(1, np.exp(t.mul(Math.log(0.999))));
    const p2 = tree.map(
      (/** @type {any} */ a, /** @type {any} */ x, /** @type {any} */ y) =>
        a.sub(x.div(c1.ref).div(np.sqrt(y.div(c2.ref)).add(1e-8)).mul(1e-3)),
      p, tree.ref(m2), tree.ref(v2),
    );
    c1.dispose();
    c2.dispose();
    return [value, p2, m2, v2];
  });
  let m = tree.map((/** @type {any} */ a) => np.zerosLike(a.ref), w);
  let v = tree.map((/** @type {any} */ a) => np.zerosLike(a.ref), w);
  let count = 0;
  const step = () => {
    count += 1;
    /** @type {any} */
    let value;
    [value, w, m, v] = /** @type {any} */ (update)(w, m, v, np.array(count), tokens.ref, targets.ref);
    return value;
  };
  const row = await timed(spec, step, async (value) => (await value.data())[0]);
  return { peer: `jax-js 0.1.25 ${device}`, ...row };
}

const IN_FLIGHT = 6; // calls

/**
 * Matrix products alone. An array that is given up before anything reads it is never computed, and `blockUntilReady`
 * copies no byte, so that nothing makes it wait. Therefore one call makes all products, all of them are queued when any is
 * read, and one value of the last is really read.
 * @param {any} spec
 */
export async function products(spec) {
  const { device = "webgpu" } = spec;
  await start(device);
  const rows = await timedProducts(spec, ({ m, k, n, transposed }, first, second) => {
    const a = np.array(first).reshape(transposed ? [k, m] : [m, k]);
    const b = second.map((values) => np.array(values).reshape([k, n]));
    const all = jit((/** @type {any} */ x, /** @type {any[]} */ ys) =>
      ys.map((y, i) => {
        const own = i < ys.length - 1 ? x.ref : x;
        return np.matmul(transposed ? np.transpose(own) : own, y);
      }));
    /** @returns {any[]} */
    const made = () => /** @type {any} */ (all)(a.ref, b.map((y) => y.ref));
    /** @param {number} count */
    const run = async (count) => {
      const reads = [];
      for (let i = 0; i < count; i += 1) {
        const results = made();
        const last = results[results.length - 1].ref.slice([0, 1], [0, 1]);
        for (const result of results) result.dispose();
        reads.push(last.data());
        if (reads.length > IN_FLIGHT) await reads.shift();
      }
      await Promise.all(reads);
    };
    const result = async () => {
      const results = made();
      for (const other of results.slice(0, -1)) other.dispose();
      return results[results.length - 1].data();
    };
    return { run, result };
  });
  return { peer: `jax-js 0.1.25 ${device}`, products: rows };
}
