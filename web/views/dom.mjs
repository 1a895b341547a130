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

/** Ask in a dialog. @param {HTMLDialogElement} dialog @returns {Promise<boolean>} whether it was accepted */
export function ask(dialog) {
  return new Promise((resolve) => {
    dialog.returnValue = "cancel"; // Escape leaves it so
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok"), { once: true });
    dialog.showModal();
  });
}

/** Whether people agree to what `text` asks. @param {string} text @param {string} [label] of the button that does it */
export function agree(text, label = "Continue") {
  const dialog = query("#confirm-dialog", HTMLDialogElement);
  query("#confirm-text", HTMLElement).textContent = text;
  query('[value="ok"]', HTMLButtonElement, dialog).textContent = label;
  return ask(dialog);
}
