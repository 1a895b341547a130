// The record of a run: its curves, what became of it, the use of the experts; as CSV or PNG to take along.

import { createCurve } from "./curve.mjs";
import { ask, make, part, query } from "./dom.mjs";
import * as format from "./format.mjs";
import { showError } from "./messages.mjs";

/** @typedef {import("../evermind.mjs").TrainingResult} TrainingResult */
/** @typedef {import("../studio.mjs").Studio} Studio */
/** @typedef {ReturnType<typeof createRecord>} RecordView */

/** @param {() => Studio} studio @param {import("./state.mjs").Store} store */
export function createRecord(studio, store) {
  const dialog = query("#record-dialog", HTMLDialogElement);
  const curve = createCurve(part("record-curve", HTMLElement));
  const experts = part("experts", HTMLElement);
  let name = "run";
  /** @type {Partial<TrainingResult>} */
  let shown = {};

  part("record-csv", HTMLButtonElement).addEventListener("click", () =>
    download(new Blob([asCsv(shown)], { type: "text/csv" }), `${name}.csv`),
  );
  part("record-png", HTMLButtonElement).addEventListener("click", () =>
    curve.canvas()?.toBlob((blob) => blob && download(blob, `${name}.png`)),
  );

  /** @param {string | null} adapter */
  async function showExperts(adapter) {
    experts.replaceChildren(make("p", { class: "hint", text: "Use of the experts: looking…" }));
    const text = part("prompt", HTMLTextAreaElement).value || "The ";
    try {
      const layers = await studio().expertShares(text, adapter);
      experts.replaceChildren(
        make("p", { class: "hint", text: "Part of the work that each expert did on your text of step 2, layer by layer." }),
        ...layers.map((shares, layer) => expertRow(layer, shares)),
      );
    } catch (error) {
      experts.replaceChildren();
      showError(error);
    }
  }

  return {
    /** @param {string} title @param {Partial<TrainingResult>} training @param {string | null} adapter */
    async show(title, training, adapter) {
      name = title;
      shown = training;
      query("#record-title", HTMLElement).textContent = `How “${title}” learned`;
      part("record-summary", HTMLElement).textContent = summary(training);
      curve.clear();
      const closed = ask(dialog);
      curve.add(training.record?.points ?? [], training.record?.heldOut ?? []);
      if (store.get().session?.model && !store.get().busy) void showExperts(adapter);
      else experts.replaceChildren();
      await closed;
    },
  };
}

/** @param {Partial<TrainingResult>} r */
function summary({ steps = 0, tokens = 0, seconds = 0, tokensPerSecond = 0, lossBefore, lossAfter, record, notices }) {
  const parts = [
    `${format.integer(steps)} steps, ${format.integer(tokens)} tokens in ${format.duration(seconds)} (${format.speed(tokensPerSecond)}).`,
  ];
  if (lossBefore && lossAfter) parts.push(`Held-out loss ${lossBefore.toFixed(2)} → ${lossAfter.toFixed(2)}.`);
  const norms = record?.points.map((point) => point[2]) ?? [];
  if (norms.length) parts.push(`Gradient norm ${Math.min(...norms).toFixed(2)} to ${Math.max(...norms).toFixed(2)}.`);
  parts.push(`Steps skipped because gradients overflowed: ${record?.skipped ?? 0}.`, ...(notices ?? []));
  return parts.join(" ");
}

/** @param {number} layer @param {number[]} shares */
function expertRow(layer, shares) {
  const words = shares.map((s, i) => `expert ${i + 1} ${Math.round(s * 100)} %`).join(", ");
  const row = make("div", { class: "bar-row" }, make("span", { text: `Layer ${layer + 1}` }));
  const bars = make("div", { class: "stack" });
  bars.setAttribute("role", "img");
  bars.setAttribute("aria-label", words);
  for (const share of shares) {
    const piece = make("span", { class: "piece", text: share >= 0.15 ? `${Math.round(share * 100)} %` : "" });
    piece.style.setProperty("--share", String(share));
    bars.append(piece);
  }
  row.append(bars);
  return row;
}

/** @param {Partial<TrainingResult>} training */
function asCsv({ record }) {
  const heldOut = new Map(record?.heldOut.map(([step, loss]) => [step, loss]) ?? []);
  const rows = new Map(record?.points.map(([step, loss, norm]) => [step, [loss, norm]]) ?? []);
  const steps = [...new Set([...rows.keys(), ...heldOut.keys()])].sort((a, b) => a - b);
  const lines = steps.map((step) => [step, ...(rows.get(step) ?? ["", ""]), heldOut.get(step) ?? ""].join(","));
  return ["step,loss,gradient_norm,held_out_loss", ...lines, ""].join("\n");
}

/** Hand a file to the user. @param {Blob} blob @param {string} filename */
export function download(blob, filename) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = filename;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
