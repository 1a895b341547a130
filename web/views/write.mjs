// Step 2: the model continues a beginning.

import { make, part, query } from "./dom.mjs";
import { clearError, showError } from "./messages.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("../evermind.mjs").WriteOptions} WriteOptions */
/** @typedef {import("./state.mjs").Store} Store */

/** @param {() => Evermind} em @param {Store} store */
export function createWrite(em, store) {
  const start = part("generate", HTMLButtonElement);
  const stop = part("generate-stop", HTMLButtonElement);
  const output = part("output", HTMLElement);
  const temperature = part("temperature", HTMLInputElement);
  let abort = new AbortController();

  temperature.addEventListener("input", () => {
    query("#temperature-value", HTMLElement).textContent = Number(temperature.value).toFixed(1);
  });
  start.addEventListener("click", async () => {
    clearError();
    abort = new AbortController();
    store.set({ busy: "write", said: "" });
    try {
      const { prompt, options } = readPrompt();
      const sheet = createSheet(output, prompt);
      for await (const piece of em().generate(prompt, { ...options, signal: abort.signal })) sheet.add(piece);
      sheet.end();
      store.set({ said: "Written." });
    } catch (error) {
      showError(error);
    } finally {
      output.removeAttribute("aria-busy");
      store.set({ busy: "" });
    }
  });
  stop.addEventListener("click", () => abort.abort());
  store.subscribe(({ ready, busy, session }) => {
    start.disabled = !ready || busy !== "" || !session?.model;
    stop.disabled = busy !== "write";
    part("writer", HTMLElement).textContent = session?.model ? `Writes: ${session.activeAdapter ?? "the model alone"}` : "";
  });
}

/** Prompt and sampling settings of step 2. @returns {{prompt: string, options: WriteOptions}} */
export function readPrompt() {
  return {
    prompt: part("prompt", HTMLTextAreaElement).value,
    options: {
      temperature: Number(part("temperature", HTMLInputElement).value),
      seed: Number(part("seed", HTMLInputElement).value),
      maxNewTokens: Number(part("max-tokens", HTMLInputElement).value),
    },
  };
}

/** A sheet with the prompt in grey, to which text is added. @param {HTMLElement} box @param {string} prompt */
export function createSheet(box, prompt) {
  const written = make("span", { class: "written" });
  const text = document.createTextNode("");
  written.append(text);
  box.replaceChildren(make("span", { class: "given", text: prompt }), written);
  box.setAttribute("aria-busy", "true"); // screen readers wait for the end
  return {
    /** @param {string} piece */
    add(piece) {
      text.appendData(piece);
      box.scrollTop = box.scrollHeight;
    },
    end() {
      box.removeAttribute("aria-busy");
      if (!text.data) written.append(make("span", { class: "empty", text: "(nothing more)" }));
    },
  };
}
