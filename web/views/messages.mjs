// The two message boxes at the foot of the page: errors, and notices with an optional button, Undo most often.

import { part, query, sentence } from "./dom.mjs";

const NOTICE_MS = 12_000;
let timer = 0;

/** @param {unknown} error */
export function showError(error) {
  open("error", sentence(error));
}

/** Several at once, of files most often, each of which names its own. @param {unknown[]} errors */
export function showErrors(errors) {
  open("error", errors.map(sentence).join(" "));
}

export function clearError() {
  part("error", HTMLElement).hidden = true;
}

/** @param {string} text @param {(() => void) | {label: string, act: () => void} | null} [action] a function is an Undo */
export function showNotice(text, action = null) {
  const { label, act } = typeof action === "function" ? { label: "Undo", act: action } : (action ?? { label: "", act: null });
  const button = part("undo", HTMLButtonElement);
  button.hidden = !act;
  button.textContent = label;
  button.onclick = () => {
    part("notice", HTMLElement).hidden = true;
    act?.();
  };
  open("notice", text);
  clearTimeout(timer);
  timer = setTimeout(() => (part("notice", HTMLElement).hidden = true), NOTICE_MS);
}

/** @param {"error" | "notice"} id @param {string} text */
function open(id, text) {
  const box = part(id, HTMLElement);
  query('[data-role="text"]', HTMLElement, box).textContent = text;
  query(".close", HTMLButtonElement, box).onclick = () => (box.hidden = true);
  box.hidden = false;
}
