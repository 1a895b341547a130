// A small language model that learns your text, for any page:
//
//     import { load } from "./evermind.mjs";
//     const em = await load();
//     await em.train(text, { onProgress: (p) => console.log(p) });
//     for await (const piece of em.generate("Once upon a time")) output.append(piece);
//
// Everything runs in a worker; nothing leaves the browser. All methods reject with `EvermindError`, whose message
// is a sentence for the user. A `signal` that aborts stops the work after the step or token in flight; what was
// learned or written until then is kept, so the promise still resolves.

import * as Comlink from "./vendor/comlink.mjs";

/**
 * @typedef {object} TrainingResult losses are in nats per token, on text that was held out
 * @property {number} steps @property {number} tokens @property {number} seconds @property {number} tokensPerSecond
 * @property {string[]} notices one for each time that the GPU was lost
 * @property {boolean} stopped @property {number} lossBefore @property {number} lossAfter
 * @property {number | null} firstLoss @property {number | null} lastLoss
 * @property {number} unigram what guessing by frequency alone would cost
 * @property {number} characters of the text
 * @property {RunRecord} record @property {Persona} [persona] @property {string} [notice] why it is not saved
 * @property {string} date ISO 8601, of its end @property {boolean} [replaced] it took the place of a persona of its name
 */
/** @typedef {{points: number[][], heldOut: number[][], skipped: number}} RunRecord [step, loss, gradient norm], [step, loss] */
/** @typedef {{id: string, title: string, words: number, date?: string, removed?: boolean}} PersonaText */
/** @typedef {{colour: string, texts: PersonaText[]}} Persona */
/** @typedef {{name: string, saved: boolean, bytes: number, training: Partial<TrainingResult>}} AdapterInfo */
/**
 * @typedef {object} ModelInfo
 * @property {string} name "" until it is saved @property {boolean} saved @property {string} fingerprint
 * @property {number} parameters @property {number} vocabSize @property {number} bytes
 * @property {Partial<TrainingResult>} training
 */
/**
 * @typedef {object} SessionInfo
 * @property {string} backend "webgpu" or "numpy" @property {string} adapterName of the GPU
 * @property {string} fallbackReason why not WebGPU; "" if it runs or was not wanted
 * @property {ModelInfo | null} model @property {AdapterInfo[]} adapters @property {string | null} activeAdapter
 * @property {Record<string, number>} mix weights of adapters that write together; {} for the active one
 */
/**
 * @typedef {object} Progress
 * @property {"tokenizer" | "encode" | "train" | "evaluate"} phase
 * @property {number} step @property {number} totalSteps
 * @property {[number, number, number][]} [points] [step, loss, gradient norm] since the report before
 * @property {[number, number][]} [heldOut] [step, loss on held-out text] since the report before
 * @property {number} [skipped] steps whose gradients overflowed
 * @property {number} [tokensPerSecond] @property {number} [secondsLeft]
 * @property {string} [notice] the GPU was lost, and learning goes on: from which step, on what
 */
/** @typedef {{stage: string, text: string, loaded: number, total: number}} LoadProgress bytes; total 0 if not known */
/** @typedef {string | Blob | Uint8Array} Text a string, or the bytes of a text file */
/** @typedef {{change: CustomEvent<SessionInfo>, progress: CustomEvent<Progress>, lost: CustomEvent<string>, elsewhere: CustomEvent<string[]>}} Events */
/** @typedef {<K extends keyof Events>(type: K, listener: (event: Events[K]) => void, options?: AddEventListenerOptions) => void} Listen */
/** @typedef {new () => {addEventListener: Listen, removeEventListener: Listen} & EventTarget} Target */
/**
 * @typedef {object} TrainOptions
 * @property {"quick" | "normal" | "long"} [length] default "quick" @property {number} [steps] instead of `length`
 * @property {number} [seed] @property {AbortSignal} [signal] @property {(progress: Progress) => void} [onProgress]
 */
/**
 * @typedef {object} PersonaOptions
 * @property {string} name @property {string} [title] of the text @property {string} [colour] "#rrggbb"
 * @property {boolean} [goOn] start from what the adapter of that name knows, and learn its texts again with this one
 */
/**
 * @typedef {object} WriteOptions
 * @property {number} [maxNewTokens] default 120 @property {number} [temperature] default 0.8; 0 is greedy
 * @property {number} [seed] default 1 @property {AbortSignal} [signal]
 * @property {string | null} [adapter] name; null for the bare model; left out: the active one
 * @property {number} [topK] @property {number} [topP] @property {number} [minP] what is cut off; off by default
 * @property {number} [repetitionPenalty] @property {number} [frequencyPenalty] @property {number} [presencePenalty]
 */
