// Step 3: a second text becomes an adapter, to switch on and off and to compare.

import { choose, offer, part, query } from "./dom.mjs";
import * as format from "./format.mjs";
import { clearError, showError, showNotice } from "./messages.mjs";
import { COLOURS, createPersonas } from "./personas.mjs";
import { createRun } from "./run.mjs";
import { createSource } from "./source.mjs";
import { createSheet, mixed, readPrompt } from "./write.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("./state.mjs").Store} Store */

const SAMPLE = { url: "./samples/time-machine.txt", title: "H. G. Wells, The Time Machine (excerpt)" };

/**
 * @param {() => Evermind} em @param {() => import("../studio.mjs").Studio} studio @param {Store} store
 * @param {import("./record.mjs").RecordView} record @param {() => Promise<void>} refresh shows the saved things anew
 */
export function createPersonalize(em, studio, store, record, refresh) {
  const source = createSource(
    {
      text: "personalize-text",
      file: "personalize-file",
      sample: "personalize-sample",
      drop: "personalize-drop",
      count: "personalize-count",
      files: "personalize-files",
    },
    SAMPLE,
    (file) => em().readText(file),
  );
  const name = part("adapter-name", HTMLInputElement);
  const length = part("personalize-length", HTMLSelectElement);
  let hadBackend = false;
  const goOn = part("go-on", HTMLInputElement);
  const colour = part("adapter-colour", HTMLInputElement);
  let picked = false; // by hand, for the next run
  colour.addEventListener("input", () => (picked = true));
  let learned = "";
  const known = () => store.get().session?.adapters.find((adapter) => adapter.name === name.value.trim());

  /** What a persona has learned is only replaced on purpose. */
  async function confirm() {
    await em().checkText(source.text()); // nobody should be asked about a text that will be refused
    const before = known();
    if (!before || goOn.checked) return true;
    const texts = before.training.persona?.texts.length ?? 0;
    const of = texts ? ` from ${format.counted(texts, "text")}` : "";
    const said = await choose(`“${before.name}” has learned${of} already. Learn on from that, or replace it?`, "Learn on", "Replace");
    if (said === "ok") goOn.checked = true;
    return said !== "cancel";
  }

  /** @param {string} said of the persona that was replaced */
  function offerOld(said) {
    showNotice(said, async () => {
      try {
        await studio().unreplace();
        await refresh();
      } catch (error) {
        showError(error);
        offerOld(said);
      }
    });
  }

  /** @param {AbortSignal} signal @param {(progress: import("../evermind.mjs").Progress) => void} onProgress */
  const work = async (signal, onProgress) => {
    learned = name.value.trim();
    const result = await em().personalize(source.text(), {
      name: name.value,
      title: source.title(),
      colour: colour.value,
      goOn: Boolean(known()) && goOn.checked,
      length: /** @type {"quick" | "normal" | "long"} */ (length.value),
      signal,
      onProgress,
    });
    chosen = store.get().session?.activeAdapter ?? chosen;
    if (result.steps) learned = chosen; // another name, where another tab taught it, too
    picked = false;
    await refresh(); // a persona of a saved model is saved at once
    if (result.replaced) offerOld([`${learned} was replaced.`, result.notice].filter(Boolean).join(" "));
    else if (result.notice) showNotice(result.notice);
    return result;
  };
  const run = createRun("personalize", store, work, (on) => studio().pause(on), (result) => void record.show(learned, result, learned), confirm);
  name.addEventListener("input", () => store.set({}));
  /** The adapter that the switch turns on. */
  let chosen = "";
  const toggle = part("adapter-toggle", HTMLInputElement);
  const select = part("adapter-select", HTMLSelectElement);

  /** @param {string | null} adapter */
  async function activate(adapter) {
    clearError();
    try {
      await em().setAdapter(adapter);
    } catch (error) {
      showError(error);
    }
  }

  toggle.addEventListener("change", () => void activate(toggle.checked ? chosen : null));
  select.addEventListener("change", () => {
    chosen = select.value;
    if (toggle.checked) void activate(chosen);
    store.set({});
  });
  /** @param {string} adapter */
  const learnOn = (adapter) => {
    name.value = adapter;
    picked = false;
    goOn.checked = true;
    store.set({});
    query("#personalize", HTMLElement).scrollIntoView();
    source.select();
    run.say("Paste the next text, then press Start.");
  };
  const actions = { use: (/** @type {string} */ adapter) => activate((chosen = adapter)), learnOn };
  createPersonas(em, studio, store, record, actions, refresh);

  let hadModel = false;
  store.subscribe(({ ready, busy, session }) => {
    const adapters = session?.adapters.map((a) => a.name) ?? [];
    if (!adapters.includes(chosen)) chosen = session?.activeAdapter ?? adapters[0] ?? "";
    offer(select, adapters);
    select.value = chosen;
    query("#adapter-choice", HTMLElement).hidden = adapters.length < 2;
    query("#toggle-text", HTMLElement).textContent = chosen ? `Write with “${chosen}”` : "Write with the adapter";
    query("#go-on-choice", HTMLElement).toggleAttribute("data-known", adapters.includes(name.value.trim()));
    if (!picked) colour.value = known()?.training.persona?.colour ?? COLOURS[adapters.length % COLOURS.length];
    toggle.checked = Boolean(session?.activeAdapter) && !mixed(session?.mix ?? {});
    toggle.disabled = select.disabled = !chosen || busy !== "";
    run.enable(ready && Boolean(session?.model));
    if (session && !hadBackend) length.value = session.backend === "numpy" ? "quick" : "normal"; // seconds on a GPU
    hadBackend = Boolean(session);
    const hasModel = Boolean(session?.model);
    if (hasModel !== hadModel) run.say(hasModel ? "No persona learned yet." : "Needs a model: teach or load one first.");
    hadModel = hasModel;
  });
  createCompare(em, store, () => chosen); // after the above, which says what is chosen
}

