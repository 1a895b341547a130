// The demo page: starts the model and hands it to the four views. Uses nothing of the model but evermind.mjs.

import { load } from "./evermind.mjs";
import { query, part, sentence } from "./views/dom.mjs";
import * as format from "./views/format.mjs";
import { showError, showNotice } from "./views/messages.mjs";
import { createPersonalize } from "./views/personalize.mjs";
import { createSaved } from "./views/saved.mjs";
import { createStore } from "./views/state.mjs";
import { createTeach, hasUnsaved } from "./views/teach.mjs";
import { createWrite } from "./views/write.mjs";

/** @typedef {import("./evermind.mjs").Evermind} Evermind */
/** @typedef {import("./evermind.mjs").SessionInfo} SessionInfo */
/** @typedef {import("./evermind.mjs").LoadProgress} LoadProgress */

/** @type {Evermind | null} */
let evermind = null;
const em = () => {
  if (!evermind) throw new Error("The model is still starting. Try again in a moment.");
  return evermind;
};
const store = createStore({ ready: false, busy: "", said: "", session: null, saved: [] });

createTeach(em, store);
createWrite(em, store);
createPersonalize(em, store);
const saved = createSaved(em, store);
const status = part("status", HTMLElement);

store.subscribe(({ ready, busy, said }) => {
  if (ready) status.textContent = busy ? STATUS[busy] : `Ready. ${said}`.trim();
  document.documentElement.dataset.busy = busy;
});
addEventListener("beforeunload", (event) => {
  if (store.get().busy || hasUnsaved(store)) event.preventDefault();
});

/** @type {Record<string, string>} */
const STATUS = {
  train: "Learning your text…",
  personalize: "Learning the second text…",
  write: "Writing…",
  compare: "Writing twice…",
  load: "Loading…",
};

/** @param {LoadProgress} p */
function showBoot({ text, loaded, total }) {
  const bar = query("#boot-bar", HTMLProgressElement);
  if (total) bar.value = loaded / total;
  else bar.removeAttribute("value");
  status.textContent = total ? `${text}: ${format.size(loaded)} of ${format.size(total)}…` : `${text}…`;
}

/** @param {SessionInfo} session */
function showBackend({ backend, adapterName, fallbackReason }) {
  const gpu = backend === "webgpu";
  part("backend", HTMLElement).dataset.state = backend;
  query("#backend-text", HTMLElement).textContent = gpu ? `WebGPU · ${adapterName}` : "NumPy · on the processor";
  const reason = query("#backend-reason", HTMLElement);
  reason.hidden = !fallbackReason;
  reason.textContent = fallbackReason ? `${sentence(fallbackReason)} It works, only slower.` : "";
}

async function start() {
  const wanted = new URLSearchParams(location.search).get("backend");
  try {
    evermind = await load({ backend: /** @type {"webgpu" | "numpy" | null} */ (wanted), onProgress: showBoot });
  } catch (error) {
    status.textContent = "It could not start.";
    part("backend", HTMLElement).dataset.state = "failed";
    query("#backend-text", HTMLElement).textContent = "Not running";
    showError(error);
    return;
  } finally {
    query("#boot", HTMLElement).hidden = true;
  }
  evermind.addEventListener("change", (event) => {
    const session = /** @type {CustomEvent<SessionInfo>} */ (event).detail;
    showBackend(session);
    store.set({ session });
  });
  evermind.addEventListener("lost", (event) => showNotice(sentence(/** @type {CustomEvent} */ (event).detail)));
  showBackend(evermind.info);
  query("#about", HTMLElement).textContent = `Evermind ${evermind.info.version}. Python, WebAssembly and WebGPU in this page.`;
  await saved.refresh();
  store.set({ session: evermind.info, ready: true });
  saved.checkRemembered();
}

void start();
