// A text box that also takes dropped and chosen files, many at once, and a built-in sample, and counts its words.

import { proseOf } from "../documents.mjs";
import { make, part, query } from "./dom.mjs";
import { keepDraft } from "./drafts.mjs";
import * as format from "./format.mjs";
import { clearError, cutAt, limit, showError, showErrors, showNotice } from "./messages.mjs";

// What a text box still handles well; training reads at most this much of a text anyway.
const MAX_SHOWN = 1_000_000;
const SHORT = 5_000; // characters: less teaches little
const MAX_ROWS = 50; // of files, in the list below the box
const NOTICED_MS = 150; // of reading, before it is shown

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
  let changed = () => {};
  /** The files that are read now. @type {{stopped: boolean} | null} */
  let reading = null;

  /** @returns {string} a sentence if that is not all of it */
  function show() {
    const text = pieces.map((piece) => piece.text).join("\n\n");
    box.value = text.slice(0, MAX_SHOWN);
    box.scrollTop = 0;
    update();
    return text.length > MAX_SHOWN ? cutAt(MAX_SHOWN) : "";
  }

  /**
   * Put these in the place of what is there; what somebody typed can come back.
   * @param {typeof pieces} taken @param {string} what they are @param {string} [note]
   */
  function replace(taken, what, note = "") {
    const typed = pieces.length || !box.value.trim() ? "" : box.value;
    reading = null;
    pieces = taken;
    const said = [note, show(), typed ? `The ${what} replaced your text.` : ""].filter(Boolean).join(" ");
    if (said) showNotice(said, typed ? () => put({ text: typed, title: "" }) : null);
  }

  /** @param {import("./drafts.mjs").Draft} draft */
  function put({ text, title }) {
    reading = null;
    pieces = title ? [{ title, text }] : [];
    box.value = text;
    update();
  }

  const title = () => (pieces.length > 1 ? `${pieces.length} files` : (pieces[0]?.title ?? ""));
  function update() {
    const advice = box.value && box.value.length < SHORT ? "a few pages work best" : "";
    count.textContent = [title(), format.count(box.value), advice].filter(Boolean).join(" · ");
    const rows = pieces.length > 1 ? pieces.slice(0, MAX_ROWS).map(row) : [];
    if (pieces.length > MAX_ROWS) rows.push(make("li", { class: "hint", text: `and ${format.integer(pieces.length - MAX_ROWS)} more` }));
    list.replaceChildren(...rows);
    changed();
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

  /** A row that says how far the reading is, and ends it. @param {{stopped: boolean}} job @param {number} total */
  function createReading(job, total) {
    const text = make("span", { class: "grow" });
    const bar = make("progress");
    bar.max = total;
    bar.setAttribute("aria-label", "Reading the files");
    const stop = make("button", { class: "link", text: "Stop", testid: "reading-stop" });
    stop.type = "button";
    stop.addEventListener("click", () => (job.stopped = true));
    list.replaceChildren(make("li", { testid: "reading" }, text, stop), make("li", {}, bar));
    return (/** @type {number} */ at) => {
      bar.value = at;
      text.textContent = `Reading: ${format.integer(at)} of ${format.counted(total, "file")}`;
    };
  }

  /** Read files; those that cannot be read are named, and the others are taken. @param {File[]} chosen */
  async function take(chosen) {
    if (!chosen.length) return;
    clearError();
    const job = (reading = { stopped: false });
    const since = performance.now();
    /** @type {((at: number) => void) | null} */
    let progress = null;
    const taken = [];
    const failures = [];
    let room = MAX_SHOWN;
    let at = 0;
    for (; at < chosen.length && room > 0 && !job.stopped; at++) {
      if (!progress && performance.now() - since > NOTICED_MS) progress = createReading(job, chosen.length);
      progress?.(at);
      try {
        const text = proseOf(await readText(chosen[at]), chosen[at].name);
        taken.push({ title: chosen[at].name, text });
        room -= text.length;
      } catch (error) {
        failures.push(error);
      }
      if (job !== reading) return; // somebody has typed, or taken other files
    }
    update(); // away with the progress
    if (failures.length) showErrors(failures);
    if (!taken.length) return;
    const what = taken.length === 1 ? "file" : "files";
    replace(taken, what, at < chosen.length ? `The first ${format.integer(at)} of ${format.integer(chosen.length)} files are used.` : "");
  }

  /** Ready for another text: pasting replaces this one. */
  function select() {
    box.focus({ preventScroll: true });
    box.select();
  }

  limit(box, MAX_SHOWN);
  changed = keepDraft(ids.text, () => ({ text: box.value, title: title() }), put);
  box.addEventListener("input", () => {
    reading = null;
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
      replace([{ title: sample.title, text: await response.text() }], "sample");
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
  return { text: () => box.value, title, select };
}
