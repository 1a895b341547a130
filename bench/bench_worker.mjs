// Pyodide, the wheel and the Python of bench/, loaded as the page's own worker loads them.

import * as bridge from "./bridge.mjs";
import { loadPyodide } from "./pyodide/pyodide.mjs";

async function boot() {
  const started = performance.now();
  const manifest = await (await fetch(new URL("./evermind.json", import.meta.url))).json();
  const pyodide = await loadPyodide({ indexURL: new URL(manifest.index_url, import.meta.url).href });
  pyodide.registerJsModule("evermind_web_js", { bridge });
  await pyodide.loadPackage([manifest.package], { messageCallback: () => {} });
  pyodide.FS.mkdir("bench");
  const names = ["measure", "operations", "products", "curves"].map((name) => `bench/${name}.py`);
  const texts = names.map(async (name) => (await fetch(new URL(`./${name}`, import.meta.url))).text());
  for (const [i, text] of (await Promise.all(texts)).entries()) pyodide.FS.writeFile(names[i], text);
  const answer = pyodide.runPython("from bench.measure import answer; answer");
  return { answer, milliseconds: performance.now() - started };
}

const booted = boot();

self.addEventListener("message", async ({ data: { id, name, spec } }) => {
  try {
    const { answer, milliseconds } = await booted;
    const value = name === "ready" ? JSON.stringify(milliseconds) : await answer(name, spec);
    self.postMessage({ id, value });
  } catch (error) {
    self.postMessage({ id, error: String(error instanceof Error ? error.message : error).slice(-3000) });
  }
});
