// Where the rows and bytes of a store lie: IndexedDB, or memory. The face over both is store.mjs.
//
// Contract, for whoever edits this file:
// - Must not await anything but requests of its own transaction while one is open: it would commit half-way.
// - Must resolve a write only after `tx.done`.
// - Must close its connection on `versionchange`, so that no tab of ours blocks a newer version.
// - Must never store a view on a larger buffer: the whole buffer would be stored.

import { deleteDB, openDB } from "./vendor/idb.mjs";
import { StorageError, foreign, isRow } from "./store_records.mjs";

/** @typedef {import("./store_records.mjs").Row} Row */
/** @typedef {import("./store_records.mjs").Change} Change */
/** @typedef {import("./vendor/idb.mjs").IDBPDatabase<any>} Database */
/** @typedef {import("./vendor/idb.mjs").IDBPTransaction<any, string[], "versionchange">} Upgrade */
/** @typedef {(db: Database, tx: Upgrade) => void} Migration */
/**
 * @typedef {object} Engine where rows and bytes lie
 * @property {boolean} persistent
 * @property {() => Promise<Row[]>} rows
 * @property {(name: string) => Promise<{row: Row, data: ArrayBuffer | undefined} | undefined>} read
 * @property {(names: string[], plan: (existing: (Row | undefined)[]) => Change) => Promise<void>} change all or nothing
 * @property {() => Promise<{used: number, quota: number}>} estimate
 * @property {() => void} close
 */
/** @typedef {{oldVersion: number, newVersion: number | null}} VersionChange */

/**
 * The schema: entry i brings a database from version i to i + 1. Append, never edit: old browsers hold old versions.
 * @type {Migration[]}
 */
export const MIGRATIONS = [
  (db) => {
    db.createObjectStore("records", { keyPath: "name" });
    db.createObjectStore("blobs", { autoIncrement: true });
  },
];

const BLOCKED_GRACE_MS = 1500; // tabs of ours close by themselves, after their running transaction
const CLOSED = "the store is closed; open it again";
const CLOSE_OTHERS = "close other tabs of this page, then try again";

/** Chromium refuses a value over 127 MiB; pieces also keep the copies that cross to its storage process small. */
const PIECE_BYTES = 2 ** 24;

/** Errors of a connection that the browser dropped behind our back; a new one usually works. */
const CONNECTION_LOST = new Set(["InvalidStateError", "UnknownError"]);

/** @param {unknown} error @returns {string} */
export function nameOf(error) {
  return error instanceof Error || error instanceof DOMException ? error.name : "";
}

/** @returns {Promise<{used: number, quota: number}>} bytes; quota 0 where the browser does not say */
export async function browserEstimate() {
  const found = await globalThis.navigator?.storage?.estimate?.();
  return { used: found?.usage ?? 0, quota: found?.quota ?? 0 };
}

// ---- IndexedDB ------------------------------------------------------------------------------------------------

/** @implements {Engine} */
export class IdbEngine {
  persistent = true;
  #closed = false;
  /** @type {Promise<Database> | null} */
  #connection = null;

  /** @param {string} name @param {number} timeout ms @param {Migration[]} migrations */
  constructor(name, timeout, migrations) {
    this.name = name;
    this.timeout = timeout;
    this.migrations = migrations;
    /** @type {(change: VersionChange) => void} */
    this.onversionchange = () => {};
    /** Called when the database had to be made, with the browser's reason if it threw a damaged one away.
     * @type {(why: string) => Promise<void>} */
    this.onfresh = async () => {};
  }

  rows() {
    return this.#run((db) => db.getAll("records"));
  }

