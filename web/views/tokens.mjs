// On demand: the text of step 2 token by token, with the probability that the model gave each where it stands.

import { make, part, query } from "./dom.mjs";
import { clearError, showError } from "./messages.mjs";

/** @typedef {import("../studio.mjs").Studio} Studio */
/** @typedef {import("../studio.mjs").TokenShare} TokenShare */
/** @typedef {import("./state.mjs").Store} Store */

const SHADES = 5;

/** @param {() => Studio} studio @param {Store} store @param {() => string} text */
export function createTokens(studio, store, text) {
  const button = part("show-tokens", HTMLButtonElement);
  const panel = query("#tokens", HTMLElement);
  const list = part("tokens", HTMLElement);
  const details = part("token-details", HTMLElement);

  button.addEventListener("click", async () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    if (panel.hidden) return;
    clearError();
    list.replaceChildren(make("span", { class: "empty", text: "Looking…" }));
    store.set({ busy: "look" });
    try {
      const shares = await studio().tokenShares(text(), store.get().session?.activeAdapter ?? null);
      list.replaceChildren(...shares.map(show));
      if (shares.length) /** @type {HTMLElement} */ (list.firstChild).tabIndex = 0;
      else list.replaceChildren(make("span", { class: "empty", text: "There is no text yet." }));
    } catch (error) {
      list.replaceChildren();
      showError(error);
    } finally {
      store.set({ busy: "" });
    }
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key] ?? 0;
    const tokens = /** @type {HTMLElement[]} */ ([...list.children]);
    const next = tokens[tokens.indexOf(/** @type {HTMLElement} */ (document.activeElement)) + step];
    if (!step || !next) return;
    event.preventDefault();
    next.focus();
  });
  store.subscribe(({ ready, busy, session }) => {
    button.disabled = !ready || busy !== "" || !session?.model;
  });

  /** @param {TokenShare} share */
  function show({ text, p, others }) {
    const token = make("button", { class: "token", text: visible(text) });
    token.type = "button";
    token.tabIndex = -1;
    token.dataset.shade = String(Math.min(SHADES - 1, Math.floor(p * SHADES)));
    token.setAttribute("aria-label", `${spoken(text)}, ${percent(p)}`);
    token.addEventListener("focus", () => {
      for (const other of list.children) /** @type {HTMLElement} */ (other).tabIndex = -1;
      token.tabIndex = 0;
      const likely = others.map(([t, q]) => `${spoken(t)} ${percent(q)}`).join(", ");
      details.textContent = `${spoken(text)}: ${percent(p)}. Likeliest here: ${likely}.`;
    });
    return token;
  }
}

/** @param {number} p */
const percent = (p) => (p < 0.001 ? "under 0.1 %" : `${(p * 100).toFixed(p < 0.1 ? 1 : 0)} %`);
/** @param {string} text */
const visible = (text) => text.replace(/\n/g, "↵").replace(/ /g, "\u00a0") || "∅";
/** @param {string} text */
const spoken = (text) => `“${text.replace(/\n/g, "↵")}”`;
