// What a stored record is: its fields, the checks on them, the errors, and what save, rename and delete change.
// Pure functions over rows; where rows and bytes lie is the business of store.mjs.

import { crc32 } from "./crc32.mjs";

export const MAX_NAME = 200; // Unicode code points
export const MAX_KIND = 40;

/**
 * One record as the face shows it. Sizes are in bytes, times are ISO 8601 in UTC.
 * @typedef {{name: string, kind: string, baseFingerprint: string, crc32: number, size: number,
 *   created: string, modified: string, metadata: Record<string, unknown>}} StoreRecord
 */
/**
 * The same as it is stored: `blobs` are the keys of its bytes, in order.
 * @typedef {StoreRecord & {blobs: number[]}} Row
 */
/**
 * One thing to save. `owned` promises that `data` is an exactly sized array which nobody else will touch.
 * @typedef {{name: string, data: Uint8Array | ArrayBuffer | ArrayBufferView, kind: string, baseFingerprint?: string,
 *   metadata?: Record<string, unknown> | null, created?: string, owned?: boolean}} SaveItem
 */
/**
 * What one transaction does, in this order: bytes dropped, rows dropped, rows put (with new bytes, or kept ones).
 * @typedef {{dropBlobs: number[], dropNames: string[], put: {row: Row, data: ArrayBuffer | null}[]}} Change
 */

/** The store could not read or write: blocked, damaged, closed, or the name is taken. */
export class StorageError extends Error {
  /** @param {string} message @param {unknown} [cause] */
  constructor(message, cause) {
    super(message, { cause });
    this.name = "StorageError";
  }
}

/** No room. */
export class StorageFullError extends StorageError {
  /** @param {string} message @param {unknown} [cause] */
  constructor(message, cause) {
    super(message, cause);
    this.name = "StorageFullError";
  }
}

/** There is no record of that name. */
export class RecordNotFoundError extends StorageError {
  /** @param {string} name of the record */
  constructor(name) {
    super(`checkpoint ${name} is no longer in this browser; import it from a file, or train it again`);
    this.name = "RecordNotFoundError";
  }
}

/** An argument is of the wrong type or length. */
export class InvalidArgumentError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "InvalidArgumentError";
  }
}

/** @param {unknown} name @returns {string} */
export function checkName(name) {
  if (typeof name !== "string" || name.trim() === "") throw new InvalidArgumentError("a record needs a name");
  const length = [...name].length;
  if (length > MAX_NAME) {
    throw new InvalidArgumentError(`a record's name has at most ${MAX_NAME} characters, this one has ${length}`);
  }
  if (/\p{Surrogate}/u.test(name)) throw new InvalidArgumentError("a record's name is not valid Unicode text");
  return name;
}

/**
 * A copy of `data` on a plain ArrayBuffer of exactly its length: a view would drag the whole wasm heap along.
 * @param {SaveItem["data"]} data @param {boolean} owned @returns {ArrayBuffer}
 */
function ownBytes(data, owned) {
  const isView = ArrayBuffer.isView(data);
  if (!isView && !(data instanceof ArrayBuffer)) {
    throw new InvalidArgumentError("data to save must be a Uint8Array or an ArrayBuffer");
  }
  if (owned && isView && data.buffer instanceof ArrayBuffer && data.byteLength === data.buffer.byteLength) {
    return data.buffer;
  }
  const view = isView ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
  const copy = new Uint8Array(view.length);
  copy.set(view);
  return copy.buffer;
}

/** @param {unknown} metadata @returns {Record<string, unknown>} */
function plainMetadata(metadata) {
  let copy;
  try {
    copy = JSON.parse(JSON.stringify(metadata ?? {}));
  } catch (error) {
    throw new InvalidArgumentError(`metadata must be plain JSON: ${error instanceof Error ? error.message : error}`);
  }
  if (typeof copy !== "object" || copy === null || Array.isArray(copy)) {
    throw new InvalidArgumentError("metadata must be an object");
  }
  return copy;
}

/**
 * Check one item and copy its bytes, before any transaction is open. `blobs` is set when the bytes are stored.
 * @param {SaveItem} item @returns {{row: Row, data: ArrayBuffer}}
 */
