// How the next token is drawn: fields, presets, reset. Step 2 shows them, every kind of writing reads them.

import { make, part, query } from "./dom.mjs";

/** @typedef {import("../evermind.mjs").WriteOptions} WriteOptions */

/** Field → option. */
const FIELDS = /** @type {const} */ ({
  temperature: "temperature",
  "top-k": "topK",
  "top-p": "topP",
  "min-p": "minP",
  "repetition-penalty": "repetitionPenalty",
  "frequency-penalty": "frequencyPenalty",
  "presence-penalty": "presencePenalty",
});
/** @typedef {keyof typeof FIELDS} Field */

/** @type {Record<Field, number>} */
const PLAIN = {
  temperature: 0.6, "top-k": 0, "top-p": 1, "min-p": 0,
  "repetition-penalty": 1, "frequency-penalty": 0, "presence-penalty": 0,
}; // prettier-ignore
/** @type {Record<string, Record<Field, number>>} */
const PRESETS = {
  Balanced: PLAIN,
  Careful: { ...PLAIN, temperature: 0.3, "top-p": 0.9 },
  Inventive: { ...PLAIN, temperature: 1, "min-p": 0.05 },
  "Never twice": { ...PLAIN, temperature: 0.8, "top-k": 50, "repetition-penalty": 1.3, "presence-penalty": 0.3 },
  "Likeliest word": { ...PLAIN, temperature: 0 },
};
const OWN = "Your own";

/** @param {Field} name */
const field = (name) => part(name, HTMLInputElement);
const names = /** @type {Field[]} */ (Object.keys(FIELDS));

export function createSampling() {
  const preset = part("preset", HTMLSelectElement);
  preset.replaceChildren(...[...Object.keys(PRESETS), OWN].map((name) => make("option", { text: name })));

  /** @param {Record<Field, number>} values */
  function put(values) {
    for (const name of names) field(name).value = String(values[name]);
    show();
  }

  function show() {
    query("#temperature-value", HTMLElement).textContent = Number(field("temperature").value).toFixed(1);
    const same = Object.entries(PRESETS).find(([, values]) => names.every((n) => Number(field(n).value) === values[n]));
    preset.value = same?.[0] ?? OWN;
  }

  for (const name of names) field(name).addEventListener("input", show);
  preset.addEventListener("change", () => put(PRESETS[preset.value] ?? readFields()));
  part("sampling-reset", HTMLButtonElement).addEventListener("click", () => put(PLAIN));
  show();
}

function readFields() {
  return /** @type {Record<Field, number>} */ (Object.fromEntries(names.map((n) => [n, Number(field(n).value)])));
}

/** What is set now. @returns {WriteOptions} */
export function readSampling() {
  const values = readFields();
  return {
    ...Object.fromEntries(names.map((name) => [FIELDS[name], values[name]])),
    seed: Number(part("seed", HTMLInputElement).value),
    maxNewTokens: Number(part("max-tokens", HTMLInputElement).value),
  };
}