/**
 * @typedef {object} SavedItem
 * @property {string} name @property {"base" | "adapter"} kind @property {number} bytes
 * @property {string} date when it was taught, as far as that is known, wherever it was saved or restored since
 * @property {string} created @property {string} modified ISO 8601 @property {string} fingerprint of its base
 * @property {string} base name of an adapter's saved base, "" if that is not saved
 * @property {Partial<TrainingResult>} training
 */
/**
 * @typedef {object} StorageInfo
 * @property {number} used bytes @property {number} quota bytes; 0 if not known
 * @property {Record<"base" | "tokenizer" | "adapter" | "text", [number, number]>} kinds how many records, their bytes
 * @property {boolean} survivesReload @property {string} notice
 */
/** @typedef {{kind: "base" | "adapter", name: string, notice: string, session: SessionInfo}} ImportResult */

/** What the worker offers. @typedef {{boot: Function, call: Function, stop: Function, dispose: Function}} Remote */
/** @typedef {import("./worker.mjs").Answer} Answer */

/** Every error of this module. `name` is that of the Python class, `message` a sentence for the user. */
export class EvermindError extends Error {
  /** @param {string} name @param {string} message */
  constructor(name, message) {
    super(message);
    this.name = name;
  }
}

/**
 * Start the worker, load Python and open the device.
 * @param {object} [options]
 * @param {"webgpu" | "numpy" | null} [options.backend] default: WebGPU if it works, else NumPy
 * @param {(progress: LoadProgress) => void} [options.onProgress]
 * @param {string | URL} [options.base] folder of the built files, on this origin; default: where this module is
 * @param {string} [options.store] name of the database for saved things
 * @returns {Promise<Evermind>}
 */
export async function load({ backend = null, onProgress, base = import.meta.url, store = "evermind" } = {}) {
  const worker = new Worker(new URL("./worker.mjs", new URL(base, location.href)), { type: "module" });
  /** @type {(event: MessageEvent) => void} */
  const onBoot = ({ data }) => data?.evermind?.boot && onProgress?.(data.evermind.boot);
  worker.addEventListener("message", onBoot);
  const failed = new Promise((_resolve, reject) => {
    worker.onerror = (event) => {
      const message = `The worker could not start: ${event.message || "a file of the page is missing"}. Reload the page.`;
      reject(new EvermindError("LoadError", message));
    };
  });
  const remote = /** @type {Remote} */ (/** @type {unknown} */ (Comlink.wrap(worker)));
  try {
    const answer = await Promise.race([remote.boot({ backend, store }), failed]);
    return new Evermind(worker, remote, valueOf(/** @type {Answer} */ (answer), true));
  } catch (error) {
    worker.terminate();
    throw error;
  } finally {
    worker.removeEventListener("message", onBoot);
  }
}

/**
 * One model in one worker; get it from `load`. Events: "change" (`detail`: SessionInfo), "progress" (`detail`:
 * Progress), "lost" (`detail`: the sentence; the GPU went away, and the model was brought back or learning goes on),
 * "elsewhere" (another tab has saved, renamed or deleted something; `detail`: sentences on what is in memory here).
 */
export class Evermind extends /** @type {Target} */ (EventTarget) {
  #worker;
  #remote;
  /** @type {SessionInfo & {version: string}} */
  #info;
  #nextCall = 1;
  /** @type {Map<number, (event: any) => void>} */
  #listeners = new Map();
  /** How many times another tab has changed something that was not taken up yet. */
  #unseen = 0;

  /** @param {Worker} worker @param {Remote} remote @param {any} info */
  constructor(worker, remote, info) {
    super();
    this.#worker = worker;
    this.#remote = remote;
    this.#info = info;
    worker.addEventListener("message", ({ data }) => {
      const sent = data?.evermind;
      if (sent?.elsewhere) void this.#follow();
      if (sent?.event) this.#listeners.get(sent.call)?.(camelCase(JSON.parse(sent.event)));
    });
  }

  /** Backend, model and adapters in memory. @returns {SessionInfo & {version: string}} */
  get info() {
    return this.#info;
  }

  // ---- learning ---------------------------------------------------------------------------------------------

  /** Reject, with the reason, if `text` cannot be learned from. @param {string} text */
  async checkText(text) {
    await this.request("check_text", { text });
  }

  /**
   * Teach a new model a text; it takes the place of the one in memory.
   * @param {Text} text @param {TrainOptions} [options] @returns {Promise<TrainingResult>}
   */
  async train(text, options = {}) {
    return this.#learn("train", text, {}, options);
  }