export function prepare(item) {
  const { kind, baseFingerprint = "" } = item;
  if (typeof kind !== "string" || kind === "" || kind.length > MAX_KIND) {
    throw new InvalidArgumentError(`a record's kind is a short word such as "base" or "adapter", got ${String(kind)}`);
  }
  if (typeof baseFingerprint !== "string") throw new InvalidArgumentError("baseFingerprint must be a string");
  const name = checkName(item.name);
  const metadata = plainMetadata(item.metadata);
  const data = ownBytes(item.data, item.owned === true);
  const now = new Date().toISOString();
  const row = {
    name, kind, baseFingerprint, crc32: crc32(new Uint8Array(data)), size: data.byteLength,
    created: item.created || now, modified: now, metadata, blobs: [],
  };
  return { row, data };
}

/**
 * Whether this version can work with a stored row: another page of this origin, or a later version, may have left others.
 * @param {any} row @returns {row is Row}
 */
export function isRow(row) {
  const { name, kind, baseFingerprint, crc32, size, created, modified, metadata, blobs } = row;
  const texts = [name, kind, baseFingerprint, created, modified].every((text) => typeof text === "string" && !/\p{Surrogate}/u.test(text));
  const numbers = Array.isArray(blobs) && [crc32, size, ...blobs].every((number) => Number.isSafeInteger(number) && number >= 0);
  const named = texts && name.trim() !== "" && [...name].length <= MAX_NAME;
  return named && numbers && typeof metadata === "object" && metadata !== null && !Array.isArray(metadata);
}

/** @param {string} name */
export function foreign(name) {
  return new StorageError(`the record ${name} is none that this version of the page wrote; reload the page, or delete it`);
}

/** @param {{row: Row}[]} items */
export function checkDistinct(items) {
  const names = new Set();
  for (const { row } of items) {
    if (names.has(row.name)) throw new InvalidArgumentError(`the name ${row.name} is given twice`);
    names.add(row.name);
  }
}

/** @param {string} name */
function taken(name) {
  return new StorageError(`the name ${name} is taken; choose another, or replace the record on purpose`);
}

/**
 * @param {{row: Row, data: ArrayBuffer}[]} items @param {(Row | undefined)[]} existing rows of the same names
 * @param {boolean} replace @returns {Change}
 */
export function planSave(items, existing, replace) {
  /** @type {Change} */
  const change = { dropBlobs: [], dropNames: [], put: [] };
  items.forEach(({ row, data }, i) => {
    const old = existing[i];
    if (old && !replace) throw taken(row.name);
    if (old && !isRow(old)) throw foreign(row.name);
    if (old) change.dropBlobs.push(...old.blobs);
    change.put.push({ row: { ...row, created: old ? old.created : row.created }, data });
  });
  return change;
}

/**
 * The bytes stay where they are; only the row moves.
 * @param {string} from @param {string} to @param {(Row | undefined)[]} existing rows of both @returns {Change}
 */
export function planRename(from, to, existing) {
  const [old, other] = existing;
  if (!old) throw new RecordNotFoundError(from);
  if (from === to) return { dropBlobs: [], dropNames: [], put: [] };
  if (other) throw taken(to);
  const row = { ...old, name: to, modified: new Date().toISOString() };
  return { dropBlobs: [], dropNames: [from], put: [{ row, data: null }] };
}

/** @param {string[]} names @param {(Row | undefined)[]} existing @returns {Change} */
export function planDelete(names, existing) {
  const dropBlobs = names.flatMap((name, i) => {
    const old = existing[i];
    if (!old) throw new RecordNotFoundError(name);
    return isRow(old) ? old.blobs : [];
  });
  return { dropBlobs, dropNames: names, put: [] };
}

/** @param {Row} row @returns {StoreRecord} */
export function faceOf(row) {
  const { blobs: _blobs, ...record } = row;
  return record;
}

/** Refuse bytes that are not those that were saved. @param {Row} row @param {ArrayBuffer | undefined} data */
export function checkBytes(row, data) {
  const repair = "delete it, and import it again from a file";
  if (!(data instanceof ArrayBuffer)) throw new StorageError(`the bytes of ${row.name} are missing; ${repair}`);
  if (data.byteLength !== row.size) {
    throw new StorageError(`${row.name} is truncated: have ${data.byteLength} of ${row.size} bytes; ${repair}`);
  }
  const found = crc32(new Uint8Array(data));
  if (found !== row.crc32) {
    throw new StorageError(`${row.name} is damaged: CRC-32 is ${hex(found)}, saved as ${hex(row.crc32)}; ${repair}`);
  }
}

/** @param {number} value */
function hex(value) {
  return value.toString(16).padStart(8, "0");
}
