// The page's one state store. Views read it, subscribe to it, and change it through `set`; nothing else is shared.

/** @typedef {import("../evermind.mjs").SessionInfo} SessionInfo */
/** @typedef {import("../evermind.mjs").SavedItem} SavedItem */
/**
 * @typedef {object} State
 * @property {boolean} ready the worker is up
 * @property {"" | "train" | "personalize" | "write" | "compare" | "load" | "fetch" | "look"} busy the job that runs
 * @property {boolean} paused that job rests
 * @property {string} said what the last job came to, in a few words
 * @property {SessionInfo | null} session
 * @property {SavedItem[]} saved
 */

/** @typedef {ReturnType<typeof createStore>} Store */

/** @param {State} initial */
export function createStore(initial) {
  let state = initial;
  /** @type {Set<(state: State) => void>} */
  const subscribers = new Set();
  return {
    get: () => state,
    /** @param {Partial<State>} patch */
    set(patch) {
      state = { ...state, ...patch };
      for (const notify of subscribers) notify(state);
    },
    /** Called now and after each change. @param {(state: State) => void} notify */
    subscribe(notify) {
      subscribers.add(notify);
      notify(state);
    },
  };
}
