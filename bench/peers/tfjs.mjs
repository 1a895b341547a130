// TensorFlow.js on WebGPU. Every expert runs on every row and the gates mask what was not chosen: it has no ragged
// matmul, and gathering weights per row would move far more memory.

import * as tf from "@tensorflow/tfjs-core";
import "@tensorflow/tfjs-core/dist/public/chained_ops/register_all_chained_ops.js";
import "@tensorflow/tfjs-core/dist/register_all_gradients.js";
import "@tensorflow/tfjs-backend-webgpu";
import { data, shape, timed, timedProducts, weights } from "./common.mjs";

async function start() {
  await tf.setBackend("webgpu");
  await tf.ready();
}

/** @param {any} spec */
export async function train(spec) {
  const { size = "S", batch: B = 8, seqLen: T = 64 } = spec;
  await start();
  const { V, D, L, K, E, k } = shape(size);
  const N = B * T;
  /** @type {Record<string, tf.Variable>} */
  const w = {};
  for (const [name, [values, dims]] of Object.entries(weights(shape(size)))) w[name] = tf.variable(tf.tensor(values, dims));
  const given = data(V, B, T);
  const tokens = tf.tensor1d(given.tokens, "int32");
  const wanted = tf.oneHot(tf.tensor1d(given.targets, "int32"), V).toFloat();

  /** @param {any} x @param {any} g */
  const norm = (x, g) => x.div(tf.sqrt(x.square().mean(-1, true).add(1e-5))).mul(g);
  // Which experts were chosen (N,E), as ones and zeros: a constant, for topk has no gradient.
  const choice = tf.customGrad((/** @type {any} */ scores) => {
    const value = tf.oneHot(tf.topk(scores, k).indices.toInt(), E).sum(1).toFloat();
    return { value, gradFunc: (/** @type {any} */ dy) => tf.zerosLike(dy) };
  });
  const loss = () => {
    /** @type {any} */
    let x = tf.gather(/** @type {any} */ (w.emb), tokens);
    for (let l = 0; l < L; l += 1) {
      const n = tf.pad(norm(x, w[`g1${l}`]).reshape([B, T, D]), [[0, 0], [K - 1, 0], [0, 0]]);
      let mixed = x.reshape([B, T, D]);
      for (let j = 0; j < K; j += 1) {
        const tap = tf.slice(/** @type {any} */ (w[`conv${l}`]), [j, 0, 0], [1, 1, D]);
        mixed = mixed.add(tf.slice(n, [0, K - 1 - j, 0], [B, T, D]).mul(tap));
      }
      x = mixed.reshape([N, D]);
      const m = norm(x, w[`g2${l}`]);
      const scores = tf.matMul(m, /** @type {any} */ (w[`wr${l}`]));
      const raised = tf.exp(scores.sub(scores.max(-1, true))).mul(choice(scores));
      const gates = tf.concat([tf.ones([N, 1]), raised.div(raised.sum(-1, true))], 1); // the shared expert first
      const rows = tf.tile(m.expandDims(0), [E + 1, 1, 1]);
      const h = tf.relu(tf.matMul(rows, /** @type {any} */ (w[`w1${l}`])).add(w[`b1${l}`]));
      const y = tf.matMul(h, /** @type {any} */ (w[`w2${l}`])).add(w[`b2${l}`]);
      x = x.add(y.mul(gates.transpose().expandDims(2)).sum(0));
    }
    const logits = tf.matMul(x, /** @type {any} */ (w.emb), false, true);
    return tf.logSumExp(logits, -1).sub(logits.mul(wanted).sum(-1)).mean().asScalar();
  };
  const adam = tf.train.adam(1e-3);
  const list = Object.values(w);
  const step = () => adam.minimize(/** @type {any} */ (loss), true, list);
  const row = await timed(spec, step, async (value) => {
    const [number] = await value.data();
    value.dispose();
    return number;
  });
  for (const variable of list) variable.dispose();
  adam.dispose();
  return { peer: "TensorFlow.js 4.22 WebGPU", ...row };
}

const HELD = 2 ** 31; // bytes of results that are kept before the oldest are given up

/** Matrix products alone. @param {any} spec */
export async function products(spec) {
  await start();
  const rows = await timedProducts(spec, ({ m, k, n, transposed = false }, first, second) => {
    const a = tf.tensor2d(first, transposed ? [k, m] : [m, k]);
    const b = second.map((values) => tf.tensor2d(values, [k, n]));
    const most = Math.max(b.length, Math.floor(HELD / (4 * m * n)));
    /** @param {number} count */
    const run = async (count) => {
      /** @type {tf.Tensor[]} */
      const made = [];
      for (let i = 0; i < count * b.length; i += 1) {
        made.push(tf.matMul(a, b[i % b.length], transposed));
        if (made.length > most) made.shift()?.dispose();
      }
      await tf.slice(made[made.length - 1], [0, 0], [1, 1]).data();
      tf.dispose(made);
    };
    return { run, result: () => tf.matMul(a, b[b.length - 1], transposed).data() };
  });
  return { peer: "TensorFlow.js 4.22 WebGPU", products: rows };
}
