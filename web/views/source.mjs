// A text box that also takes dropped and chosen files and a built-in sample, and counts its words.

import { part, query } from "./dom.mjs";
import * as format from "./format.mjs";
import { clearError, showError, showNotice } from "./messages.mjs";

// What a text box still handles well; training reads at most this much of a text anyway.
const MAX_SHOWN = 1_000_000;

/**
 * @param {object} ids
 * @param {string} ids.text @param {string} ids.file @param {string} ids.sample test ids
 * @param {string} ids.drop @param {string} ids.count element ids
 * @param {{url: string, title: string}} sample
 * @param {(file: File) => Promise<string>} readText
 * @param {() => void} [onSample] called when the sample was taken
 */
export function createSource(ids, sample, readText, onSample = () => {}) {
  const box = part(ids.text, HTMLTextAreaElement);
  const file = part(ids.file, HTMLInputElement);
  const drop = query(`#${ids.drop}`, HTMLElement);
  const count = query(`#${ids.count}`, HTMLElement);
  let title = "";

  /** @param {string} text @param {string} from */
  function show(text, from) {
    box.value = text.slice(0, MAX_SHOWN);
    box.scrollTop = 0;
    title = from;
    update();
    if (text.length > MAX_SHOWN) showNotice(`${from} is long: its first ${format.integer(MAX_SHOWN)} characters are used.`);
  }

  function update() {
    count.textContent = [title, format.count(box.value)].filter(Boolean).join(" · ");
  }

  /** @param {File | undefined} chosen */
  async function take(chosen) {
    if (!chosen) return;
    clearError();
    try {
      show(await readText(chosen), chosen.name);
    } catch (error) {
      showError(error);
    }
  }

  box.addEventListener("input", () => {
    title = "";
    update();
  });
  file.addEventListener("change", async () => {
    await take(file.files?.[0]);
    file.value = ""; // the same file may be chosen again
  });
  part(ids.sample, HTMLButtonElement).addEventListener("click", async () => {
    clearError();
    try {
      const response = await fetch(sample.url);
      if (!response.ok) throw new Error(`The sample is missing from this page (HTTP ${response.status}).`);
      show(await response.text(), sample.title);
      onSample();
    } catch (error) {
      showError(error);
    }
  });
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.dataset.over = "";
  });
  drop.addEventListener("dragleave", () => delete drop.dataset.over);
  drop.addEventListener("drop", (event) => {
    delete drop.dataset.over;
    const dropped = event.dataTransfer?.files[0];
    if (!dropped) return; // dragged text: the browser puts it in
    event.preventDefault();
    void take(dropped);
  });
  return { text: () => box.value, title: () => title, focus: () => box.focus() };
}
