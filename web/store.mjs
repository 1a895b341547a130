// Named records of bytes in the browser: IndexedDB, or memory where a private window has none.
//
// The store moves bytes and knows no tensors. Rows (metadata) and bytes lie in two object stores, so that listing
// a thousand adapters reads no bytes. A save is ONE transaction over both, acknowledged after it is complete.

import { IdbEngine, MIGRATIONS, MemoryEngine, beginNewLog, browserEstimate, nameOf } from "./store_engines.mjs";
import { lossOf, remember } from "./store_memory.mjs";
import {
  RecordNotFoundError, StorageError, StorageFullError,
  checkBytes, checkDistinct, checkName, faceOf, isRow, planDelete, planRename, planSave, prepare,
} from "./store_records.mjs";

export { InvalidArgumentError, RecordNotFoundError, StorageError, StorageFullError } from "./store_records.mjs";

/** @typedef {import("./store_records.mjs").StoreRecord} StoreRecord */
/** @typedef {import("./store_records.mjs").SaveItem} SaveItem */
/** @typedef {import("./store_records.mjs").Row} Row */
/** @typedef {import("./store_records.mjs").Change} Change */
/** @typedef {import("./store_engines.mjs").Engine} Engine */
/** @typedef {import("./store_engines.mjs").Migration} Migration */
/** @typedef {import("./store_engines.mjs").VersionChange} VersionChange */

const OPEN_TIMEOUT_MS = 6000; // a cold open of a slow disk takes one or two seconds
const PRIVATE_NOTICE = "not saved in a private window; download instead";

/** @param {number} count */
const unknown = (count) => `records in this browser that this version of the page cannot read, and leaves alone: ${count}`;

/** Errors of `open` in private windows and sandboxed frames: there is no database to be had. */
const NO_DATABASE = new Set(["InvalidStateError", "SecurityError", "NotSupportedError"]);

/**
 * Open (or create) the store `name`. Falls back to memory, with `persistent` false and a `notice`, where the browser
 * has no database (private window).
 * @param {{name?: string, timeout?: number, migrations?: Migration[],
 *   onversionchange?: ((change: VersionChange) => void) | null}} [options] `timeout` of opening, in ms
 * @returns {Promise<Store>}
 * @throws {StorageError} when other tabs block the database, or it does not open in time
 */
export async function openStore(options = {}) {
  const { name = "evermind", timeout = OPEN_TIMEOUT_MS, migrations = MIGRATIONS, onversionchange = null } = options;
  const engine = new IdbEngine(name, timeout, migrations);
  const store = new Store(name, engine, "");
  store.onversionchange = onversionchange;
  engine.onversionchange = (change) => store.onversionchange?.(change);
  engine.onfresh = async (why) => void (store.notice = await lossOf(name, why));
  try {
    if (!hasIndexedDB()) throw new DOMException("this browser has no IndexedDB", "NotSupportedError");
    await engine.connect();
    beginNewLog();
    return store;
  } catch (error) {
    store.close();
    if (!NO_DATABASE.has(nameOf(error))) throw asStorageError(error);
    return new Store(name, new MemoryEngine(), PRIVATE_NOTICE);
  }
}

function hasIndexedDB() {
  try {
    return Boolean(globalThis.indexedDB);
  } catch {
    return false; // a sandboxed frame throws on the mere look
  }
}

/**
 * Ask the browser to keep this origin's data when disk space runs low. A page has to ask; in a worker this only
 * reports what was granted.
 * @returns {Promise<boolean>}
 */
export async function persistStorage() {
  const manager = globalThis.navigator?.storage;
  if (!manager) return false;
  if (typeof manager.persist === "function" && (await manager.persist())) return true;
  return typeof manager.persisted === "function" && (await manager.persisted());
}

/** Named records of bytes. Get one from `openStore`. All methods reject with the errors of this module. */
export class Store {
  #engine;
  #others;

