// What the demo page does beyond `evermind.mjs`: personas and their texts, mixing, mood, a look inside, backups.

import { snakeCase } from "./evermind.mjs";

/** @typedef {import("./evermind.mjs").Evermind} Evermind */
/** @typedef {import("./evermind.mjs").PersonaText} PersonaText */
/** @typedef {import("./evermind.mjs").WriteOptions} WriteOptions */
/** @typedef {{text: string, p: number, others: [string, number][]}} TokenShare p: probability; others: the likeliest */
/**
 * @typedef {object} MoodState
 * @property {[string, number][]} state @property {[string, number][]} setpoint @property {[string, number][]} traits
 * @property {{temperature: number, topP: number, minP: number}} sampling
 */

/** @typedef {ReturnType<typeof createStudio>} Studio */

/** @param {Evermind} em */
export function createStudio(em) {
  /** @param {string} method @param {object} args @returns {Promise<Uint8Array>} */
  async function bytes(method, args) {
    let payload = new Uint8Array();
    await em.request(method, args, { onBytes: (received) => (payload = received) });
    return payload;
  }
  /** The session as it is now reaches everybody. */
  const refresh = () => em.request("describe", {});

  return {
    /** Let the training that runs rest, or go on. @param {boolean} on */
    pause: (on) => em.request("pause", { on }),
    /** Write with a weighted sum of adapters; {} ends that. @param {Record<string, number>} weights */
    setMix: (weights) => em.request("set_mix", { weights }),
    /** @param {string} name @returns {Promise<(PersonaText & {text: string})[]>} */
    texts: (name) => em.request("persona_texts", { name }),
    /** @param {string} name @param {string} id */
    removeText: (name, id) => em.request("remove_text", { name, id }),
    /** @param {string} name @param {string} colour */
    paint: (name, colour) => em.request("paint", { name, colour }),
    /** @param {string} name @returns {Promise<{name: string, notice: string}>} */
    duplicate: (name) => em.request("duplicate", { name }),
    /** @param {string} old @param {string} name */
    rename: (old, name) => em.request("rename_persona", { old, new: name }),
    /** Undo that learning anew took a persona's place. */
    unreplace: () => em.request("unreplace", {}),
    /** Delete a persona; the bytes bring it back with `putBack`. @param {string} name */
    async remove(name) {
      const undo = await bytes("remove_persona", { name });
      await refresh();
      return undo;
    },

    /** What would be deleted with a saved thing, for `putBack`. @param {string} name */
    snapshot: (name) => bytes("snapshot", { name }),
    /** @param {Uint8Array} snapshot @returns {Promise<string[]>} the names of what came back */
    putBack: async (snapshot) => (await em.request("put_back", {}, { buffers: [snapshot] })).names,
    /** Everything that is saved, as one file. */
    backup: () => bytes("backup", {}),
    /** @param {File} file @returns {Promise<string[]>} names of models and adapters that it held */
    restore: async (file) => em.request("restore", {}, { buffers: [new Uint8Array(await file.arrayBuffer())] }),
    /** Delete everything that is saved. */
    wipe: () => em.request("wipe", {}),

    /** @param {string} text @param {string | null} adapter @returns {Promise<TokenShare[]>} */
    tokenShares: (text, adapter) => em.request("token_shares", { text, adapter }),
    /** For each layer, each expert's part of the work. @param {string} text @param {string | null} adapter @returns {Promise<number[][]>} */
    expertShares: (text, adapter) => em.request("expert_shares", { text, adapter }),
    /**
     * @param {{on: boolean, traits?: Record<string, number>, experience?: string, options?: WriteOptions}} change
     * @returns {Promise<MoodState | null>}
     */
    mood: ({ options, ...change }) => em.request("mood", { ...change, options: snakeCase({ ...options }) }),
  };
}
