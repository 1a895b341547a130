// A text box that also takes dropped and chosen files, several at once, and a built-in sample, and counts its words.

import { proseOf } from "../documents.mjs";
import { make, part, query } from "./dom.mjs";
import * as format from "./format.mjs";
import { clearError, limit, showCut, showError, showErrors } from "./messages.mjs";

// What a text box still handles well; training reads at most this much of a text anyway.
const MAX_SHOWN = 1_000_000;

/**
 * @param {object} ids
 * @param {string} ids.text @param {string} ids.file @param {string} ids.sample test ids
 * @param {string} ids.drop @param {string} ids.count @param {string} ids.files element ids
 * @param {{url: string, title: string}} sample
 * @param {(file: File) => Promise<string>} readText
 * @param {() => void} [onSample] called when the sample was taken
 */
export function createSource(ids, sample, readText, onSample = () => {}) {
  const box = part(ids.text, HTMLTextAreaElement);
  const file = part(ids.file, HTMLInputElement);
  const drop = query(`#${ids.drop}`, HTMLElement);
  const count = query(`#${ids.count}`, HTMLElement);
  const list = query(`#${ids.files}`, HTMLUListElement);
  /** What the box holds, while nobody has typed in it. @type {{title: string, text: string}[]} */
  let pieces = [];

  function show() {
    const text = pieces.map((piece) => piece.text).join("\n\n");
    box.value = text.slice(0, MAX_SHOWN);
    box.scrollTop = 0;
    update();
    if (text.length > MAX_SHOWN) showCut(MAX_SHOWN);
  }

  const title = () => (pieces.length > 1 ? `${pieces.length} files` : (pieces[0]?.title ?? ""));

  function update() {
    count.textContent = [title(), format.count(box.value)].filter(Boolean).join(" · ");
    list.replaceChildren(...(pieces.length > 1 ? pieces.map(row) : []));
  }

  /** @param {{title: string, text: string}} piece */
  function row(piece) {
    const remove = make("button", { class: "link", text: "Remove" });
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${piece.title}`);
    remove.addEventListener("click", () => {
      pieces = pieces.filter((other) => other !== piece);
      show();
    });
    return make("li", {}, make("span", { class: "grow", text: `${format.name(piece.title)} · ${format.count(piece.text)}` }), remove);
  }

  /** Read files; those that cannot be read are named, and the others are taken. @param {File[]} chosen */
  async function take(chosen) {
    if (!chosen.length) return;
    clearError();
    const taken = [];
    const failures = [];
    for (const one of chosen) {
      try {
        taken.push({ title: one.name, text: proseOf(await readText(one), one.name) });
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length) showErrors(failures);
    if (!taken.length) return;
    pieces = taken;
    show();
  }

  limit(box, MAX_SHOWN);
  box.addEventListener("input", () => {
    pieces = [];
    update();
  });
  file.addEventListener("change", async () => {
    await take([...(file.files ?? [])]);
    file.value = ""; // the same file may be chosen again
  });
  part(ids.sample, HTMLButtonElement).addEventListener("click", async () => {
    clearError();
    try {
      const response = await fetch(sample.url);
      if (!response.ok) throw new Error(`The sample is missing from this page (HTTP ${response.status}).`);
      pieces = [{ title: sample.title, text: await response.text() }];
      show();
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
    const dropped = [...(event.dataTransfer?.files ?? [])];
    if (!dropped.length) return; // dragged text: the browser puts it in
    event.preventDefault();
    void take(dropped);
  });
  return { text: () => box.value, title, focus: () => box.focus() };
}
