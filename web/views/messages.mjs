// The two message boxes at the foot of the page: errors, and notices with an optional button, Undo most often.

import { part, query, sentence } from "./dom.mjs";
import * as format from "./format.mjs";

const NOTICE_MS = 12_000;
const UNDO_MS = 30_000; // time to think, and to get there by keyboard
const MAX_ERRORS = 4;
const MAX_OFFERS = 2;
const UNDO = "Undo";
/** When a box leaves. @type {WeakMap<HTMLElement, number>} */
const timers = new WeakMap();

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLElement && event.target.matches("textarea, input"); // they have their own undo
  if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.shiftKey || typing) return;
  const buttons = /** @type {HTMLButtonElement[]} */ ([...document.querySelectorAll('[data-role="act"]')]);
  buttons.findLast((button) => button.textContent === UNDO && button.checkVisibility())?.click();
});

/** @param {unknown} error */
export function showError(error) {
  open(part("error", HTMLElement), sentence(error));
}

/** Several at once, of files most often, each of which names its own. @param {unknown[]} errors */
export function showErrors(errors) {
  const more = errors.length > MAX_ERRORS ? [`And ${format.integer(errors.length - MAX_ERRORS)} more.`] : [];
  open(part("error", HTMLElement), [...errors.slice(0, MAX_ERRORS).map(sentence), ...more].join(" "));
}

export function clearError() {
  part("error", HTMLElement).hidden = true;
}

/**
 * Say something; what a notice offers stays above the next ones until its time is over.
 * @param {string} text @param {(() => void) | {label: string, act: () => void} | null} [action] a function is an Undo
 */
export function showNotice(text, action = null) {
  const box = nextBox();
  const { label, act } = typeof action === "function" ? { label: UNDO, act: action } : (action ?? { label: "", act: null });
  const button = query('[data-role="act"]', HTMLButtonElement, box);
  button.hidden = !act;
  button.textContent = label;
  button.title = label === UNDO ? "Ctrl+Z" : "";
  button.onclick = () => {
    box.hidden = true;
    button.onclick = null; // once
    act?.();
  };
  open(box, text);
  const leave = () => {
    if (box.matches(":hover, :focus-within")) leaveIn(NOTICE_MS);
    else box.hidden = true;
  };
  /** @param {number} ms */
  const leaveIn = (ms) => void timers.set(box, setTimeout(leave, ms));
  clearTimeout(timers.get(box));
  leaveIn(typeof action === "function" ? UNDO_MS : NOTICE_MS);
}

/** The box of the next notice: the last one, unless that still offers something. */
function nextBox() {
  const last = part("notice", HTMLElement);
  const button = query('[data-role="act"]', HTMLButtonElement, last);
  if (last.hidden || button.hidden) return last;
  const box = /** @type {HTMLElement} */ (last.cloneNode(true));
  last.dataset.testid = "offer";
  button.dataset.testid = "offered";
  last.after(box);
  const offers = [...document.querySelectorAll('[data-testid="offer"]')];
  const over = offers.filter((offer, i) => /** @type {HTMLElement} */ (offer).hidden || i < offers.length - MAX_OFFERS);
  for (const offer of over) offer.remove();
  return box;
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

/** @param {HTMLElement} box @param {string} text */
function open(box, text) {
  query('[data-role="text"]', HTMLElement, box).textContent = text;
  query(".close", HTMLButtonElement, box).onclick = () => (box.hidden = true);
  box.hidden = false;
}
