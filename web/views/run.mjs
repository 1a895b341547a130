// One training run on the page: progress bar, numbers and curve, Start and Stop. Steps 1 and 3 each have one.

import { createCurve } from "./curve.mjs";
import { part, query } from "./dom.mjs";
import * as format from "./format.mjs";
import { clearError, showError } from "./messages.mjs";

/** @typedef {import("../evermind.mjs").Progress} Progress */
/** @typedef {import("../evermind.mjs").TrainingResult} TrainingResult */
/** @typedef {import("./state.mjs").Store} Store */

/** @type {Record<string, (p: Progress) => string>} */
const PHASES = {
  tokenizer: (p) => `Building the vocabulary: ${p.step} of ${p.totalSteps} merges`,
  encode: () => "Reading the text",
  train: (p) => `Learning: step ${p.step} of ${p.totalSteps}`,
  evaluate: () => "Measuring on text that it has not seen",
};

/**
 * @param {"train" | "personalize"} job
 * @param {Store} store
 * @param {(signal: AbortSignal, onProgress: (progress: Progress) => void) => Promise<TrainingResult>} work
 * @param {(on: boolean) => Promise<unknown>} pause
 * @param {(result: TrainingResult) => void} show the record of the last run
 * @param {() => Promise<boolean>} [confirm] asked before the start
 */
export function createRun(job, store, work, pause, show, confirm = async () => true) {
  const start = part(`${job}-start`, HTMLButtonElement);
  const stop = part(`${job}-stop`, HTMLButtonElement);
  const rest = part(`${job}-pause`, HTMLButtonElement);
  const status = part(`${job}-status`, HTMLElement);
  const loss = part(`${job}-loss`, HTMLElement);
  const speed = part(`${job}-speed`, HTMLElement);
  const eta = part(`${job}-eta`, HTMLElement);
  const heldOut = part(`${job}-heldout`, HTMLElement);
  const gradient = part(`${job}-gradient`, HTMLElement);
  const details = part(`${job}-details`, HTMLButtonElement);
  const bar = query(`#${job}-run [data-role="bar"]`, HTMLProgressElement);
  const curve = createCurve(part(`${job}-curve`, HTMLElement));
  let abort = new AbortController();
  let paused = false;
  /** @type {TrainingResult | null} */
  let last = null;

  /** @param {Progress} p */
  function onProgress(p) {
    if (paused) return;
    status.textContent = `${PHASES[p.phase](p)}…`;
    rest.disabled = p.phase !== "train" || abort.signal.aborted;
    if (p.phase !== "train") return bar.removeAttribute("value");
    bar.value = p.step / p.totalSteps;
    const points = p.points ?? [];
    curve.add(points, p.heldOut);
    if (points.length) {
      loss.textContent = points[points.length - 1][1].toFixed(2);
      gradient.textContent = points[points.length - 1][2].toFixed(2);
    }
    if (p.heldOut?.length) heldOut.textContent = p.heldOut[p.heldOut.length - 1][1].toFixed(2);
    speed.textContent = format.speed(p.tokensPerSecond ?? 0);
    eta.textContent = format.duration(p.secondsLeft ?? 0);
  }

  async function run() {
    clearError();
    try {
      if (!(await confirm()) || store.get().busy) return; // another press, or another job, came first
    } catch (error) {
      return showError(error);
    }
    const before = status.textContent;
    abort = new AbortController();
    store.set({ busy: job, said: "" });
    curve.clear();
    for (const field of [loss, speed, eta, heldOut, gradient]) field.textContent = "–";
    bar.removeAttribute("value");
    status.textContent = "Starting…";
    try {
      const result = await work(abort.signal, onProgress);
      status.textContent = summary(result);
      if (result.steps) last = result;
      curve.add([], result.record?.heldOut); // the last one comes after the last report
      store.set({ said: said(result) });
      bar.value = result.steps ? 1 : 0;
      eta.textContent = "–";
    } catch (error) {
      showError(error);
      status.textContent = error instanceof Error && error.name === "InvalidArgumentError" ? before : "That did not work.";
      bar.value = 0;
    } finally {
      setPaused(false);
      rest.disabled = true;
      store.set({ busy: "" });
    }
  }

  start.addEventListener("click", () => void run());
  /** @param {boolean} on */
  function setPaused(on) {
    paused = on;
    store.set({ paused });
    rest.textContent = on ? "Go on" : "Pause";
  }

  rest.addEventListener("click", () => {
    setPaused(!paused);
    status.textContent = paused ? "Paused. What was learned so far stays in memory." : "Going on…";
    pause(paused).catch(showError);
  });
  details.addEventListener("click", () => last && show(last));
  stop.addEventListener("click", () => {
    abort.abort();
    stop.disabled = rest.disabled = true;
    status.textContent = "Stopping after this step…";
  });
  return {
    /** @param {boolean} possible */
    enable(possible) {
      const { busy } = store.get();
      start.disabled = !possible || busy !== "";
      stop.disabled = busy !== job || abort.signal.aborted;
      details.disabled = !last || busy !== "";
    },
    /** @param {string} text */
    say: (text) => (status.textContent = text),
  };
}

/** @param {TrainingResult} r */
function summary(r) {
  if (!r.steps) return "Stopped before the first step: nothing was learned, and nothing was lost.";
  const took = `${format.counted(r.steps, "step")} in ${format.duration(r.seconds)}`;
  const better = Math.round(100 * (1 - r.lossAfter / r.lossBefore));
  const plainly = better > 0 ? ` It now expects words like yours ${better} % better.` : "";
  const gain = `Loss on text it has not seen: ${r.lossBefore.toFixed(2)} → ${r.lossAfter.toFixed(2)}`;
  const reference = `(guessing by frequency: ${r.unigram.toFixed(2)})`;
  const worse = r.lossAfter > r.lossBefore ? " It got worse there: the text is too short for so many steps. Give it a longer one." : "";
  return `${r.stopped ? "Stopped and kept" : "Done"}: ${took}.${plainly} ${gain} ${reference}.${worse}`;
}

/** @param {TrainingResult} r */
function said(r) {
  return r.steps ? `Learned: loss ${r.lossBefore.toFixed(2)} → ${r.lossAfter.toFixed(2)}.` : "";
}
