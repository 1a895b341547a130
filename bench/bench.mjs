// The benchmark page. Python runs in a worker, as on the real page; peers run here. All results are plain JSON.
//
//   await bench({size: "S" | "M" | "L", batch, seqLen, steps, backend: "webgpu" | "numpy" | "numpy-alone", mode: "full" | "lora"})
//   await decode({size, tokens, context, sequences, backend, sampling})
//   await start({size}): milliseconds until the page is ready, a step is trained, a token written; first of all calls
//   await kernels({size, rows: [512, 4096], backend})
//   await curves({size, steps}): the cost by tokens, layers, active experts, experts, context, and a large vocabulary
//   await peer({name: "reference" | "tfjs" | "jaxjs", task: "train" | "decode" | "products", size, batch, seqLen, steps})

/** @typedef {Record<string, any>} Spec */

const worker = new Worker(new URL("./bench_worker.mjs", import.meta.url), { type: "module" });
/** @type {Map<number, {resolve: (value: any) => void, reject: (error: Error) => void}>} */
const waiting = new Map();
let calls = 0;
let readyMs = 0; // since the page was asked for

worker.addEventListener("message", ({ data: { id, value, error } }) => {
  const call = waiting.get(id);
  waiting.delete(id);
  if (error) call?.reject(new Error(error));
  else call?.resolve(JSON.parse(value));
});
worker.addEventListener("error", ({ message }) => {
  for (const { reject } of waiting.values()) reject(new Error(`the worker failed: ${message}`));
});

/** @param {string} name @param {Spec} [spec] @returns {Promise<any>} */
function call(name, spec = {}) {
  calls += 1;
  const id = calls;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, name, spec: JSON.stringify(spec) });
  });
}

/** @param {Spec} spec @returns {Promise<any>} */
async function peer(spec) {
  const module = await import(`./peers/${spec.name}.mjs`).catch((error) => {
    throw new Error(`peer ${spec.name} is not installed here (${error.message})`);
  });
  return module[spec.task ?? "train"](spec);
}

Object.assign(globalThis, {
  bench: (/** @type {Spec} */ spec) => call("train", spec),
  decode: (/** @type {Spec} */ spec) => call("decode", spec),
  start: async (/** @type {Spec} */ spec) => ({ page_ready_ms: readyMs, ...(await call("start", spec)) }),
  kernels: (/** @type {Spec} */ spec) => call("kernels", spec),
  curves: (/** @type {Spec} */ spec) => call("curves", spec),
  peer,
  ready: false,
});
call("ready").then(
  (milliseconds) => {
    readyMs = Math.round(performance.now());
    Object.assign(globalThis, { ready: true, bootMs: milliseconds });
  },
  (error) => Object.assign(globalThis, { ready: true, bootError: String(error) }),
);
