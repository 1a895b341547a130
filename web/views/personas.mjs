// The personas of the model in memory: what each learned from and how well, and what can be done with it; mixing two.

import { ask, make, offer, onPress, part, query, refill, restful, update } from "./dom.mjs";
import * as format from "./format.mjs";
import { clearError, showError, showNotice } from "./messages.mjs";
import { download } from "./record.mjs";
import { bringBack } from "./storage.mjs";
import { mixed, shareOf } from "./write.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("../evermind.mjs").AdapterInfo} AdapterInfo */
/** @typedef {import("../studio.mjs").Studio} Studio */
/** @typedef {import("./state.mjs").Store} Store */
/** @typedef {{use: (name: string) => Promise<void>, learnOn: (name: string) => void}} Actions */

/** A new persona gets the next one. */
export const COLOURS = ["#2f5d8a", "#b4532a", "#3d7a4f", "#7a4a8c", "#a8862b", "#2a8a8a"];

/**
 * @param {() => Evermind} em @param {() => Studio} studio @param {Store} store
 * @param {import("./record.mjs").RecordView} record @param {Actions} actions
 * @param {() => Promise<void>} refresh shows the saved things anew
 */
export function createPersonas(em, studio, store, record, actions, refresh) {
  /** @param {() => Promise<unknown>} action */
  async function act(action) {
    clearError();
    try {
      await action();
      await refresh();
    } catch (error) {
      showError(error);
    }
  }

  /** @param {string} name */
  async function rename(name) {
    const field = part("rename-name", HTMLInputElement);
    field.value = name;
    if (!(await ask(query("#rename-dialog", HTMLDialogElement)))) return;
    if (opened.has(name)) opened.add(field.value.trim());
    await studio().rename(name, field.value);
  }

  /** @param {string} name */
  async function remove(name) {
    const kept = await studio().remove(name);
    opened.delete(name);
    showNotice(`Deleted ${name}.`, () => void act(() => bringBack(studio(), kept, name)));
  }

  /** @param {string} name */
  async function duplicate(name) {
    const { name: copy, notice } = await studio().duplicate(name);
    showNotice([`${copy} is a copy of ${name}.`, notice].filter(Boolean).join(" "));
  }

  /** @param {string} name */
  async function exportFile(name) {
    const { filename, bytes } = await em().exportFile(name);
    download(new Blob([/** @type {BlobPart} */ (bytes)], { type: "application/zip" }), filename);
  }

  /** @param {string} name */
  async function showTexts(name) {
    query("#texts-title", HTMLElement).textContent = `What “${name}” learned from`;
    const list = part("texts", HTMLUListElement);
    const fill = async () => {
      const texts = await studio().texts(name);
      const rows = texts.map((text) => textRow(text, () => act(() => studio().removeText(name, text.id)).then(fill)));
      list.replaceChildren(...(rows.length ? rows : [make("li", { class: "empty", text: "It came as a file, without its texts." })]));
    };
    await fill();
    await ask(query("#texts-dialog", HTMLDialogElement));
  }

  /** Names of those that show what else can be done with them. @type {Set<string>} */
  const opened = new Set();
  let rows = 0;

  /** @param {AdapterInfo} adapter @param {string | undefined} date @param {number} share in what writes */
  function row({ name, training, bytes, saved }, date, share) {
    const colour = training.persona?.colour ?? COLOURS[0];
    const swatch = restful(make("input", { class: "swatch", testid: "persona-colour" }));
    swatch.type = "color";
    swatch.value = colour;
    swatch.setAttribute("aria-label", `Colour of ${name}`);
    swatch.addEventListener("change", () => void act(() => studio().paint(name, swatch.value)));
    /** @param {string} text @param {string} testid @param {() => unknown} action @param {boolean} [needsSaved] */
    const button = (text, testid, action, needsSaved = false) => {
      const made = make("button", { text, testid });
      made.type = "button";
      if (needsSaved && !saved) Object.assign(made, { disabled: true, title: "Save the model in step 4 first" });
      else restful(made);
      made.setAttribute("aria-label", `${text}: ${name}`);
      onPress(made, () => act(async () => action()));
      return made;
    };
    const title = make("p", { class: "name" }, make("span", { text: name }));
    if (share) title.append(" ", make("span", { class: "tag", text: share === 1 ? "writes" : `writes ${Math.round(share * 100)} %` }));
    const words = (training.persona?.texts ?? []).reduce((sum, text) => sum + text.words, 0);
    const details = [
      training.lossBefore && training.lossAfter ? `loss ${training.lossBefore.toFixed(2)} → ${training.lossAfter.toFixed(2)}` : "",
      words ? format.counted(words, "word") : "",
      format.size(bytes),
      date ? format.date(date) : "",
      saved ? "" : "not saved yet",
    ];
    const more = make(
      "div",
      { class: "row more" },
      button("Curve", "persona-record", () => record.show(name, training, name)),
      button("Copy", "persona-duplicate", () => duplicate(name)),
      button("Rename", "persona-rename", () => rename(name)),
      button("Export", "persona-export", () => exportFile(name), true),
      button("Delete", "persona-delete", () => remove(name), true),
    );
    more.id = `more-${(rows += 1)}`;
    const opener = make("button", { text: "More", testid: "persona-more" });
    opener.type = "button";
    opener.setAttribute("aria-label", `More: ${name}`);
    opener.setAttribute("aria-controls", more.id);
    /** @param {boolean} on */
    const open = (on) => {
      more.hidden = !on;
      opener.setAttribute("aria-expanded", String(on));
      if (on) opened.add(name);
      else opened.delete(name);
    };
    open(opened.has(name));
    opener.addEventListener("click", () => open(more.hidden));
    const item = make(
      "li",
      { testid: "persona" },
      swatch,
      make("div", { class: "grow" }, title, make("p", { class: "hint", text: details.filter(Boolean).join(" · ") })),
      make(
        "div",
        { class: "row" },
        button("Use", "persona-use", () => actions.use(name)),
        button("Learn on", "persona-learn", () => actions.learnOn(name)),
        button("Texts", "persona-texts", () => showTexts(name)),
        opener,
      ),
      more,
    );
    item.dataset.name = name;
    item.style.setProperty("--persona", colour);
    return item;
  }

  createMixer(studio, store, act);
  /** @param {AdapterInfo} adapter @param {string | undefined} date @param {number} share @returns {[string, () => HTMLElement]} */
  const entry = (adapter, date, share) => {
    const { record: _, ...told } = adapter.training; // long, and not shown
    return [JSON.stringify([{ ...adapter, training: told }, date, share]), () => row(adapter, date, share)];
  };
  /** @type {unknown[]} */
  let shown = [];
  store.subscribe(({ session, busy, saved }) => {
    const now = [busy, session, saved];
    if (now.every((part, i) => part === shown[i])) return;
    const same = now.slice(1).every((part, i) => part === shown[i + 1]);
    shown = now;
    const list = part("personas", HTMLUListElement);
    const show = () => {
      const adapters = session?.adapters ?? [];
      const dates = new Map(saved.map(({ name, date }) => [name, date]));
      list.hidden = !adapters.length;
      refill(list, adapters.map((one) => entry(one, one.training.date ?? dates.get(one.name), shareOf(session, one.name))));
    };
    update(list, busy !== "", same ? undefined : show);
  });
}