  /** @param {string} name @param {Engine} engine @param {string} notice */
  constructor(name, engine, notice) {
    this.name = name;
    this.#engine = engine;
    /** Whether records survive a reload. */
    this.persistent = engine.persistent;
    /** A sentence for the user; "" when there is nothing to say. */
    this.notice = notice;
    /** Called after the connection was closed because another tab upgrades or deletes the database.
     * @type {((change: VersionChange) => void) | null} */
    this.onversionchange = null;
    /** Called after another tab, or another store of this name, has changed something. @type {(() => void) | null} */
    this.onchange = null;
    this.#others = engine.persistent && globalThis.BroadcastChannel ? new BroadcastChannel(`evermind store ${name}`) : null;
    if (this.#others) this.#others.onmessage = () => this.onchange?.();
  }

  /**
   * Save a copy of `data`, in one transaction; resolves after it is on disk.
   * @param {string} name @param {SaveItem["data"]} data
   * @param {Omit<SaveItem, "name" | "data"> & {replace?: boolean}} options
   * @returns {Promise<StoreRecord>}
   * @throws {StorageError} if the name is taken and `replace` is not true
   * @throws {StorageFullError} at once, with bytes needed and free; the older record stays
   */
  async save(name, data, options) {
    const { replace = false, ...rest } = options;
    return (await this.saveMany([{ ...rest, name, data }], { replace }))[0];
  }

  /**
   * Save several records (a base with its tokenizer), all or none.
   * @param {SaveItem[]} items @param {{replace?: boolean}} [options] @returns {Promise<StoreRecord[]>}
   */
  async saveMany(items, { replace = false } = {}) {
    const prepared = Array.from(items, prepare);
    checkDistinct(prepared);
    const names = prepared.map(({ row }) => row.name);
    /** @type {Row[]} */
    let saved = [];
    const need = prepared.reduce((sum, { row }) => sum + row.size, 0);
    await this.#change(names, need, (existing) => {
      const change = planSave(prepared, existing, replace);
      saved = change.put.map(({ row }) => row);
      return change;
    });
    return saved.map(faceOf);
  }

  /**
   * A record and a fresh copy of its bytes, length and CRC-32 checked.
   * @param {string} name @returns {Promise<{record: StoreRecord, data: Uint8Array<ArrayBuffer>}>}
   * @throws {RecordNotFoundError} if there is none (the browser may have evicted it)
   * @throws {StorageError} if its bytes are not those that were saved
   */
  async load(name) {
    checkName(name);
    const found = await guard(this.#engine.read(name));
    if (!found) throw new RecordNotFoundError(name);
    const { row, data } = found;
    checkBytes(row, data);
    return { record: faceOf(row), data: new Uint8Array(/** @type {ArrayBuffer} */ (data)) };
  }

  /**
   * Every record, ordered by name; reads no bytes. What is none of this version's is left out, and `notice` counts it.
   * @returns {Promise<StoreRecord[]>}
   */
  async list() {
    const rows = await guard(this.#engine.rows());
    const known = rows.filter(isRow);
    if (known.length < rows.length) this.notice ||= unknown(rows.length - known.length);
    return known.map(faceOf);
  }

  /**
   * @param {string} from @param {string} to a name that is free @returns {Promise<void>}
   * @throws {RecordNotFoundError | StorageError}
   */
  async rename(from, to) {
    const names = [checkName(from), checkName(to)];
    await this.#change(names, 0, (existing) => planRename(from, to, existing));
  }

  /** All of them, or none. @param {string[]} names @returns {Promise<void>} @throws {RecordNotFoundError} */
  async delete(...names) {
    await this.#change(names.map(checkName), 0, (existing) => planDelete(names, existing));
  }

  /** Bytes used and allowed, of this origin; quota 0 where unknown. */
  async estimate() {
    return guard(this.#engine.estimate());
  }

  /** Ask for storage that is not evicted; tells whether it is. @returns {Promise<boolean>} */
  async persist() {
    return this.persistent && persistStorage();
  }

  /** Let go of the connection. Every later call is refused. */
  close() {
    this.#engine.close();
    this.#others?.close();
    this.#others = null;
  }

  /** @param {string[]} names @param {number} need bytes @param {(existing: (Row | undefined)[]) => Change} plan */
  async #change(names, need, plan) {
    try {
      await this.#engine.change(names, plan);
      this.#others?.postMessage("changed");
      if (this.persistent) void remember(this.name, this.#engine.rows());
    } catch (error) {
      throw need && nameOf(error) === "QuotaExceededError" ? await fullError(error, need) : asStorageError(error);
    }
  }
}

/** @template T @param {Promise<T>} work @returns {Promise<T>} */
async function guard(work) {
  try {
    return await work;
  } catch (error) {
    throw asStorageError(error);
  }
}

/** @param {unknown} error @returns {Error} our own errors as they are, the browser's in our words */
function asStorageError(error) {
  if (error instanceof Error && !(error instanceof DOMException)) return error;
  if (nameOf(error) === "QuotaExceededError") {
    return new StorageFullError("browser storage is full; delete records or free disk space", error);
  }
  if (nameOf(error) === "VersionError") {
    return new StorageError("a newer version of this page has changed the stored data; reload this page", error);
  }
  return new StorageError(`the browser's storage failed (${nameOf(error)}: ${error}); reload this page`, error);
}

/**
 * The browser's estimate may be a fixed figure that hides how full the disk is: never say more than is sure.
 * @param {unknown} cause @param {number} need @returns {Promise<StorageFullError>}
 */
async function fullError(cause, need) {
  const { used, quota } = await browserEstimate();
  const free = quota - used;
  const sure = free >= 0 && free < need ? mebibytes(free) : `less than ${mebibytes(need)}`;
  const advice = "delete what you can spare, downloaded first, or free disk space; nothing was changed";
  return new StorageFullError(`browser storage is full: need ${mebibytes(need)}, free ${sure}; ${advice}`, cause);
}

/** @param {number} bytes */
function mebibytes(bytes) {
  return `${(bytes / 2 ** 20).toFixed(2)} MiB`;
}
