// The mood: personality sliders move where it rests, feedback moves it, and it moves how tokens are drawn. Off by default.

import { make, part, query } from "./dom.mjs";
import { clearError, showError } from "./messages.mjs";
import { readSampling } from "./sampling.mjs";

/** @typedef {import("../studio.mjs").Studio} Studio */
/** @typedef {import("../studio.mjs").MoodState} MoodState */
/** @typedef {import("./state.mjs").Store} Store */

/** Dimension → [its name, the region that the model is modelled on]. @type {Record<string, [string, string]>} */
const DIMENSIONS = {
  valence: ["Valence", "amygdala"],
  arousal: ["Arousal", "amygdala"],
  driveCuriosity: ["Curiosity", "hippocampus"],
  driveCaution: ["Caution", "amygdala"],
  driveEffort: ["Effort", "basal ganglia"],
  driveSocial: ["Sociability", "hypothalamus"],
  attention: ["Attention", "thalamus"],
  exploration: ["Exploration", "basal ganglia"],
};
const TRAITS = [
  "openness", "conscientiousness", "extraversion", "emotionality", "regulatory_focus", "risk_tolerance", "grit", "stimulation",
]; // prettier-ignore
const AVERAGE = 50;
/** @type {[string, string][]} */
const FEEDBACK = [
  ["praise", "Well said"],
  ["blame", "Not like that"],
  ["surprise", "Surprise me"],
  ["boredom", "Boring"],
  ["rest", "Let it rest"],
];

/** @param {() => Studio} studio @param {Store} store */
export function createMood(studio, store) {
  const toggle = part("mood-toggle", HTMLInputElement);
  const panel = query("#mood-panel", HTMLElement);
  const effect = part("mood-effect", HTMLElement);
  const sliders = TRAITS.map((name) => {
    const slider = make("input", { testid: `trait-${name}` });
    Object.assign(slider, { type: "range", min: "0", max: "100", step: "5", value: String(AVERAGE), name });
    slider.addEventListener("change", () => {
      void update({ traits: Object.fromEntries(sliders.map((s) => [s.name, Number(s.value)])) });
    });
    return slider;
  });
  query("#traits", HTMLElement).append(
    ...sliders.map((slider) => make("label", {}, make("span", { text: slider.name.replace(/_/g, " ") }), slider)),
  );
  const bars = Object.entries(DIMENSIONS).map(([dimension, [name, region]]) => createBar(dimension, name, region));
  part("mood-bars", HTMLElement).append(...bars.map(({ element }) => element));

  /** @param {{traits?: Record<string, number>, experience?: string}} [change] */
  async function update(change = {}) {
    clearError();
    panel.hidden = !toggle.checked; // at once: what it says is known a little later
    try {
      const options = readSampling();
      const mood = await studio().mood({ on: toggle.checked, options, ...change });
      if (mood) show(mood, options.temperature ?? 0);
    } catch (error) {
      toggle.checked = false;
      panel.hidden = true;
      showError(error);
    }
  }

  /** @param {MoodState} mood @param {number} before */
  function show({ state, setpoint, traits, sampling }, before) {
    for (const [i, [, value]] of traits.entries()) sliders[i].value = String(value);
    for (const [i, [, value]] of state.entries()) bars[i].show(value, setpoint[i][1]);
    const cut = [sampling.topP < 0.995 ? `top p ${sampling.topP.toFixed(2)}` : "", sampling.minP > 0.005 ? `min p ${sampling.minP.toFixed(2)}` : ""];
    const more = cut.filter(Boolean).map((text) => `, ${text}`).join("");
    effect.textContent = `It makes temperature ${before.toFixed(2)} into ${sampling.temperature.toFixed(2)}${more}.`;
  }

  toggle.addEventListener("change", () => void update());
  // What it makes of the settings of step 2 belongs to them as they are now.
  query("#write", HTMLElement).addEventListener("change", () => toggle.checked && void update());
  query("#mood-buttons", HTMLElement).append(
    ...FEEDBACK.map(([experience, text]) => {
      const button = make("button", { text, testid: `feel-${experience}` });
      button.type = "button";
      button.addEventListener("click", () => void update({ experience }));
      return button;
    }),
  );
  store.subscribe(({ ready }) => {
    toggle.disabled = !ready;
  });
}

/** One dimension of the mood. @param {string} dimension @param {string} name @param {string} region */
function createBar(dimension, name, region) {
  const low = dimension === "valence" ? -1 : 0;
  /** @param {number} v */
  const share = (v) => String((v - low) / (1 - low));
  const track = make("div", { class: "track" }, make("span", { class: "fill" }), make("span", { class: "rest" }));
  track.setAttribute("role", "img");
  track.setAttribute("aria-label", name); // until its value is known
  const label = make("span", {}, document.createTextNode(`${name} `), make("small", { text: region }));
  return {
    element: make("div", { class: "bar-row" }, label, track),
    /** @param {number} value @param {number} rest */
    show(value, rest) {
      track.style.setProperty("--share", share(value));
      track.style.setProperty("--rest", share(rest));
      track.setAttribute("aria-label", `${name} ${value.toFixed(2)}, rests at ${rest.toFixed(2)}`);
    },
  };
}