/** @param {() => Studio} studio @param {Store} store @param {(action: () => Promise<unknown>) => Promise<void>} act */
function createMixer(studio, store, act) {
  const [a, b] = ["mix-a", "mix-b"].map((id) => part(id, HTMLSelectElement));
  const slider = part("mix", HTMLInputElement);
  const toggle = part("mix-toggle", HTMLInputElement);

  /** What is set; {} for one with itself. @returns {Record<string, number>} */
  function mix() {
    const share = Number(slider.value) / 100;
    return a.value === b.value ? {} : { [a.value]: 1 - share, [b.value]: share };
  }

  function say() {
    slider.setAttribute("aria-valuetext", mixed(mix()));
    query("#mix-said", HTMLElement).textContent = `: ${mixed(mix()) || "choose two different ones"}`;
  }

  function apply() {
    say();
    void act(() => studio().setMix(toggle.checked ? mix() : {}));
  }

  slider.addEventListener("input", say);
  for (const control of [a, b, slider, toggle]) control.addEventListener("change", apply);
  store.subscribe(({ session, busy }) => {
    const names = session?.adapters.map((adapter) => adapter.name) ?? [];
    for (const [select, other] of /** @type {const} */ ([[a, 0], [b, 1]])) {
      const before = select.value;
      offer(select, names);
      select.value = names.includes(before) ? before : (names[other] ?? "");
      select.disabled = busy !== "";
    }
    slider.disabled = toggle.disabled = busy !== "";
    toggle.checked = Object.keys(session?.mix ?? {}).length > 0;
    query("#mixer", HTMLElement).hidden = names.length < 2;
    say();
  });
}

/** @param {import("../evermind.mjs").PersonaText & {text: string}} text @param {() => unknown} remove */
function textRow({ title, words, date, text }, remove) {
  const button = make("button", { text: "Remove", testid: "text-remove" });
  button.type = "button";
  button.disabled = !text;
  button.setAttribute("aria-label", `Remove ${title}`);
  button.addEventListener("click", () => void remove());
  const preview = text ? `${text.slice(0, 160).trim()}…` : "Removed.";
  return make(
    "li",
    { testid: "text" },
    make(
      "div",
      { class: "grow" },
      make("p", { class: "name", text: [format.name(title), format.counted(words, "word"), date ? format.date(date) : ""].filter(Boolean).join(" · ") }),
      make("p", { class: "hint", text: preview }),
    ),
    button,
  );
}