  /** @param {string} name */
  read(name) {
    return this.#run(async (db) => {
      const tx = db.transaction(["records", "blobs"]);
      /** @type {Row | undefined} */
      const row = await tx.objectStore("records").get(name);
      if (!row) return undefined;
      if (!isRow(row)) throw foreign(name);
      const blobs = tx.objectStore("blobs");
      return { row, data: await joined(row, (key) => blobs.get(key)) };
    });
  }

  /** @param {string[]} names @param {(existing: (Row | undefined)[]) => Change} plan */
  change(names, plan) {
    return this.#run(async (db) => {
      const tx = db.transaction(["records", "blobs"], "readwrite", { durability: "strict" });
      tx.done.catch(() => {}); // awaited below; after an abort nobody else would
      try {
        const records = tx.objectStore("records");
        const blobs = tx.objectStore("blobs");
        const change = plan(await Promise.all(names.map((name) => records.get(name))));
        for (const blob of change.dropBlobs) await blobs.delete(blob);
        for (const name of change.dropNames) await records.delete(name);
        for (const { row, data } of change.put) {
          const keys = data ? [] : row.blobs;
          for (const piece of data ? pieces(data) : []) keys.push(Number(await blobs.add(piece)));
          await records.put({ ...row, blobs: keys });
        }
        await tx.done;
      } catch (error) {
        abortQuietly(tx);
        throw error;
      }
    });
  }

  estimate() {
    return browserEstimate();
  }

  close() {
    this.#closed = true;
    this.#drop(this.#connection);
  }

  /** The connection, opened if need be. @returns {Promise<Database>} */
  connect() {
    if (this.#closed) throw new StorageError(CLOSED);
    if (!this.#connection) {
      const opening = this.#open().catch((error) => {
        if (nameOf(error) !== "UnknownError") throw error;
        return this.#open();
      });
      opening.catch(() => this.#drop(opening));
      this.#connection = opening;
    }
    return this.#connection;
  }

  /**
   * Do `work`; once more on a new connection where the browser had dropped the old one. A transaction that failed
   * has changed nothing, so that doing it again is safe.
   * @template T @param {(db: Database) => Promise<T>} work @returns {Promise<T>}
   */
  async #run(work) {
    for (let first = true; ; first = false) {
      const connection = this.connect();
      const db = await connection;
      try {
        return await work(db);
      } catch (error) {
        const dropped = nameOf(error) === "AbortError" && this.#connection !== connection;
        if (!first || this.#closed || !(dropped || CONNECTION_LOST.has(nameOf(error)))) throw error;
        this.#drop(connection);
      }
    }
  }

  /** Forget a connection, unless there is a newer one, and close it. @param {Promise<Database> | null} connection */
  #drop(connection) {
    if (this.#connection === connection) this.#connection = null;
    connection?.then((db) => db.close(), () => {});
  }

  /**
   * One attempt to open, which always settles: another tab that holds an old version gives `blocked`, a tab queued
   * behind gets no event at all, and Safari may never answer.
   * @returns {Promise<Database>}
   */
  #open() {
    const { name, timeout, migrations } = this;
    return new Promise((resolve, reject) => {
      let late = false;
      let told = Promise.resolve();
      /** @param {string} what */
      const giveUp = (what) => {
        late = true;
        reject(new StorageError(`${what}; ${CLOSE_OTHERS}`));
      };
      const seconds = timeout / 1000;
      let timer = setTimeout(giveUp, timeout, `the browser's storage did not open within ${seconds} s`);
      /** @type {Promise<Database>} */
      const opening = openDB(name, migrations.length, {
        upgrade: (db, from, _to, tx, event) => {
          // Chromium throws damaged ones away by itself and says so nowhere else (an extension of its own).
          const { dataLossMessage = "" } = /** @type {{dataLossMessage?: string}} */ (event);
          if (from === 0) told = this.onfresh(dataLossMessage);
          for (const migrate of migrations.slice(from)) migrate(db, tx);
        },
        blocked: () => {
          clearTimeout(timer);
          timer = setTimeout(giveUp, Math.min(BLOCKED_GRACE_MS, timeout), "another tab holds an older version");
        },
        blocking: (oldVersion, newVersion) => {
          this.#drop(this.#connection);
          this.onversionchange({ oldVersion, newVersion });
        },
        terminated: () => this.#drop(this.#connection),
      });
      /** @param {Database} db */
      const opened = (db) => (late ? db.close() : resolve(db));
      opening.then((db) => told.then(() => opened(db)), reject).finally(() => clearTimeout(timer));
    });
  }
}

/**
 * Make the browser's database begin a new log, in the background. A kill may tear the last entry of Chromium's log.
 * Chromium (`reuse_logs` of its LevelDB) then writes on behind the tear, takes that for damage at the next start, and
 * empties the whole database. When a database is deleted, it begins a new log and drops the old one.
 */
export function beginNewLog() {
  if (!("dataLoss" in IDBVersionChangeEvent.prototype)) return; // of Chromium only
  const name = "evermind new log";
  openDB(name).then((db) => db.close()).then(() => deleteDB(name)).catch(() => {});
}

/**
 * At least one piece, so that no bytes are told from lost bytes.
 * @param {ArrayBuffer} data @returns {Generator<ArrayBuffer>}
 */
function* pieces(data) {
  if (data.byteLength <= PIECE_BYTES) yield data;
  else for (let at = 0; at < data.byteLength; at += PIECE_BYTES) yield data.slice(at, at + PIECE_BYTES);
}

/**
 * The bytes of a record, read piece by piece, so that they are never in memory twice.
 * @param {Row} row @param {(key: number) => Promise<ArrayBuffer | undefined>} get
 * @returns {Promise<ArrayBuffer | undefined>} nothing if a piece is missing or too long
 */
async function joined({ blobs, size }, get) {
  if (blobs.length === 1) return get(blobs[0]);
  const whole = new Uint8Array(size);
  let at = 0;
  for (const key of blobs) {
    const piece = await get(key);
    if (!piece || at + piece.byteLength > size) return undefined;
    whole.set(new Uint8Array(piece), at);
    at += piece.byteLength;
  }
  return at === size ? whole.buffer : whole.buffer.slice(0, at);
}

/** @param {{abort: () => void}} tx */
function abortQuietly(tx) {
  try {
    tx.abort();
  } catch {
    // already aborted by the browser
  }
}

// ---- memory ---------------------------------------------------------------------------------------------------

/** The same over two maps, for private windows. @implements {Engine} */
export class MemoryEngine {
  persistent = false;
  #closed = false;
  /** @type {Map<string, Row>} */
  #records = new Map();
  /** @type {Map<number, ArrayBuffer>} */
  #blobs = new Map();
  #lastBlob = 0;

  async rows() {
    this.#checkOpen();
    return [...this.#records.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** @param {string} name */
  async read(name) {
    this.#checkOpen();
    const row = this.#records.get(name);
    return row && { row, data: this.#blobs.get(row.blobs[0])?.slice(0) };
  }

  /** @param {string[]} names @param {(existing: (Row | undefined)[]) => Change} plan */
  async change(names, plan) {
    this.#checkOpen();
    const change = plan(names.map((name) => this.#records.get(name)));
    for (const blob of change.dropBlobs) this.#blobs.delete(blob);
    for (const name of change.dropNames) this.#records.delete(name);
    for (const { row, data } of change.put) {
      const blobs = data ? [++this.#lastBlob] : row.blobs;
      if (data) this.#blobs.set(blobs[0], data);
      this.#records.set(row.name, { ...row, blobs });
    }
  }

  async estimate() {
    let used = 0;
    for (const { size } of this.#records.values()) used += size;
    return { used, quota: 0 };
  }

  close() {
    this.#closed = true;
    this.#records.clear();
    this.#blobs.clear();
  }

  #checkOpen() {
    if (this.#closed) throw new StorageError(CLOSED);
  }
}
