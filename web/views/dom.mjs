// The few DOM helpers that the views share. Text only ever goes in as text, never as HTML.

/** The element with a test id. @template {HTMLElement} T @param {string} id @param {new () => T} kind @returns {T} */
export function part(id, kind) {
  return query(`[data-testid="${id}"]`, kind);
}

/** @template {HTMLElement} T @param {string} selector @param {new () => T} kind @param {ParentNode} [root] @returns {T} */
export function query(selector, kind, root = document) {
  const found = root.querySelector(selector);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} ${selector}`);
  return found;
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {{text?: string, class?: string, testid?: string}} [options] @param {...Node} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, { text, class: className, testid } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  if (testid) element.dataset.testid = testid;
  element.append(...children);
  return element;
}

/** Do something at a press; a second one before it is done does nothing. @param {HTMLElement} button @param {() => unknown} action */
export function onPress(button, action) {
  let runs = false;
  button.addEventListener("click", async ({ detail }) => {
    if (detail > 1) return; // of a double click: it may have landed on the row that moved up
    if (runs) return;
    runs = true;
    try {
      await action();
    } finally {
      runs = false;
    }
  });
}

/** What went wrong, as a sentence; a file name at its start keeps its case. @param {unknown} error */
export function sentence(error) {
  const text = error instanceof Error ? error.message : String(error);
  const start = /^[a-z]+[ ,:]/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
  return start + (/[.!?…]$/.test(start) ? "" : ".");
}

/** Where the focus was in a list while that could not be had. @type {WeakMap<HTMLElement, {name?: string, testid?: string, at: number}>} */
const focused = new WeakMap();

/** The rows of a list, by what each was made from. @type {WeakMap<HTMLElement, Map<string, HTMLElement>>} */
const made = new WeakMap();

/**
 * Show these rows in a list. Of a thousand only those are made that are new or have changed.
 * @param {HTMLElement} list @param {[string, () => HTMLElement][]} entries all that a row shows, and what makes it: an `li` with `data-name`
 */
export function refill(list, entries) {
  const before = made.get(list);
  const rows = new Map(entries.map(([key, row]) => [key, before?.get(key) ?? row()]));
  made.set(list, rows);
  const shown = new Set(rows.values());
  for (const row of [...list.children]) if (!shown.has(/** @type {HTMLElement} */ (row))) row.remove();
  let next = list.firstElementChild;
  for (const row of shown) {
    if (row === next) next = next.nextElementSibling;
    else list.insertBefore(row, next);
  }
}

/** Marks a control that rests while a job runs. @template {HTMLElement} T @param {T} control @returns {T} */
export function restful(control) {
  control.dataset.rests = "";
  return control;
}

/**
 * Change the rows of a list, and let their controls rest or not. The focus stays on the same control of the same row;
 * where the row is gone, it goes to the one that moved up.
 * @param {HTMLElement} list @param {boolean} rest @param {() => void} [change]
 */
export function update(list, rest, change) {
  const active = document.activeElement instanceof HTMLElement ? document.activeElement : document.body;
  const row = list.contains(active) ? active.closest("li") : null;
  if (row) focused.set(list, { name: row.dataset.name, testid: active.dataset.testid, at: [...list.children].indexOf(row) });
  else if (active !== document.body) focused.delete(list); // they went somewhere else
  change?.();
  for (const control of list.querySelectorAll("[data-rests]")) control.toggleAttribute("disabled", rest);
  const wanted = focused.get(list);
  if (!wanted) return;
  const rows = /** @type {HTMLElement[]} */ ([...list.children]);
  const same = rows.find(({ dataset }) => dataset.name === wanted.name);
  // Not the Delete of the next one: they may press twice.
  const control = same?.querySelector(`[data-testid="${wanted.testid}"]`) ?? rows[Math.min(wanted.at, rows.length - 1)]?.querySelector("button");
  if (control instanceof HTMLElement) control.focus({ preventScroll: true }); // in vain while it is disabled: then the next time
}

/** What can be chosen: made anew only where it has changed. @param {HTMLSelectElement} select @param {string[]} names */
export function offer(select, names) {
  const { options } = select;
  if (options.length === names.length && names.every((name, i) => options[i].value === name)) return;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
}

/** Ask in a dialog. @param {HTMLDialogElement} dialog @returns {Promise<string>} the value of the button, "cancel" with Escape */
function answer(dialog) {
  return new Promise((resolve) => {
    dialog.returnValue = "cancel";
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}

/** Ask in a dialog. @param {HTMLDialogElement} dialog @returns {Promise<boolean>} whether it was accepted */
export const ask = async (dialog) => (await answer(dialog)) === "ok";

/**
 * Ask which of two, or neither. @param {string} text @param {string} ok @param {string} [other] labels of the buttons
 * @returns {Promise<"ok" | "other" | "cancel">}
 */
export async function choose(text, ok, other = "") {
  const dialog = query("#confirm-dialog", HTMLDialogElement);
  query("#confirm-text", HTMLElement).textContent = text;
  query('[value="ok"]', HTMLButtonElement, dialog).textContent = ok;
  const second = query('[value="other"]', HTMLButtonElement, dialog);
  second.textContent = other;
  second.hidden = !other;
  return /** @type {"ok" | "other" | "cancel"} */ (await answer(dialog));
}

/** Whether people agree to what `text` asks. @param {string} text @param {string} [label] of the button that does it */
export const agree = async (text, label = "Continue") => (await choose(text, label)) === "ok";
