// The first choice: the model that comes with the page, fetched once, instead of teaching one from nothing.

import { findShipped, keptAs, useShipped } from "../shipped.mjs";
import { part, query } from "./dom.mjs";
import * as format from "./format.mjs";
import { clearError, showError, showNotice } from "./messages.mjs";
import { replaceUnsaved } from "./teach.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("../shipped.mjs").Shipped} Shipped */
/** @typedef {import("./state.mjs").Store} Store */

/** @param {() => Evermind} em @param {Store} store @param {() => Promise<void>} refresh shows the saved things anew */
export function createStart(em, store, refresh) {
  const start = part("shipped-start", HTMLButtonElement);
  const stop = part("shipped-stop", HTMLButtonElement);
  const status = part("shipped-status", HTMLElement);
  const bar = query("#shipped-bar", HTMLProgressElement);
  /** @type {Shipped | null} */
  let shipped = null;
  let abort = new AbortController();

  async function run() {
    if (!shipped || !(await replaceUnsaved(store, "Start from the shipped model in its place?")) || store.get().busy) return;
    clearError();
    abort = new AbortController();
    store.set({ busy: "fetch", said: "" });
    bar.hidden = stop.hidden = false;
    bar.removeAttribute("value");
    try {
      const name = await useShipped(em(), shipped, {
        signal: abort.signal,
        onProgress(loaded, total) {
          bar.value = loaded / total;
          const more = loaded === total ? "; opening it…" : "…";
          status.textContent = `Fetched ${format.size(loaded)} of ${format.size(total)}${more}`;
          if (loaded === total) bar.removeAttribute("value");
        },
      });
      const prompt = part("prompt", HTMLTextAreaElement);
      prompt.value ||= "It was a dark night, and";
      prompt.dispatchEvent(new Event("input"));
      const act = () => {
        query("#write", HTMLElement).scrollIntoView();
        prompt.focus({ preventScroll: true });
      };
      showNotice(`Loaded ${name}. It can write at once.`, { label: "To step 2", act });
    } catch (error) {
      if (!abort.signal.aborted) showError(error);
    } finally {
      bar.hidden = stop.hidden = true;
      await refresh();
      await introduce();
      store.set({ busy: "" });
    }
  }

  async function introduce() {
    if (!shipped) return;
    const kept = await keptAs(em(), shipped).catch(() => "");
    const bytes = shipped.model.bytes + shipped.tokenizer.bytes;
    status.textContent = kept
      ? `Kept in this browser as ${kept}: no download, works offline.`
      : `${format.size(bytes)}, fetched once from this page and kept in this browser.`;
  }

  /** What this build has is asked while Python still loads, so that nothing moves later. */
  async function find() {
    shipped = await findShipped().catch(() => null);
    query("#shipped", HTMLElement).hidden = !shipped;
    if (shipped) query("#shipped-about", HTMLElement).textContent = `${shipped.title}; it writes at once, and learns your voice in step 3.`;
    else query("#teach-lead", HTMLElement).textContent = "Give it a text. It builds its own vocabulary from it and learns to continue it.";
  }

  const found = find();
  start.addEventListener("click", () => void run());
  stop.addEventListener("click", () => abort.abort());
  store.subscribe(({ ready, busy }) => {
    start.disabled = !ready || busy !== "";
  });
  return {
    /** Offer the model if this build has one. */
    async offer() {
      await found;
      await introduce();
    },
  };
}
