// NumPy in Pyodide, with the SIMD kernels and without, beside the reference engine and jax-js's wasm device: one page,
// one thread, turn by turn, so that all see the same machine. Times are the best of the rounds, in milliseconds.

import * as jax from "./peers/node_modules/@jax-js/jax/dist/index.js";
import { EvermindLM, EvermindLMTrainer } from "./peers/node_modules/@seanhogg/builderforce-memory-engine/dist/index.js";
import { loadPyodide } from "../pyodide/pyodide.mjs";

/** @type {Record<string, number[]>} V, D, L, H, E, k, K */
const SIZES = { S: [512, 64, 2, 128, 4, 2, 3], M: [2048, 128, 4, 256, 8, 2, 3] };
const BATCH = 8;
const LENGTH = 64;
const CONTEXT = 500;
/** rows, columns, depth; whether A and B lie transposed @type {[number, number, number, boolean, boolean][]} */
const SHAPES = [
  [512, 512, 64, false, true],
  [512, 64, 512, false, false],
  [512, 64, 512, true, false],
  [512, 2048, 128, false, true],
  [512, 128, 2048, false, false],
  [2048, 128, 512, true, false],
  [128, 256, 128, false, true],
  [256, 128, 128, true, false],
];

const PYTHON = `
import time
import numpy as np
from evermind_web import EvermindLM, EvermindLMTrainer
from evermind_web.backend import simd
from evermind_web.backend.numpy_backend import NumpyBackend
from evermind_web.backend.reference import linalg

BACKEND = NumpyBackend()

def use(kernels):
    linalg.use(simd.kernels() if kernels else simd.Arranged())

def model_of(V, D, L, H, E, k, K):
    return EvermindLM(V, D, L, K, H, E, k, seed=1, backend=BACKEND)

def trainer(config, sequences):
    fit = EvermindLMTrainer(model_of(*config), lr=1e-3, accum_steps=len(sequences)).fit
    return lambda: fit(sequences)[0]

def step(fit, kernels):
    use(kernels)
    start = time.perf_counter()
    loss = fit()
    return (time.perf_counter() - start) * 1e3, loss

def decoding(config, prompt, count):
    use(True)
    model = model_of(*config)
    model.generate(prompt, max_new_tokens=2)
    def timed(n):
        start = time.perf_counter()
        model.generate(prompt, max_new_tokens=n)
        return time.perf_counter() - start
    return (timed(count + 1) - timed(1)) * 1e3 / count

def product(rows, cols, depth, turned_a, turned_b):
    draw = np.random.default_rng(0)
    a = draw.random((depth, rows) if turned_a else (rows, depth), np.float32)
    b = draw.random((cols, depth) if turned_b else (depth, cols), np.float32)
    a, b = a.T if turned_a else a, b.T if turned_b else b
    out = np.empty((rows, cols), np.float32)
    def run(kernels, repeats):
        use(kernels)
        start = time.perf_counter()
        for _ in range(repeats):
            linalg.matmul(a, b, out)
        return (time.perf_counter() - start) * 1e3 / repeats
    return run
`;

/** @type {any} */
let pyodide;
const ready = (async () => {
  const manifest = await (await fetch("/evermind.json")).json();
  pyodide = await loadPyodide({ indexURL: new URL(`/${manifest.index_url}`, location.href).href });
  await pyodide.loadPackage([manifest.package], { messageCallback: () => {} });
  pyodide.runPython(PYTHON);
  await jax.init("wasm");
  jax.defaultDevice("wasm");
})();

/** @param {number} vocab @param {number} count @param {number} length @returns {number[][]} */
function sequences(vocab, count, length) {
  let state = 1;
  const next = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0);
  return Array.from({ length: count }, () => Array.from({ length }, () => (next() >>> 8) % vocab));
}

/** @param {number[]} config */
function referenceModel([vocabSize, dModel, numLayers, hiddenDim, numExperts, topK, convKernel]) {
  return new EvermindLM({ vocabSize, dModel, numLayers, hiddenDim, numExperts, topK, convKernel, seed: 1 });
}

/**
 * Train the same model on the same tokens. Returns tokens per second, ratios, and the losses of the first steps.
 * @param {{size: string, rounds?: number}} options
 */
