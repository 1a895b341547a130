// What a store holds, by name, kept where its database is not: when that is gone, a person hears what is to be restored.

/** @typedef {import("./store_records.mjs").Row} Row */

const SHOWN = 20;
const PARTS = new Set(["tokenizer", "text"]); // go with what people named

/** @param {string} store */
const place = (store) => `${self.origin}/__evermind_web_store__?${encodeURIComponent(store)}`;
const notes = () => caches.open("evermind_web notes");

/** Never rejects: where there is no room or no cache (plain http), a loss is told without names.
 * @param {string} store @param {Promise<Row[]>} rows */
export async function remember(store, rows) {
  try {
    const names = (await rows).filter(({ kind }) => !PARTS.has(kind)).map(({ name }) => name);
    await (await notes()).put(place(store), Response.json(names));
  } catch {
    // as above
  }
}

/**
 * What to say of a database that had to be made: "" if nothing was lost.
 * @param {string} store @param {string} why the browser's reason for throwing a damaged one away, "" if it gave none
 */
export async function lossOf(store, why) {
  /** @type {string[]} */
  let names = [];
  try {
    names = (await (await (await notes()).match(place(store)))?.json()) ?? [];
  } catch {
    // as above
  }
  if (!why && !names.length) return "";
  const did = why ? `found its database damaged and emptied it (${why})` : "has deleted its database";
  const more = names.length > SHOWN ? ` and ${names.length - SHOWN} more` : "";
  const gone = names.length ? `${names.slice(0, SHOWN).join(", ")}${more}` : "what was saved here";
  return `the browser ${did}. Gone: ${gone}; restore a backup`;
}
