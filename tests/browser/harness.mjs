// The harness page: starts the worker that holds Pyodide, and passes Python to it. Served beside dist/ with the
// page's own Content-Security-Policy; tests/browser/harness.py calls `globalThis.harness`.

/** @typedef {{id: number, ok: boolean, value: string}} Reply */

const worker = new Worker(new URL("./harness_worker.mjs", import.meta.url), { type: "module" });
/** @type {Map<number, {resolve: (value: string) => void, reject: (error: Error) => void}>} */
const waiting = new Map();
let calls = 0;

worker.addEventListener("message", (event) => {
  const { id, ok, value } = /** @type {Reply} */ (event.data);
  const call = waiting.get(id);
  waiting.delete(id);
  if (ok) call?.resolve(value);
  else call?.reject(new Error(value));
});
worker.addEventListener("error", (event) => {
  for (const { reject } of waiting.values()) reject(new Error(`the harness worker failed: ${event.message}`));
  waiting.clear();
});

/**
 * Call one method of the worker.
 * @param {string} method
 * @param {string[]} args
 * @returns {Promise<string>}
 */
function call(method, ...args) {
  const id = ++calls;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, method, args });
  });
}

Object.assign(globalThis, { harness: { call } });
