// The demo page: starts the model and hands it to the views. Uses nothing of the model but evermind.mjs and studio.mjs.

import { load } from "./evermind.mjs";
import { renewed, workOffline } from "./pwa.mjs";
import { createStudio } from "./studio.mjs";
import { query, part, sentence } from "./views/dom.mjs";
import * as format from "./views/format.mjs";
import { showError, showNotice } from "./views/messages.mjs";
import { createMood } from "./views/mood.mjs";
import { createPersonalize } from "./views/personalize.mjs";
import { createRecord } from "./views/record.mjs";
import { createSaved } from "./views/saved.mjs";
import { createStart } from "./views/start.mjs";
import { createStore } from "./views/state.mjs";
import { createTeach, hasUnsaved } from "./views/teach.mjs";
import { createTokens } from "./views/tokens.mjs";
import { onWaiting, waiting } from "./views/waiting.mjs";
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
const studio = () => createStudio(em());
const store = createStore({ ready: false, busy: "", paused: false, said: "", session: null, saved: [] });

const record = createRecord(studio, store);
createTeach(em, studio, store, record);
const write = createWrite(em, store);
createTokens(studio, store, write.text);
createPersonalize(em, studio, store, record, () => saved.refresh());
const saved = createSaved(em, studio, store);
const first = createStart(em, store, saved.refresh);
createMood(studio, store);
const status = part("status", HTMLElement);

let waits = false;

function showStatus() {
  const { ready, busy, paused, said } = store.get();
  const working = busy ? STATUS[busy] : waits ? "Working…" : "";
  if (ready) status.textContent = paused ? "Paused." : working || `Ready. ${said}`.trim();
  query("#working", HTMLProgressElement).hidden = !ready || paused || !working;
  document.documentElement.dataset.busy = busy;
}

store.subscribe(showStatus);
onWaiting((on) => {
  waits = on;
  showStatus();
});
// A file dropped beside the text boxes would take the page's place in the browser.
/** @param {DragEvent} event */
function keepPage(event) {
  if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  if (event.type === "drop") showNotice("Drop files onto the text box of step 1 or step 3.");
}
addEventListener("dragover", keepPage);
addEventListener("drop", keepPage);
addEventListener("beforeunload", (event) => {
  if (store.get().busy || hasUnsaved(store)) event.preventDefault();
});

/** @type {Record<string, string>} */
const STATUS = {
  train: "Learning your text…",
  personalize: "Learning the persona’s text…",
  write: "Writing…",
  compare: "Writing twice…",
  load: "Loading…",
  fetch: "Fetching the shipped model…",
  look: "Looking at it token by token…",
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
  const hint = /processor/.test(fallbackReason) ? "To use it anyway, add ?backend=webgpu to the address." : "It works, only slower.";
  reason.textContent = fallbackReason ? `${sentence(fallbackReason)} ${hint}` : "";
}

async function start() {
  const wanted = new URLSearchParams(location.search).get("backend");
  try {
    const loading = load({ backend: /** @type {"webgpu" | "numpy" | null} */ (wanted), onProgress: showBoot });
    await loading.catch(() => {}); // files of two versions may fail in any way
    if (await renewed()) return;
    evermind = await loading;
  } catch (error) {
    status.textContent = "It could not start.";
    part("backend", HTMLElement).dataset.state = "failed";
    query("#backend-text", HTMLElement).textContent = "Not running";
    query("#boot-bar", HTMLElement).hidden = true; // its place stays, so that nothing moves
    showError(error);
    return;
  }
  const request = evermind.request.bind(evermind);
  evermind.request = (...call) => waiting(() => request(...call));
  evermind.addEventListener("change", (event) => {
    const session = /** @type {CustomEvent<SessionInfo>} */ (event).detail;
    showBackend(session);
    store.set({ session });
  });
  evermind.addEventListener("lost", (event) => showNotice(sentence(/** @type {CustomEvent} */ (event).detail)));
  evermind.addEventListener("elsewhere", (event) => {
    const notices = /** @type {CustomEvent<string[]>} */ (event).detail;
    if (notices.length) showNotice(notices.join(" "));
    void saved.refresh();
  });
  showBackend(evermind.info);
  query("#about", HTMLElement).textContent = `Evermind ${evermind.info.version}. Python, WebAssembly and WebGPU in this page.`;
  await Promise.all([saved.refresh(), first.offer()]);
  query("#boot-bar", HTMLElement).hidden = true;
  store.set({ session: evermind.info, ready: true });
  void workOffline(() => !store.get().busy && !hasUnsaved(store), saved.refresh);
  saved.checkRemembered();
}

void start();