  /**
   * Teach an adapter called `name` a second text; the model itself stays as it is.
   * @param {Text} text @param {TrainOptions & PersonaOptions} options @returns {Promise<TrainingResult>}
   */
  async personalize(text, options) {
    const { name, title, colour, goOn } = options;
    return this.#learn("personalize", text, { name }, options, { title, colour, go_on: goOn });
  }

  /**
   * @param {string} method @param {Text} text @param {object} extra @param {TrainOptions} options @param {object} [more]
   */
  async #learn(method, text, extra, { length, steps, seed, signal, onProgress }, more = {}) {
    const name = text instanceof File ? text.name : undefined;
    const chosen = { length, steps, seed, name, ...more };
    const args = { ...extra, ...(typeof text === "string" ? { text } : {}), options: chosen };
    /** @param {Progress} progress */
    const report = (progress) => {
      onProgress?.(progress);
      this.dispatchEvent(new CustomEvent("progress", { detail: progress }));
      if (progress.notice) void this.#recovered(progress.notice);
    };
    const buffers = typeof text === "string" ? [] : [await bytesOf(text)];
    return this.request(method, args, { buffers, signal, onEvent: report });
  }

  // ---- writing ----------------------------------------------------------------------------------------------

  /**
   * Continue `prompt`, piece by piece. Leaving the loop stops the model.
   * @param {string} prompt @param {WriteOptions} [options] @returns {AsyncGenerator<string, void>}
   */
  async *generate(prompt, options = {}) {
    for await (const { text } of this.#stream("generate", prompt, options)) yield text;
  }

  /**
   * Continue `prompt` without and then with an adapter, and with a `second` one if there is any, from the same seed.
   * @param {string} prompt @param {WriteOptions & {second?: string}} [options]
   * @returns {AsyncGenerator<{side: "base" | "adapter" | "second", text: string}, void>}
   */
  compare(prompt, options = {}) {
    return this.#stream("compare", prompt, options);
  }

  /** Choose the adapter that writes; null for the bare model. @param {string | null} name */
  async setAdapter(name) {
    await this.request("set_adapter", { name });
  }

  /** @param {string} method @param {string} prompt @param {WriteOptions} options @returns {AsyncGenerator<any, void>} */
  async *#stream(method, prompt, { signal, ...options }) {
    const stopped = new AbortController();
    const args = { prompt, options: snakeCase(options) };
    /** @type {any[]} */
    const pieces = [];
    let wake = () => {};
    let running = true;
    const done = this.request(method, args, {
      signal: signal ? AbortSignal.any([signal, stopped.signal]) : stopped.signal,
      onEvent: (event) => {
        pieces.push(event);
        wake();
      },
    });
    done.catch(() => {}).finally(() => {
      running = false;
      wake();
    });
    try {
      while (running || pieces.length) {
        while (pieces.length) yield pieces.shift();
        if (running) await /** @type {Promise<void>} */ (new Promise((resolve) => (wake = resolve)));
      }
    } finally {
      stopped.abort(); // no effect after the end; else the loop was left early
      await done.catch(() => {});
    }
    await done;
  }

  // ---- saved things -----------------------------------------------------------------------------------------

  /** Save model, tokenizer and adapters in this browser. @param {string} name */
  async save(name) {
    await this.request("save", { name });
  }

  /** Saved models and adapters, newest first. @returns {Promise<SavedItem[]>} */
  async list() {
    return this.request("list", {});
  }

  /** Load a model with its adapters, or an adapter with its model. @param {string} name */
  async load(name) {
    await this.request("load", { name });
  }

  /** @param {string} oldName @param {string} newName */
  async rename(oldName, newName) {
    await this.request("rename", { old: oldName, new: newName });
  }

  /** Delete from this browser; what is in memory stays. @param {string} name */
  async delete(name) {
    await this.request("delete", { name });
  }

  /** One file that `importFile` reads. @param {string} name @returns {Promise<{filename: string, bytes: Uint8Array<ArrayBuffer>}>} */
  async exportFile(name) {
    let payload = new Uint8Array();
    const { filename } = await this.request("export", { name }, { onBytes: (bytes) => (payload = bytes) });
    return { filename, bytes: payload };
  }

  /**
   * Check a file and save what it holds.
   * @param {File} file exported here, or a bare .evl0 or .lora
   * @param {File} [tokenizer] the tokenizer.json of a bare .evl0
   * @returns {Promise<ImportResult>}
   */
  async importFile(file, tokenizer) {
    const buffers = [await bytesOf(file), ...(tokenizer ? [await bytesOf(tokenizer)] : [])];
    return this.request("import", { filename: file.name }, { buffers });
  }

  /** @returns {Promise<StorageInfo>} */
  async storage() {
    return this.request("storage", {});
  }

  /** Ask the browser not to evict what is saved. @returns {Promise<boolean>} whether it promised that */
  async persist() {
    return (await navigator.storage?.persist?.()) ?? false;
  }

  /** The text in a file, or an error that says what it is instead. @param {File} file @returns {Promise<string>} */
  async readText(file) {
    return this.request("read_text", { name: file.name }, { buffers: [await bytesOf(file)] });
  }

  /** End the worker and free the GPU. */
  async dispose() {
    await this.#remote.dispose();
    this.#worker.terminate();
  }

  // ---- the wire ---------------------------------------------------------------------------------------------

  /**
   * Call a method of the Python session by name; what the methods above, and studio.mjs, are made of.
   * @param {string} method @param {object} args
   * @param {object} [options] @param {Uint8Array[]} [options.buffers] @param {AbortSignal} [options.signal]
   * @param {(event: any) => void} [options.onEvent] @param {(bytes: Uint8Array<ArrayBuffer>) => void} [options.onBytes]
   */
  async request(method, args, { buffers = [], signal, onEvent = () => {}, onBytes = () => {} } = {}) {
    const id = this.#nextCall++;
    const stop = () => void this.#remote.stop(id);
    this.#listeners.set(id, onEvent);
    try {
      const answer = this.#remote.call(id, method, JSON.stringify(args, finite), buffers);
      if (signal?.aborted) stop();
      signal?.addEventListener("abort", stop);
      const settled = /** @type {Answer} */ (await answer);
      const value = valueOf(settled, false);
      if (settled.ok) onBytes(/** @type {Uint8Array<ArrayBuffer>} */ (settled.bytes));
      const session = value?.session ?? (value?.backend ? value : null);
      if (session) this.#changed(session);
      return value;
    } catch (error) {
      if (error instanceof EvermindError && error.name === "DeviceLostError") await this.#recovered(error.message);
      throw error;
    } finally {
      signal?.removeEventListener("abort", stop);
      this.#listeners.delete(id);
    }
  }

  /** @param {SessionInfo} session */
  #changed(session) {
    this.#info = { ...this.#info, ...session };
    this.dispatchEvent(new CustomEvent("change", { detail: this.#info }));
  }

  /** Another tab has changed what is saved; looked at once for all that comes meanwhile. */
  async #follow() {
    if (this.#unseen++) return;
    while (this.#unseen) {
      this.#unseen = 1;
      const { notices = [] } = await this.request("follow", {}).catch(() => ({}));
      this.dispatchEvent(new CustomEvent("elsewhere", { detail: notices }));
      this.#unseen--;
    }
  }

  /** The worker has opened a device again; find out which. @param {string} message */
  async #recovered(message) {
    this.dispatchEvent(new CustomEvent("lost", { detail: message }));
    await this.request("describe", {}).catch(() => {});
  }
}