async function train({ size, rounds = 5 }) {
  await ready;
  const config = SIZES[size];
  const text = sequences(config[0], BATCH, LENGTH);
  const reference = new EvermindLMTrainer(referenceModel(config), { lr: 1e-3, accumSteps: BATCH });
  const py = (/** @type {string} */ name) => pyodide.globals.get(name);
  const [config_py, text_py] = [pyodide.toPy(config), pyodide.toPy(text)];
  const fits = [py("trainer")(config_py, text_py), py("trainer")(config_py, text_py)];
  const best = { reference: Infinity, numpy: Infinity, simd: Infinity };
  /** @type {Record<string, number[]>} */
  const losses = { reference: [], numpy: [], simd: [] };
  for (let round = 0; round < rounds; round++) {
    const start = performance.now();
    losses.reference.push(reference.fit(text)[0]);
    best.reference = Math.min(best.reference, performance.now() - start);
    for (const [name, kernels, repeats] of /** @type {const} */ ([["numpy", false, 1], ["simd", true, 3]])) {
      for (let i = 0; i < repeats; i++) {
        const [ms, loss] = py("step")(fits[Number(kernels)], kernels).toJs();
        best[name] = Math.min(best[name], ms);
        losses[name].push(loss);
      }
    }
  }
  const tokens = BATCH * LENGTH * 1000;
  return {
    size,
    adapter: pyodide.runPython("BACKEND.adapter_name"),
    variant: pyodide.runPython("getattr(simd.kernels(), 'variant', simd.problem)"),
    tok_s: Object.fromEntries(Object.entries(best).map(([name, ms]) => [name, tokens / ms])),
    numpy_ratio: best.reference / best.numpy,
    simd_ratio: best.reference / best.simd,
    losses: Object.fromEntries(Object.entries(losses).map(([name, all]) => [name, all.slice(0, 3)])),
  };
}

/**
 * Tokens per second after a context of 500. @param {{size: string, rounds?: number}} options
 */
async function decode({ size, rounds = 2 }) {
  await ready;
  const config = SIZES[size];
  const [prompt] = sequences(config[0], 1, CONTEXT);
  const reference = referenceModel(config);
  let [theirs, ours] = [Infinity, Infinity];
  for (let round = 0; round < rounds; round++) {
    const start = performance.now();
    reference.generate(prompt, { maxNewTokens: 2 });
    theirs = Math.min(theirs, (performance.now() - start) / 2);
    ours = Math.min(ours, pyodide.globals.get("decoding")(pyodide.toPy(config), pyodide.toPy(prompt), 48));
  }
  return { size, context: CONTEXT, tok_s: { reference: 1000 / theirs, evermind: 1000 / ours }, ratio: theirs / ours };
}

/**
 * Products of the model's shapes in GFLOP/s. @param {{rounds?: number}} options
 */
async function products({ rounds = 12 } = {}) {
  await ready;
  const found = [];
  for (const [rows, cols, depth, turnedA, turnedB] of SHAPES) {
    const run = pyodide.globals.get("product")(rows, cols, depth, turnedA, turnedB);
    const [a, b] = [random(turnedA ? [depth, rows] : [rows, depth]), random(turnedB ? [cols, depth] : [depth, cols])];
    const product = jax.jit((/** @type {any} */ x, /** @type {any} */ y) =>
      jax.numpy.matmul(turnedA ? x.transpose() : x, turnedB ? y.transpose() : y));
    const best = { numpy: Infinity, simd: Infinity, jax: Infinity };
    for (let round = 0; round < rounds; round++) {
      if (round < 2) best.numpy = Math.min(best.numpy, run(false, 1));
      best.simd = Math.min(best.simd, run(true, 5));
      const start = performance.now();
      for (let i = 0; i < 5; i++) {
        const c = product(a.ref, b.ref);
        await c.blockUntilReady();
        c.dispose();
      }
      best.jax = Math.min(best.jax, (performance.now() - start) / 5);
    }
    const flops = 2 * rows * cols * depth;
    const gflops = Object.fromEntries(Object.entries(best).map(([name, ms]) => [name, flops / ms / 1e6]));
    found.push({ shape: [rows, cols, depth], turned: [turnedA, turnedB], gflops, against_jax: best.jax / best.simd });
  }
  return found;
}

/** @param {number[]} shape */
function random(shape) {
  const values = new Float32Array(shape[0] * shape[1]).map(() => Math.random());
  return jax.numpy.array(values, { shape });
}

Object.assign(globalThis, { train, decode, products });
ready.then(() => Object.assign(globalThis, { ready: true }), (error) => Object.assign(globalThis, { failed: String(error) }));
