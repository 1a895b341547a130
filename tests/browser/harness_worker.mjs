// The harness worker: Pyodide and the wheel from dist/, as the page's own worker loads them. Methods take and
// return strings (JSON), so that nothing depends on how Pyodide converts values.

import { loadPyodide } from "../pyodide/pyodide.mjs";

/** @typedef {{version: string, wheel: string, index_url: string, lock_file_url: string}} Manifest */

const DIST = new URL("../", import.meta.url).href;
const MODULES = ["bridge", "store"]; // what the page's worker hands to Python: a strict policy forbids Blob URLs

// `values` is JSON; bytes travel in it as {"base64": …}. The value of the last expression comes back as JSON.
const RUNNER = `
import base64, json
from pyodide.code import eval_code_async

def _decode(value):
    return base64.b64decode(value["base64"]) if set(value) == {"base64"} else value

def _encode(value):
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a test's result must be JSON, bytes or NumPy, got {type(value).__name__}")

async def _run(code, values):
    namespace = {"__name__": "__main__", **json.loads(values, object_hook=_decode)}
    return json.dumps(await eval_code_async(code, namespace), default=_encode)

_run
`;

async function boot() {
  const manifest = /** @type {Manifest} */ (await (await fetch(`${DIST}evermind.json`)).json());
  const started = performance.now();
  const pyodide = await loadPyodide({ indexURL: `${DIST}${manifest.index_url}` });
  /** @type {Record<string, unknown>} */
  const modules = {};
  for (const name of MODULES) {
    const response = await fetch(`${DIST}${name}.mjs`, { method: "HEAD" });
    if (response.ok) modules[name] = await import(`${DIST}${name}.mjs`);
  }
  pyodide.registerJsModule("evermind_web_js", modules);
  await pyodide.loadPackage(["evermind-web", "micropip"], { messageCallback: () => {} });
  const run = await pyodide.runPythonAsync(RUNNER);
  return { pyodide, run, milliseconds: performance.now() - started };
}

const booted = boot();

/** @type {Record<string, (...args: string[]) => Promise<string>>} */
const methods = {
  /** Wait for the boot; returns how long it took, in milliseconds. */
  async ready() {
    return JSON.stringify((await booted).milliseconds);
  },
  async run(code, values) {
    return (await booted).run(code, values);
  },
  /** Write one file, given as base64, below the working directory. */
  async write(path, base64) {
    const { pyodide } = await booted;
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const folder = path.split("/").slice(0, -1).join("/");
    if (folder) pyodide.FS.mkdirTree(folder);
    pyodide.FS.writeFile(path, bytes);
    return "";
  },
};

self.addEventListener("message", async ({ data: { id, method, args } }) => {
  try {
    self.postMessage({ id, ok: true, value: await methods[method](...args) });
  } catch (error) {
    self.postMessage({ id, ok: false, value: String(error instanceof Error ? error.message : error) });
  }
});
