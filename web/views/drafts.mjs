// What stands in a text box and is learned or written nowhere yet: it survives a reload, in the storage of this tab
// alone, which the browser forgets when the tab is closed.

const PREFIX = "evermind:draft:";
const PAUSE_MS = 400; // in typing, before it is kept

/** @typedef {{text: string, title: string}} Draft */

/** @type {(() => void)[]} */
const clearing = [];
/** @type {() => void} */
let told = () => {};

/**
 * Show what a box held before the reload, and keep what it holds from now on.
 * @param {string} id of the box @param {() => Draft} read @param {(draft: Draft) => void} show
 * @returns {() => void} to be called whenever it has changed
 */
export function keepDraft(id, read, show) {
  let timer = 0;
  const keep = () => {
    clearTimeout(timer);
    try {
      const { text, title } = read();
      if (text) sessionStorage.setItem(PREFIX + id, JSON.stringify([text, title]));
      else sessionStorage.removeItem(PREFIX + id);
    } catch {
      // Forbidden, or full: it stays in the box.
    }
    told();
  };
  try {
    const [text, title] = JSON.parse(sessionStorage.getItem(PREFIX + id) ?? "[]");
    if (text) show({ text: String(text), title: String(title) });
  } catch {
    // Not written here.
  }
  addEventListener("pagehide", keep);
  clearing.push(() => {
    show({ text: "", title: "" });
    keep();
  });
  return () => {
    clearTimeout(timer);
    timer = setTimeout(keep, PAUSE_MS);
  };
}

/** Empty the boxes, and what was kept of them. */
export function forgetDrafts() {
  for (const clear of clearing) clear();
}

/** Bytes of drafts and of the page's settings. */
export function draftBytes() {
  try {
    const kept = [sessionStorage, localStorage].flatMap(Object.entries).filter(([key]) => key.startsWith("evermind:"));
    return kept.reduce((sum, [key, value]) => sum + 2 * (key.length + value.length), 0); // UTF-16
  } catch {
    return 0; // forbidden: there are none
  }
}

/** @param {() => void} listener called when more or less is kept */
export function onDraft(listener) {
  told = listener;
}