/** @param {() => Evermind} em @param {Store} store @param {() => string} adapter */
function createCompare(em, store, adapter) {
  const start = part("compare", HTMLButtonElement);
  const stop = part("compare-stop", HTMLButtonElement);
  const second = part("second-select", HTMLSelectElement);
  const NONE = "nothing";
  const boxes = [part("compare-base", HTMLElement), part("compare-adapter", HTMLElement), part("compare-second", HTMLElement)];
  let abort = new AbortController();
  /** @type {string | undefined} fingerprint of the one that wrote */
  let model;
  /** The job that ran when things last changed. */
  let job = "";
  const clear = () => boxes.forEach((box) => box.replaceChildren());

  /** The mix, while that writes, in words. */
  const mix = () => mixed(store.get().session?.mix ?? {});

  /** Who writes into a box; what somebody else wrote does not stay under this name. @param {string} id @param {HTMLElement} box @param {string} text */
  function label(id, box, text) {
    const element = query(id, HTMLElement);
    if (element.textContent === text) return;
    element.textContent = text;
    box.replaceChildren();
  }

  start.addEventListener("click", async () => {
    clearError();
    abort = new AbortController();
    store.set({ busy: "compare", said: "" });
    try {
      const { prompt, options } = readPrompt();
      const [base, first, other] = boxes.map((box) => createSheet(box, prompt));
      const sheets = { base, adapter: first, second: other };
      const beside = second.value && second.value !== NONE ? second.value : undefined;
      const pieces = em().compare(prompt, { ...options, adapter: mix() ? undefined : adapter(), second: beside, signal: abort.signal });
      for await (const { side, text } of pieces) sheets[side].add(text);
      for (const sheet of [base, first, other]) sheet.end();
      store.set({ said: "Written twice." });
    } catch (error) {
      showError(error);
    } finally {
      for (const box of boxes) {
        box.removeAttribute("aria-busy");
        box.scrollTop = 0; // to be read from the start
      }
      store.set({ busy: "" });
    }
  });
  stop.addEventListener("click", () => abort.abort());
  second.addEventListener("change", () => store.set({}));
  store.subscribe(({ ready, busy, session }) => {
    const others = (session?.adapters ?? []).map((a) => a.name).filter((name) => mix() || name !== adapter());
    const before = second.value;
    offer(second, [NONE, ...others]);
    second.value = others.includes(before) ? before : NONE;
    query("#second-choice", HTMLElement).hidden = !others.length;
    second.disabled = busy !== "";
    query("#second-side", HTMLElement).hidden = second.value === NONE;
    // What was written before something was learned does not stand for what would be written now.
    if (session?.model?.fingerprint !== model || (job === "personalize" && !busy)) clear();
    model = session?.model?.fingerprint;
    job = busy;
    label("#compare-adapter-label", boxes[1], mix() ? `With ${mix()}` : adapter() ? `With “${adapter()}”` : "With the adapter");
    label("#compare-second-label", boxes[2], `With “${second.value}”`);
    start.disabled = !ready || busy !== "" || !adapter();
    stop.disabled = busy !== "compare";
  });
}
