// What this browser keeps and how much room that takes; one file for everything, and away with everything.

import { keptBytes } from "../pwa.mjs";
import { agree, make, part, sentence } from "./dom.mjs";
import { draftBytes, forgetDrafts, onDraft } from "./drafts.mjs";
import * as format from "./format.mjs";
import { showNotice } from "./messages.mjs";
import { download } from "./record.mjs";
import { waiting } from "./waiting.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */

/** Left for the page that comes after everything was deleted. */
const WIPED = "evermind:wiped";

/**
 * @param {() => Evermind} em @param {() => import("../studio.mjs").Studio} studio
 * @param {import("./state.mjs").Store} store @param {(action: () => Promise<void>) => Promise<void>} act
 * @param {(item: import("../evermind.mjs").SavedItem) => unknown} load
 */
export function createStorage(em, studio, store, act, load) {
  onDraft(() => shown.rows.length && showRows());
  part("persist", HTMLButtonElement).addEventListener("click", () =>
    act(async () => {
      const granted = await em().persist();
      showNotice(granted ? "The browser will keep it." : "The browser did not promise it. Back up what you want to keep.");
    }),
  );
  part("backup", HTMLButtonElement).addEventListener("click", () =>
    act(async () => {
      const bytes = await studio().backup();
      const day = new Date().toISOString().slice(0, 10);
      download(new Blob([/** @type {BlobPart} */ (bytes)], { type: "application/zip" }), `evermind-backup-${day}.zip`);
      showNotice(`Backed up: one file of ${format.size(bytes.length)}.`);
    }),
  );
  const files = part("restore", HTMLInputElement);
  files.addEventListener("change", () => {
    const [file] = files.files ?? [];
    if (!file) return;
    void act(async () => {
      const names = await waiting(() => studio().restore(file)); // reading it, too
      files.value = "";
      const restored = (await em().list()).filter((item) => names.includes(item.name));
      const first = restored.find((item) => item.kind === "adapter" && item.base) ?? restored[0];
      const said = `Restored ${names.join(", ") || "an empty backup"}. Load what you want to use.`;
      showNotice(said, first ? { label: `Load ${first.name}`, act: () => void load(first) } : null);
    });
  });
  part("wipe", HTMLButtonElement).addEventListener("click", () =>
    act(async () => {
      const question = "Delete all models, personas and texts from this browser, and empty the text boxes? Only a backup file brings them back.";
      if (!(await agree(question, "Delete everything"))) return;
      await studio().wipe();
      // The origin may hold other pages' settings: only those of this one go.
      try {
        for (const key of Object.keys(localStorage)) if (key.startsWith("evermind:")) localStorage.removeItem(key);
      } catch {
        // Forbidden: there are none.
      }
      forgetDrafts();
      // What is in memory goes for sure with the page and its worker, whatever runs there.
      keepWiped();
      store.set({ session: null, saved: [], busy: "" }); // nothing that leaving would lose
      location.reload();
    }),
  );
}

function keepWiped() {
  try {
    sessionStorage.setItem(WIPED, "yes");
  } catch {
    // Forbidden: then the empty page has to say it.
  }
}

/** After everything was deleted and the page came anew: say so. @returns {boolean} whether that was so */
export function sayWiped() {
  try {
    if (!sessionStorage.getItem(WIPED)) return false;
    sessionStorage.removeItem(WIPED);
  } catch {
    return false; // as above
  }
  showNotice("Everything was deleted from this browser.");
  return true;
}

/**
 * Undo a deletion; nothing that has the name by now is replaced.
 * @param {import("../studio.mjs").Studio} studio @param {Uint8Array} kept @param {string} name
 */
export async function bringBack(studio, kept, name) {
  const [now = name] = await studio.putBack(kept);
  if (now !== name) showNotice(`Something else is called ${name} by now: it came back as ${now}.`);
}

let told = ""; // what the person was told of a store that was lost
/** What is stored: what, in bytes, how many; how much may be, and whether it stays. @type {{rows: [string, number, number?][], quota: number, promise: string}} */
let shown = { rows: [], quota: 0, promise: "" };

/** @param {Evermind} em */
export async function showStorage(em) {
  const { used, quota, kinds, survivesReload, notice } = await em.storage();
  if (notice && survivesReload && notice !== told) showNotice(sentence(notice)); // that things are gone is not to be overlooked
  told = notice;
  const persisted = (await navigator.storage?.persisted?.()) ?? false;
  const kept = persisted ? "The browser promised to keep it." : "The browser may drop it when space runs low.";
  part("persist", HTMLButtonElement).hidden = persisted || !survivesReload;
  const { base, tokenizer, adapter, text } = kinds;
  const page = await keptBytes();
  const known = [base, tokenizer, adapter, text].reduce((sum, [, bytes]) => sum + bytes, page);
  shown = {
    rows: [
      ["Models with their tokenizers", base[1] + tokenizer[1], base[0]],
      ["Personas", adapter[1], adapter[0]],
      ["Texts that personas learned from", text[1], text[0]],
      ["This page with Python, to work without a network", page],
      ["The browser’s own bookkeeping", Math.max(0, used - known)],
    ],
    quota,
    promise: [survivesReload ? kept : "", notice].filter(Boolean).join(" "),
  };
  showRows();
}

function showRows() {
  /** @type {typeof shown.rows} */
  const rows = [...shown.rows, ["Text in the boxes, until this tab is closed, and settings", draftBytes()]];
  const used = rows.reduce((sum, [, bytes]) => sum + bytes, 0);
  const room = shown.quota ? `${format.size(used)} of ${format.size(shown.quota)} used in this browser.` : "";
  part("storage", HTMLElement).textContent = [room, shown.promise].filter(Boolean).join(" ");
  part("storage-list", HTMLUListElement).replaceChildren(
    ...rows.map(([title, bytes, count]) => {
      const size = [count, format.size(bytes)].filter((part) => part !== undefined).join(" · ");
      return make("li", {}, make("span", { class: "grow", text: title }), make("span", { class: "hint", text: size }));
    }),
  );
}
