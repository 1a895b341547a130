// One of many workers on one GPU: Pyodide, the package and a small model of its own seed and text; says its losses and
// the fingerprint of what it learned.

import { loadPyodide } from "../../pyodide/pyodide.mjs";
import * as bridge from "../../bridge.mjs";
import * as store from "../../store.mjs";

const LEARN = `
from evermind_web.backend.request import request_backend
from evermind_web.model import EvermindLM
from evermind_web.training import EvermindLMTrainer
import numpy as np

async def learn(number, steps):
    backend = await request_backend("webgpu", check=False)
    model = EvermindLM(40, 16, 2, 3, 24, 4, 2, seed=number, backend=backend)
    text = np.random.default_rng(number).integers(0, 40, 25).tolist()
    losses = await EvermindLMTrainer(model, accum_steps=2, lr=1e-3).fit_async([text] * steps * 2)
    await model.export_weights_async()
    found = [number, *losses, await model.fingerprint_async()]
    backend.dispose()
    return found

learn
`;

async function boot() {
  const manifest = await (await fetch("/evermind.json")).json();
  const py = await loadPyodide({ indexURL: new URL("../../pyodide/", import.meta.url).href, packages: [manifest.package] });
  py.registerJsModule("evermind_web_js", { bridge, store });
  return py.runPython(LEARN);
}

const ready = boot();
self.addEventListener("message", async ({ data: [number, steps] }) => {
  try {
    const found = await (await ready)(number, steps);
    self.postMessage(found.toJs());
  } catch (error) {
    self.postMessage(String(error));
  }
});
