// Step 2: an editor in which the model goes on, in grey, until its words are taken or rejected.
//
// A mirror behind the text area holds the same text, unseen, and what the model adds to it, so that both break
// their lines at the same places.

import { make, part, query } from "./dom.mjs";
import { keepDraft } from "./drafts.mjs";
import * as format from "./format.mjs";
import { clearError, limit, showError, showNotice } from "./messages.mjs";
import { createSampling, readSampling } from "./sampling.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("./state.mjs").Store} Store */

/** @param {() => Evermind} em @param {Store} store */
export function createWrite(em, store) {
  const editor = createEditor();
  const start = part("generate", HTMLButtonElement);
  const stop = part("generate-stop", HTMLButtonElement);
  const another = part("another", HTMLButtonElement);
  let abort = new AbortController();
  createSampling();

  async function write() {
    if (start.disabled) return;
    clearError();
    abort = new AbortController();
    store.set({ busy: "write", said: "" });
    try {
      editor.begin();
      const options = { ...readSampling(), signal: abort.signal };
      for await (const piece of em().generate(editor.text(), options)) {
        if (!editor.add(piece)) abort.abort();
      }
      editor.end(true);
      store.set({ said: "Written." });
    } catch (error) {
      showError(error);
    } finally {
      editor.end(false);
      store.set({ busy: "" });
    }
  }

  start.addEventListener("click", () => void write());
  stop.addEventListener("click", () => abort.abort());
  another.addEventListener("click", () => {
    const seed = part("seed", HTMLInputElement);
    seed.value = String((Number(seed.value) + 1) % 2 ** 32);
    void write();
  });
  part("prompt", HTMLTextAreaElement).addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    void write();
  });
  part("copy", HTMLButtonElement).addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(editor.text() + editor.suggested());
      showNotice("Copied.");
    } catch {
      showError(new Error("The browser did not allow copying. Select the text and press Ctrl+C."));
    }
  });
  store.subscribe(({ ready, busy, session }) => {
    start.disabled = !ready || busy !== "" || !session?.model;
    another.disabled = start.disabled || !editor.suggested();
    stop.disabled = busy !== "write";
    part("writer", HTMLElement).textContent = session?.model ? `Writes: ${writerOf(session)}` : "Needs a model: step 1";
  });
  return { text: () => editor.text() + editor.suggested() };
}

/** Who writes, in words. @param {import("../evermind.mjs").SessionInfo} session */
export function writerOf({ mix, activeAdapter }) {
  return mixed(mix ?? {}) || (activeAdapter ?? "the model alone");
}

/** A persona's share in what writes, 0 to 1. @param {import("../evermind.mjs").SessionInfo | null} session @param {string} name */
export function shareOf(session, name) {
  if (mixed(session?.mix ?? {})) return session?.mix?.[name] ?? 0;
  return Number(session?.activeAdapter === name);
}

/** Shares of personas, in words. @param {Record<string, number>} mix */
export function mixed(mix) {
  return Object.entries(mix).map(([name, weight]) => `${Math.round(weight * 100)} % ${format.name(name)}`).join(" + ");
}

// More than anybody writes in a box; the model reads the end of it.
const MAX_WRITTEN = 200_000;

function createEditor() {
  const box = part("prompt", HTMLTextAreaElement);
  const mirror = part("output", HTMLElement);
  const sheet = query("#editor", HTMLElement);
  limit(box, MAX_WRITTEN);
  const given = make("span", { class: "given" });
  given.setAttribute("aria-hidden", "true"); // the text area has it
  const added = document.createTextNode("");
  const ghost = make("span", { class: "ghost" }, added);
  const nothing = make("span", { class: "empty", text: "(nothing more)" });
  mirror.append(given, ghost);
  let changed = () => {};
  const buttons = ["take-word", "take-all", "reject"].map((id) => part(id, HTMLButtonElement));
  let writing = false;

  function show() {
    given.textContent = box.value;
    for (const button of buttons) button.disabled = !added.data;
    changed();
  }

  /** @param {string} words from the start of what is suggested */
  function take(words) {
    box.value += words;
    added.deleteData(0, words.length);
    show();
  }

  let followed = 0; // how far down that was
  let due = 0;

  /** Show the end of what is suggested, once a frame, unless they scrolled up to read. */
  function follow() {
    due ||= requestAnimationFrame(() => {
      due = 0;
      if (sheet.scrollTop < followed - 1) return;
      sheet.scrollTop = sheet.scrollHeight;
      followed = sheet.scrollTop;
    });
  }

  function reject() {
    added.data = "";
    writing = false;
    nothing.remove();
    show();
  }

  const word = () => /^\s*\S*/.exec(added.data)?.[0] ?? "";
  const [takeWord, takeAll, rejectAll] = buttons;
  takeWord.addEventListener("click", () => take(word()));
  takeAll.addEventListener("click", () => take(added.data));
  rejectAll.addEventListener("click", reject);
  box.addEventListener("keydown", (event) => {
    if (!added.data || event.isComposing) return;
    const atEnd = box.selectionStart === box.value.length;
    const forward = getComputedStyle(mirror).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    if (event.key === forward && atEnd && !event.shiftKey) take(event.ctrlKey || event.metaKey ? added.data : word());
    else if (event.key === "Escape") reject();
    else return;
    event.preventDefault();
  });
  box.addEventListener("input", () => {
    const typed = box.value.startsWith(given.textContent) ? box.value.slice(given.textContent.length) : null;
    // Typing what is suggested takes it; anything else rejects it.
    if (typed && added.data.startsWith(typed)) added.deleteData(0, typed.length);
    else reject();
    nothing.remove();
    show();
  });
  /** @param {{text: string}} draft */
  const put = ({ text }) => {
    box.value = text;
    reject();
  };
  changed = keepDraft("prompt", () => ({ text: box.value, title: "" }), put);
  show();

  return {
    text: () => box.value,
    suggested: () => added.data,
    begin() {
      reject();
      writing = true;
      followed = 0;
      mirror.setAttribute("aria-busy", "true"); // screen readers wait for the end
    },
    /** @param {string} piece @returns {boolean} whether more is wanted */
    add(piece) {
      if (!writing) return false;
      added.appendData(piece);
      show();
      follow();
      return true;
    },
    /** @param {boolean} whole it came to its end */
    end(whole) {
      if (added.data) added.data = added.data.trimEnd();
      if (whole && writing && !added.data) mirror.append(nothing);
      writing = false;
      mirror.removeAttribute("aria-busy");
      show();
    },
  };
}

/** Text and sampling settings of step 2. */
export function readPrompt() {
  return { prompt: part("prompt", HTMLTextAreaElement).value, options: readSampling() };
}

/** A sheet with the prompt in grey, to which text is added. @param {HTMLElement} box @param {string} prompt */
export function createSheet(box, prompt) {
  const written = make("span", { class: "written" });
  const text = document.createTextNode("");
  written.append(text);
  box.replaceChildren(make("span", { class: "before", text: prompt }), written);
  box.setAttribute("aria-busy", "true"); // screen readers wait for the end
  return {
    /** @param {string} piece */
    add(piece) {
      text.appendData(piece);
      box.scrollTop = box.scrollHeight;
    },
    end() {
      text.data = text.data.trimEnd();
      box.removeAttribute("aria-busy");
      if (!text.data) written.append(make("span", { class: "empty", text: "(nothing more)" }));
    },
  };
}