/** @param {Answer} answer @param {boolean} bare whether the JSON is the value itself @returns {any} */
function valueOf(answer, bare) {
  if (!answer.ok) throw new EvermindError(answer.name, answer.message);
  const parsed = JSON.parse(answer.json);
  if (parsed?.error) throw new EvermindError(parsed.error.name, parsed.error.message);
  return camelCase(bare ? parsed : parsed.value);
}

/** JSON would turn a NaN into null, as if it had not been given. @param {string} key @param {unknown} value */
function finite(key, value) {
  if (typeof value !== "number" || Number.isFinite(value)) return value;
  throw new EvermindError("InvalidArgumentError", `${key} must be a finite number, got ${value}`);
}

/** Python's snake_case keys as JavaScript's; those of `mix` are names. @param {any} value @returns {any} */
function camelCase(value) {
  if (Array.isArray(value)) return value.map(camelCase);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).map(([k, v]) => [
    k.replace(/_([a-z])/g, (_, c) => c.toUpperCase()),
    k === "mix" ? v : camelCase(v),
  ]);
  return Object.fromEntries(entries);
}

/** @param {Record<string, unknown>} options the keys as Python's */
export function snakeCase(options) {
  return Object.fromEntries(
    Object.entries(options).map(([k, v]) => [k.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`), v]),
  );
}

/** @param {Blob | Uint8Array} data @returns {Promise<Uint8Array>} */
async function bytesOf(data) {
  if (data instanceof Blob) return new Uint8Array(await data.arrayBuffer());
  if (ArrayBuffer.isView(data)) return data;
  throw new EvermindError("InvalidArgumentError", `Text is a string, a file is a Blob or a Uint8Array, got ${data === null ? "null" : typeof data}.`);
}
