// Step 4: what is kept in this browser, and files in and out.

import { agree, ask, make, onPress, part, query, refill, restful, sentence, update } from "./dom.mjs";
import * as format from "./format.mjs";
import { clearError, showError, showErrors, showNotice } from "./messages.mjs";
import { download } from "./record.mjs";
import { bringBack, createStorage, sayWiped, showStorage } from "./storage.mjs";
import { replaceUnsaved } from "./teach.mjs";
import { shareOf } from "./write.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("../evermind.mjs").SavedItem} SavedItem */
/** @typedef {import("./state.mjs").Store} Store */

/** The name of what was last used here and is saved: to offer it the next time, or to miss it. */
const REMEMBERED = "evermind:last-model";

/** Names under which adapters are exported, here and elsewhere. */
const ADAPTER_FILE = /\.lora$|\.adapter\b/i;

/** @param {() => Evermind} em @param {() => import("../studio.mjs").Studio} studio @param {Store} store */
export function createSaved(em, studio, store) {
  /** Do something, then show the list anew; errors go to the message box. @param {() => Promise<void>} action */
  async function act(action) {
    clearError();
    try {
      await action();
    } catch (error) {
      showError(error);
    }
    await refresh();
  }

  async function refresh() {
    try {
      store.set({ saved: await em().list() });
      await showStorage(em());
    } catch (error) {
      showError(error);
    }
  }

  const name = part("save-name", HTMLInputElement);
  query("#save-form", HTMLFormElement).addEventListener("submit", (event) => {
    event.preventDefault();
    void act(async () => {
      await em().save(name.value);
      showNotice(`Saved ${name.value.trim()} in this browser.`);
      await em().persist(); // after it: the browser may ask the person first
    });
  });
  const files = part("import-file", HTMLInputElement);
  files.addEventListener("change", () => {
    const chosen = [...(files.files ?? [])];
    files.value = "";
    void act(() => importFiles(em(), chosen));
  });
  const actions = createActions(em, studio, store, act);
  let current = "";
  store.subscribe(({ session }) => {
    const modelName = session?.model?.name ?? "";
    if (modelName !== current) name.value = modelName || "My model"; // a new model does not take the name of the last
    current = modelName;
    const persona = session?.adapters.find((adapter) => adapter.saved && adapter.name === session.activeAdapter);
    const used = persona?.name ?? (session?.model?.saved ? modelName : "");
    if (used && used !== remembered()) remember(used);
  });
  /** @type {unknown[]} */
  let shown = [];
  store.subscribe(({ ready, busy, session, saved }) => {
    part("save", HTMLButtonElement).disabled = !ready || busy !== "" || !session?.model;
    const now = [busy, session, saved];
    if (now.every((part, i) => part === shown[i])) return;
    const same = now.slice(1).every((part, i) => part === shown[i + 1]);
    shown = now;
    const list = part("saved-list", HTMLUListElement);
    const show = () => refill(list, saved.length ? saved.map((item) => entry(item, actions, inMemory(session, item))) : [NOTHING]);
    update(list, busy !== "", same ? undefined : show);
  });
  createStorage(em, studio, store, act, actions.load);
  createOffer(store, actions.load);
  return { refresh, checkRemembered: () => checkRemembered(store) };
}

/** @typedef {ReturnType<typeof createActions>} Actions */

/**
 * @param {() => Evermind} em @param {() => import("../studio.mjs").Studio} studio @param {Store} store
 * @param {(action: () => Promise<void>) => Promise<void>} act
 */
function createActions(em, studio, store, act) {
  /** For Undo: empty, if people agree, where it is too damaged for that; null if they do not. @param {string} name */
  const snapshotOf = (name) =>
    studio().snapshot(name).catch(async (error) => {
      const sure = await agree(`${sentence(error)} Delete it for good?`, `Delete ${name}`);
      return sure ? new Uint8Array() : null;
    });
  return {
    /** @param {SavedItem} item */
    load: (item) =>
      act(async () => {
        const same = store.get().session?.model?.fingerprint === item.fingerprint; // then what is in memory stays
        if (!same && !(await replaceUnsaved(store, `Load ${item.name} in its place?`))) return;
        if (store.get().busy) return; // another press, or another job, came first
        store.set({ busy: "load" });
        try {
          await em().load(item.name);
          showNotice(`Loaded ${item.name}.`);
        } finally {
          store.set({ busy: "" });
        }
      }),
    /** @param {SavedItem} item */
    rename: (item) =>
      act(async () => {
        const field = part("rename-name", HTMLInputElement);
        field.value = item.name;
        if (!(await ask(query("#rename-dialog", HTMLDialogElement)))) return;
        await em().rename(item.name, field.value);
        if (remembered() === item.name) remember(field.value.trim());
      }),
    /** @param {SavedItem} item */
    remove: (item) =>
      act(async () => {
        const kept = await snapshotOf(item.name);
        if (!kept) return;
        const { needing } = await em().request("delete", { name: item.name });
        if (remembered() === item.name) remember("");
        showNotice(`Deleted ${item.name}.${staying(needing)}`, kept.length ? () => void act(() => bringBack(studio(), kept, item.name)) : null);
      }),
    /** @param {SavedItem} item */
    download: (item) =>
      act(async () => {
        const { filename, bytes } = await em().exportFile(item.name);
        download(new Blob([/** @type {BlobPart} */ (bytes)], { type: "application/zip" }), filename);
      }),
  };
}

