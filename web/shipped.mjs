// The model that comes with the page: fetched once with progress, then kept in the store like any other.

/** @typedef {import("./evermind.mjs").Evermind} Evermind */
/** @typedef {{file: string, bytes: number, sha256: string}} Part */
/**
 * @typedef {object} Shipped
 * @property {string} name @property {string} title @property {string} folder @property {number} parameters
 * @property {string} fingerprint @property {Part} model @property {Part} tokenizer
 */

/** What this build ships, or null. @param {string | URL} [base] @returns {Promise<Shipped | null>} */
export async function findShipped(base = import.meta.url) {
  const response = await fetch(new URL("./evermind.json", base));
  return response.ok ? ((await response.json()).shipped ?? null) : null;
}

/** Its name in the store, "" if it is not there. @param {Evermind} em @param {Shipped} shipped */
export async function keptAs(em, { fingerprint }) {
  return (await em.list()).find((item) => item.kind === "base" && item.fingerprint === fingerprint)?.name ?? "";
}

/**
 * Load the shipped model, fetching it only if it is not kept yet. Returns its name.
 * @param {Evermind} em @param {Shipped} shipped
 * @param {{onProgress?: (loaded: number, total: number) => void, signal?: AbortSignal, base?: string | URL}} [options]
 */
export async function useShipped(em, shipped, { onProgress = () => {}, signal, base = import.meta.url } = {}) {
  let name = await keptAs(em, shipped);
  if (!name) {
    const folder = new URL(shipped.folder, base);
    const total = shipped.model.bytes + shipped.tokenizer.bytes;
    let loaded = 0;
    /** @param {Part} part @param {string} filename */
    const get = async (part, filename) => {
      const blob = await download(new URL(part.file, folder), signal, (bytes) => onProgress((loaded += bytes), total));
      if (blob.size !== part.bytes) throw new Error(`${part.file} is ${blob.size} bytes, not ${part.bytes}. Try again.`);
      return new File([blob], filename);
    };
    const tokenizer = await get(shipped.tokenizer, "tokenizer.json");
    const model = await get(shipped.model, `${shipped.name}.evl0`);
    ({ name } = await em.importFile(model, tokenizer));
  }
  await em.load(name);
  if (em.info.model?.fingerprint !== shipped.fingerprint) {
    await em.delete(name);
    throw new Error("The shipped model arrived damaged. Try again.");
  }
  return name;
}

/** @param {URL} url @param {AbortSignal | undefined} signal @param {(bytes: number) => void} onBytes */
async function download(url, signal, onBytes) {
  const name = url.pathname.split("/").pop();
  /** @type {Response} */
  let response;
  try {
    response = await fetch(url, { signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error(`${name} could not be fetched: there is no connection. It is needed once; try again online.`);
  }
  if (!response.ok || !response.body) throw new Error(`${name} is missing from this page (HTTP ${response.status}).`);
  const chunks = [];
  for await (const chunk of /** @type {AsyncIterable<Uint8Array<ArrayBuffer>>} */ (/** @type {unknown} */ (response.body))) {
    chunks.push(chunk);
    onBytes(chunk.byteLength);
  }
  return new Blob(chunks);
}
