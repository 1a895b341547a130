// The worker behind web/evermind.mjs: boots Pyodide and the wheel, then serves calls to the Python session.
//
// It knows no methods of its own: a call is a name, JSON and byte arrays; so is its answer. Reports of a running
// call go out with postMessage on the same port as the answers, so that none can arrive after its answer.
// Python waits between steps, which is when a `stop` gets through; no SharedArrayBuffer is needed.

import * as Comlink from "./vendor/comlink.mjs";
import * as bridge from "./bridge.mjs";
import * as store from "./store.mjs";
import { countDownloads } from "./downloads.mjs";

/** @typedef {{stage: string, text: string, loaded: number, total: number}} BootProgress */
/** @typedef {{ok: true, json: string, bytes: Uint8Array} | {ok: false, name: string, message: string}} Answer */
/** @typedef {(call: number, method: string, json: string, buffers: Uint8Array[], emit: (json: string) => void) => any} Handle */

/** What of Pyodide is imported; all else is fetched. */
const SCRIPTS = ["pyodide.mjs", "pyodide.asm.js"];

/** Events to the page; Comlink ignores messages without an `id`. @param {Record<string, unknown>} event */
const post = (event) => self.postMessage({ evermind: event });

/** @type {{py: any, handle: Handle, face: any} | null} */
let running = null;

/**
 * Load the runtime and open the session.
 * @param {{backend: string | null, store: string}} options
 * @returns {Promise<Answer>} the session's description
 */
async function boot(options) {
  const downloads = countDownloads((loaded, total) => progress("download", "Loading Python", loaded, total));
  try {
    progress("start", "Starting", 0, 0);
    const manifest = await readManifest();
    const address = (/** @type {string} */ name) => new URL(name, self.location.href).href;
    const hashes = Object.entries(manifest.files).map(([name, hash]) => /** @type {const} */ ([address(name), hash]));
    downloads.expect(manifest.total_bytes ?? 0, new Map(hashes));
    const indexURL = address(manifest.index_url);
    await downloads.check(SCRIPTS.map((name) => indexURL + name));
    const { loadPyodide } = await import(`${indexURL}pyodide.mjs`);
    const loading = loadPyodide({
      indexURL,
      lockFileURL: address(manifest.lock_file_url),
      packageBaseUrl: new URL("./", address(manifest.lock_file_url)).href,
      packages: [manifest.package],
    });
    const py = await Promise.race([loading, downloads.refused]);
    downloads.end();
    progress("python", "Starting Python", 0, 0);
    // Under a strict Content-Security-Policy the wheel cannot import its own modules from Blob URLs.
    py.registerJsModule("evermind_web_js", { bridge, store: { ...store, openStore } });
    const open = py.runPython("from evermind_web.session import Face; Face.open");
    progress("device", "Looking for a GPU", 0, 0);
    const face = await settle(open(JSON.stringify(options)));
    open.destroy();
    running = { py, face, handle: face.handle };
    return { ok: true, json: face.info(), bytes: new Uint8Array() };
  } catch (error) {
    const missing = downloads.failed();
    if (missing) return { ok: false, name: "LoadError", message: `${missing}. Reload the page; whoever runs it: copy the whole dist folder to the server.` };
    return failure(error);
  } finally {
    downloads.end();
  }
}

async function readManifest() {
  const url = new URL("./evermind.json", self.location.href);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`evermind.json not found at ${url} (HTTP ${response.status})`);
  return response.json();
}

/** A store that tells the page of changes by other tabs. @param {Parameters<typeof store.openStore>[0]} options */
async function openStore(options) {
  const opened = await store.openStore(options);
  opened.onchange = () => post({ elsewhere: true });
  return opened;
}

/**
 * Run one method of the session.
 * @param {number} call id, for its reports and for `stop` @param {string} method @param {string} json
 * @param {Uint8Array[]} buffers @returns {Promise<Answer>}
 */
async function call(call, method, json, buffers) {
  if (!running) return { ok: false, name: "NotReadyError", message: "The worker is not ready." };
  try {
    const result = await settle(running.handle(call, method, json, buffers, (event) => post({ call, event })));
    const [answer, bytes] = result.toJs();
    result.destroy();
    return Comlink.transfer({ ok: true, json: answer, bytes }, [bytes.buffer]);
  } catch (error) {
    return failure(error);
  }
}

/** @param {number} call */
function stop(call) {
  running?.face.stop(call);
}

function dispose() {
  if (!running) return;
  running.face.dispose();
  /** @type {any} */ (running.handle).destroy();
  running.face.destroy();
  running = null;
}

/** Await a Python coroutine and free its proxy. @param {any} coroutine */
async function settle(coroutine) {
  try {
    return await coroutine;
  } finally {
    coroutine.destroy?.();
  }
}

/** @param {string} stage @param {string} text @param {number} loaded bytes @param {number} total bytes */
function progress(stage, text, loaded, total) {
  post({ boot: { stage, text, loaded, total } });
}

/**
 * A defect, not a refusal (those come back as JSON): the traceback goes to the console, its last line to the page.
 * @param {unknown} error @returns {Answer}
 */
function failure(error) {
  console.error(error);
  const message = error instanceof Error ? error.message : String(error);
  const lines = message.trim().split("\n");
  const last = lines[lines.length - 1].replace(/^evermind_web\.errors\./, "");
  const [, name = "", text = last] = /^(\w+(?:Error|Exception)): (.*)$/s.exec(last) ?? [];
  return { ok: false, name: name || (error instanceof Error ? error.name : "Error"), message: text };
}

Comlink.expose({ boot, call, stop, dispose });
