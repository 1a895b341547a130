// What this browser keeps and how much room that takes; one file for everything, and away with everything.

import { agree, make, part, sentence } from "./dom.mjs";
import * as format from "./format.mjs";
import { showNotice } from "./messages.mjs";
import { download } from "./record.mjs";
import { waiting } from "./waiting.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("../evermind.mjs").SavedItem} SavedItem */

/**
 * @param {() => Evermind} em @param {() => import("../studio.mjs").Studio} studio
 * @param {(action: () => Promise<void>) => Promise<void>} act
 */
export function createStorage(em, studio, act) {
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
      showNotice(`Restored ${names.join(", ") || "an empty backup"}. Load what you want to use.`);
    });
  });
  part("wipe", HTMLButtonElement).addEventListener("click", () =>
    act(async () => {
      const question = "Delete all models, personas and texts from this browser? Only a backup file brings them back.";
      if (!(await agree(question, "Delete everything"))) return;
      await studio().wipe();
      // The origin may hold other pages' settings: only those of this one go.
      for (const key of Object.keys(localStorage)) if (key.startsWith("evermind:")) localStorage.removeItem(key);
      showNotice("Everything was deleted from this browser.");
    }),
  );
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

/** @param {Evermind} em @param {SavedItem[]} saved */
export async function showStorage(em, saved) {
  const { used, quota, survivesReload, notice } = await em.storage();
  if (notice && survivesReload && notice !== told) showNotice(sentence(notice)); // that things are gone is not to be overlooked
  told = notice;
  const persisted = (await navigator.storage?.persisted?.()) ?? false;
  const kept = persisted ? "The browser promised to keep it." : "The browser may drop it when space runs low.";
  const room = quota ? `${format.size(used)} of ${format.size(quota)} used in this browser.` : "";
  part("storage", HTMLElement).textContent = [room, survivesReload ? kept : "", notice].filter(Boolean).join(" ");
  part("persist", HTMLButtonElement).hidden = persisted || !survivesReload;
  const kinds = [
    { title: "Models with their tokenizers", items: saved.filter((item) => item.kind === "base") },
    { title: "Personas", items: saved.filter((item) => item.kind === "adapter") },
  ];
  const rows = kinds.map(({ title, items }) => {
    const bytes = items.reduce((sum, item) => sum + item.bytes, 0);
    return make("li", {}, make("span", { class: "grow", text: title }), make("span", { class: "hint", text: `${items.length}, ${format.size(bytes)}` }));
  });
  const texts = saved.flatMap((item) => item.training.persona?.texts ?? []).filter((text) => !text.removed);
  const words = new Map(texts.map((text) => [text.id, text.words]));
  const total = [...words.values()].reduce((sum, count) => sum + count, 0);
  rows.push(make("li", {}, make("span", { class: "grow", text: "Texts that personas learned from" }), make("span", { class: "hint", text: `${words.size}, ${format.integer(total)} words` })));
  part("storage-list", HTMLUListElement).replaceChildren(...rows);
}
