// Step 3: a second text becomes an adapter, to switch on and off and to compare.

import { make, part, query } from "./dom.mjs";
import { clearError, showError } from "./messages.mjs";
import { createRun } from "./run.mjs";
import { createSource } from "./source.mjs";
import { createSheet, readPrompt } from "./write.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("./state.mjs").Store} Store */

const SAMPLE = { url: "./samples/time-machine.txt", title: "H. G. Wells, The Time Machine (excerpt)" };

/** @param {() => Evermind} em @param {Store} store */
export function createPersonalize(em, store) {
  const source = createSource(
    {
      text: "personalize-text",
      file: "personalize-file",
      sample: "personalize-sample",
      drop: "personalize-drop",
      count: "personalize-count",
    },
    SAMPLE,
    (file) => em().readText(file),
  );
  const name = part("adapter-name", HTMLInputElement);
  const length = part("personalize-length", HTMLSelectElement);
  const run = createRun("personalize", store, async (signal, onProgress) => {
    const result = await em().personalize(source.text(), {
      name: name.value,
      length: /** @type {"quick" | "normal" | "long"} */ (length.value),
      signal,
      onProgress,
    });
    chosen = store.get().session?.activeAdapter ?? chosen;
    return result;
  });
  /** The adapter that the switch turns on. */
  let chosen = "";
  const toggle = part("adapter-toggle", HTMLInputElement);
  const select = part("adapter-select", HTMLSelectElement);

  /** @param {string | null} adapter */
  async function activate(adapter) {
    clearError();
    try {
      await em().setAdapter(adapter);
    } catch (error) {
      showError(error);
    }
  }

  toggle.addEventListener("change", () => void activate(toggle.checked ? chosen : null));
  select.addEventListener("change", () => {
    chosen = select.value;
    if (toggle.checked) void activate(chosen);
    store.set({});
  });
  createCompare(em, store, () => chosen);

  let hadModel = false;
  store.subscribe(({ ready, busy, session }) => {
    const adapters = session?.adapters.map((a) => a.name) ?? [];
    if (!adapters.includes(chosen)) chosen = session?.activeAdapter ?? adapters[0] ?? "";
    select.replaceChildren(...adapters.map((a) => make("option", { text: a })));
    select.value = chosen;
    query("#adapter-choice", HTMLElement).hidden = adapters.length < 2;
    query("#toggle-text", HTMLElement).textContent = chosen ? `Write with “${chosen}”` : "Write with the adapter";
    query("#compare-adapter-label", HTMLElement).textContent = chosen ? `With “${chosen}”` : "With the adapter";
    toggle.checked = Boolean(session?.activeAdapter);
    toggle.disabled = select.disabled = !chosen || busy !== "";
    run.enable(ready && Boolean(session?.model));
    const hasModel = Boolean(session?.model);
    if (hasModel !== hadModel) run.say(hasModel ? "No second text learned yet." : "Needs a model: teach or load one first.");
    hadModel = hasModel;
  });
}

/** @param {() => Evermind} em @param {Store} store @param {() => string} adapter */
function createCompare(em, store, adapter) {
  const start = part("compare", HTMLButtonElement);
  const stop = part("compare-stop", HTMLButtonElement);
  let abort = new AbortController();

  start.addEventListener("click", async () => {
    clearError();
    abort = new AbortController();
    store.set({ busy: "compare", said: "" });
    const boxes = { base: part("compare-base", HTMLElement), adapter: part("compare-adapter", HTMLElement) };
    try {
      const { prompt, options } = readPrompt();
      const sheets = { base: createSheet(boxes.base, prompt), adapter: createSheet(boxes.adapter, prompt) };
      const pieces = em().compare(prompt, { ...options, adapter: adapter(), signal: abort.signal });
      for await (const { side, text } of pieces) sheets[side].add(text);
      sheets.base.end();
      sheets.adapter.end();
      store.set({ said: "Written twice." });
    } catch (error) {
      showError(error);
    } finally {
      for (const box of Object.values(boxes)) box.removeAttribute("aria-busy");
      store.set({ busy: "" });
    }
  });
  stop.addEventListener("click", () => abort.abort());
  store.subscribe(({ ready, busy }) => {
    start.disabled = !ready || busy !== "" || !adapter();
    stop.disabled = busy !== "compare";
  });
}
