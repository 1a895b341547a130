// The measurement of personalize.py in a page: Pyodide and the wheel of dist/, WebGPU (or NumPy) as the backend.
//
// `ready` is true once Python runs; `personalize(options)` waits for that and resolves to what the script gives in
// CPython. Options are those of `Options` there, so that one call measures one row or the whole table.

import * as bridge from "./bridge.mjs";
import * as store from "./store.mjs";

const FOLDER = "/personalize";
const TEXTS = ["shakespeare", "alice", "time-machine", "dorian-gray"];

/** @param {string} name @returns {Promise<Uint8Array>} */
async function bytes(name) {
  const response = await fetch(new URL(name, location.href));
  if (!response.ok) throw new Error(`${name}: HTTP ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** @returns {Promise<any>} Pyodide with the wheel, this script and its data */
async function boot() {
  const manifest = JSON.parse(new TextDecoder().decode(await bytes("evermind.json")));
  const indexURL = new URL(manifest.index_url, location.href).href;
  const lock = new URL(manifest.lock_file_url, location.href);
  const { loadPyodide } = await import(`${indexURL}pyodide.mjs`);
  const py = await loadPyodide({
    indexURL,
    lockFileURL: lock.href,
    packageBaseUrl: new URL("./", lock).href,
    packages: [manifest.package],
    stdout: (/** @type {string} */ line) => {
      console.log(line);
      document.querySelector("#log")?.append(`${line}\n`);
    },
  });
  py.registerJsModule("evermind_web_js", { bridge, store });
  py.FS.mkdirTree(FOLDER);
  py.FS.writeFile(`${FOLDER}/personalize.py`, await bytes("personalize.py"));
  for (const name of ["base.evl0", "tokenizer.json", ...TEXTS.map((text) => `${text}.txt`)]) {
    py.FS.writeFile(`${FOLDER}/${name}`, await bytes(`personalize/${name}`));
  }
  py.runPython(`import sys; sys.path.insert(0, "${FOLDER}"); import personalize`);
  return py;
}

const running = boot();

running.then(() => Object.assign(window, { ready: true }));

Object.assign(window, {
  ready: false,

  /** @param {Record<string, unknown>} [options] */
  async personalize(options = {}) {
    const measure = (await running).globals.get("personalize").in_page;
    return JSON.parse(await measure(FOLDER, JSON.stringify(options)));
  },
});