/** What becomes of the personas of a deleted model. @param {string[]} names */
function staying(names) {
  if (!names.length) return "";
  const [verb, need, they] = names.length === 1 ? ["stays", "needs", "it"] : ["stay", "need", "they"];
  return ` ${new Intl.ListFormat("en").format(names)} ${verb} here, but ${need} this model: ${they} can be used again once it is back.`;
}

/** @type {[string, () => HTMLElement]} */
const NOTHING = ["", () => make("li", { class: "empty", text: "Nothing saved yet." })];

/** @param {SavedItem} item @param {Actions} actions @param {boolean} current @returns {[string, () => HTMLElement]} */
function entry(item, actions, current) {
  const told = { ...item, training: item.training.lossAfter };
  return [JSON.stringify([told, current]), () => row(item, actions, current)];
}

/** @param {SavedItem} item @param {Actions} actions @param {boolean} current */
function row(item, actions, current) {
  const orphan = item.kind === "adapter" && !item.base;
  const kind = item.kind === "base" ? "Model with its tokenizer" : `Adapter of ${format.name(item.base) || "a model that is not here: bring it back to use this one"}`;
  const details = [kind, format.size(item.bytes), format.date(item.date)];
  if (item.training.lossAfter) details.push(`loss ${item.training.lossAfter.toFixed(2)}`);
  /** @param {string} text @param {string} testid @param {(item: SavedItem) => Promise<void>} action */
  const button = (text, testid, action) => {
    const made = make("button", { text, testid });
    made.type = "button";
    if (testid === "load") restful(made);
    made.setAttribute("aria-label", `${text} ${item.name}`);
    onPress(made, () => action(item));
    return made;
  };
  const title = make("p", { class: "name" }, make("span", { text: item.name }));
  if (current) title.append(" ", make("span", { class: "tag", text: "in use" }));
  if (orphan) title.append(" ", make("span", { class: "tag", text: "needs its model" }));
  const element = make(
    "li",
    { testid: "saved-item" },
    make("div", { class: "grow" }, title, make("p", { class: "hint", text: details.join(" · ") })),
    make(
      "div",
      { class: "row" },
      button("Load", "load", actions.load),
      button("Rename", "rename", actions.rename),
      button("Export", "export", actions.download),
      button("Delete", "delete", actions.remove),
    ),
  );
  element.dataset.kind = item.kind;
  element.dataset.name = item.name;
  return element;
}

/** @param {import("../evermind.mjs").SessionInfo | null} session @param {SavedItem} item */
function inMemory(session, item) {
  if (item.kind === "base") return Boolean(session?.model?.saved && session.model.name === item.name);
  return shareOf(session, item.name) > 0 && session?.model?.fingerprint === item.fingerprint;
}

/** Files exported here, each on its own, or a bare checkpoint together with its tokenizer.json. @param {Evermind} em @param {File[]} chosen */
async function importFiles(em, chosen) {
  const tokenizer = chosen.find((file) => file.name.endsWith(".json"));
  const others = chosen.filter((file) => file !== tokenizer);
  // An adapter needs its model: models go first, whatever the order of the names.
  others.sort((a, b) => Number(ADAPTER_FILE.test(a.name)) - Number(ADAPTER_FILE.test(b.name)));
  const done = [];
  const failures = [];
  for (const file of others.length || !tokenizer ? others : [tokenizer]) {
    try {
      const { kind, name, notice } = await em.importFile(file, tokenizer);
      done.push(`Imported the ${kind === "base" ? "model" : "adapter"} ${name}.`, notice);
    } catch (error) {
      // A message that does not say which file it is about gets its name.
      const text = sentence(error);
      failures.push(text.includes(file.name) ? text : `${file.name}: ${text}`);
    }
  }
  if (done.length) showNotice(done.filter(Boolean).join(" "));
  if (failures.length) showErrors(failures);
}

/** @param {string} name */
function remember(name) {
  try {
    if (name) localStorage.setItem(REMEMBERED, name);
    else localStorage.removeItem(REMEMBERED);
  } catch {
    // Forbidden here: then nothing is offered.
  }
}

function remembered() {
  try {
    return localStorage.getItem(REMEMBERED) ?? "";
  } catch {
    return "";
  }
}

/**
 * Offer in step 1 what was last used here, until something is loaded.
 * @param {Store} store @param {(item: SavedItem) => unknown} load
 */
function createOffer(store, load) {
  const button = part("kept-load", HTMLButtonElement);
  const last = () => store.get().saved.find(({ name }) => name === remembered());
  onPress(button, () => {
    const item = last();
    return item && load(item);
  });
  store.subscribe(({ ready, busy, session }) => {
    const name = ready ? last()?.name : remembered(); // has its place while Python starts, so that nothing moves
    query("#kept", HTMLElement).hidden = !name || Boolean(session?.model);
    query("#kept-name", HTMLElement).textContent = name ?? "";
    button.disabled = !ready || busy !== "";
  });
}

/** Say so if the browser has dropped what was last used here. @param {Store} store */
function checkRemembered(store) {
  const name = remembered();
  if (sayWiped() || !name) return;
  if (store.get().saved.some((one) => one.name === name)) return;
  showError(new Error(`${name} is no longer in this browser: its data was cleared. Import it from a file, or teach it again.`));
  remember("");
}
