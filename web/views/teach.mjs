// Step 1: a text becomes a model.

import { agree, part } from "./dom.mjs";
import * as format from "./format.mjs";
import { createRun } from "./run.mjs";
import { createSource } from "./source.mjs";

/** @typedef {import("../evermind.mjs").Evermind} Evermind */
/** @typedef {import("./state.mjs").Store} Store */

const SAMPLE = {
  url: "./samples/alice.txt",
  title: "Lewis Carroll, Alice’s Adventures in Wonderland (excerpt)",
  prompt: "Alice was",
};

/**
 * @param {() => Evermind} em @param {() => import("../studio.mjs").Studio} studio @param {Store} store
 * @param {import("./record.mjs").RecordView} record
 */
export function createTeach(em, studio, store, record) {
  const source = createSource(
    { text: "train-text", file: "train-file", sample: "sample-text", drop: "train-drop", count: "train-count", files: "train-files" },
    SAMPLE,
    (file) => em().readText(file),
    () => {
      const prompt = part("prompt", HTMLTextAreaElement);
      prompt.value ||= SAMPLE.prompt;
    },
  );
  const length = part("train-length", HTMLSelectElement);
  const run = createRun(
    "train",
    store,
    (signal, onProgress) =>
      em().train(source.text(), {
        length: /** @type {"quick" | "normal" | "long"} */ (length.value),
        signal,
        onProgress,
      }),
    (on) => studio().pause(on),
    (result) => void record.show(store.get().session?.model?.name || "the model", result, null),
    async () => {
      await em().checkText(source.text()); // nobody should be asked about a text that will be refused
      return replaceUnsaved(store, "Teach a new one in its place?");
    },
  );
  let shown = "";
  let untouched = true; // no job has said anything yet
  store.subscribe(({ ready, busy, session, saved }) => {
    run.enable(ready);
    const model = session?.model;
    untouched &&= !busy && !model;
    if (untouched) run.say(nothingYet(saved.length));
    // After training, the run's own summary stands there; a model that was loaded introduces itself.
    if (model && (busy === "load" || busy === "fetch") && model.fingerprint !== shown) run.say(introduction(model));
    shown = model?.fingerprint ?? "";
  });
}

/** @param {number} saved how many things */
function nothingYet(saved) {
  if (!saved) return "Nothing learned yet.";
  return `Nothing is loaded; ${format.counted(saved, "saved thing")} ${saved === 1 ? "is" : "are"} below.`;
}

/** @param {import("../evermind.mjs").ModelInfo} model */
function introduction({ name, training }) {
  const loss = training.lossAfter ? ` Loss on text it had not seen: ${training.lossAfter.toFixed(2)}.` : "";
  return `“${name}” is loaded.${loss} Teaching makes a new model.`;
}

/**
 * Whether unsaved work may be replaced; asks only if there is some.
 * @param {Store} store @param {string} question @returns {Promise<boolean>}
 */
export async function replaceUnsaved(store, question) {
  if (!hasUnsaved(store)) return true;
  return agree(`What you taught it is not saved yet. ${question}`);
}

/** @param {Store} store */
export function hasUnsaved(store) {
  const session = store.get().session;
  return Boolean(session?.model && (!session.model.saved || session.adapters.some((a) => !a.saved)));
}
