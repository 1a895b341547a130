// The two message boxes at the foot of the page: errors, and notices with an optional button, Undo most often.

import { part, query, sentence } from "./dom.mjs";
import * as format from "./format.mjs";

const NOTICE_MS = 12_000;
const UNDO_MS = 30_000; // time to think, and to get there by keyboard
const MAX_ERRORS = 4;
const UNDO = "Undo";
let timer = 0;

document.addEventListener("keydown", (event) => {
  const undo = part("undo", HTMLButtonElement);
  const typing = event.target instanceof HTMLElement && event.target.matches("textarea, input"); // they have their own undo
  if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.shiftKey || typing) return;
  if (undo.textContent === UNDO && undo.checkVisibility()) undo.click();
});

/** @param {unknown} error */
export function showError(error) {
  open("error", sentence(error));
}

/** Several at once, of files most often, each of which names its own. @param {unknown[]} errors */
export function showErrors(errors) {
  const more = errors.length > MAX_ERRORS ? [`And ${format.integer(errors.length - MAX_ERRORS)} more.`] : [];
  open("error", [...errors.slice(0, MAX_ERRORS).map(sentence), ...more].join(" "));
}

export function clearError() {
  part("error", HTMLElement).hidden = true;
}

/** @param {string} text @param {(() => void) | {label: string, act: () => void} | null} [action] a function is an Undo */
export function showNotice(text, action = null) {
  const { label, act } = typeof action === "function" ? { label: UNDO, act: action } : (action ?? { label: "", act: null });
  const button = part("undo", HTMLButtonElement);
  button.hidden = !act;
  button.textContent = label;
  button.title = label === UNDO ? "Ctrl+Z" : "";
  button.onclick = () => {
    part("notice", HTMLElement).hidden = true;
    button.onclick = null; // once
    act?.();
  };
  open("notice", text);
  clearTimeout(timer);
  const leave = () => {
    const box = part("notice", HTMLElement);
    if (box.matches(":hover, :focus-within")) timer = setTimeout(leave, NOTICE_MS);
    else box.hidden = true;
  };
  timer = setTimeout(leave, typeof action === "function" ? UNDO_MS : NOTICE_MS);
}

/**
 * Let a box take so many characters: a browser lays out all it holds at each key. Says so where it cuts off what is pasted.
 * @param {HTMLTextAreaElement} box @param {number} most
 */
export function limit(box, most) {
  box.maxLength = most;
  box.addEventListener("paste", ({ clipboardData }) => {
    const room = most - box.value.length + (box.selectionEnd - box.selectionStart);
    if ((clipboardData?.getData("text").length ?? 0) > room) showNotice(cutAt(most));
  });
}

/** @param {number} most */
export const cutAt = (most) => `That is long: the first ${format.integer(most)} characters are used.`;

/** @param {"error" | "notice"} id @param {string} text */
function open(id, text) {
  const box = part(id, HTMLElement);
  query('[data-role="text"]', HTMLElement, box).textContent = text;
  query(".close", HTMLButtonElement, box).onclick = () => (box.hidden = true);
  box.hidden = false;
}
