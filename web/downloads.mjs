// Watches every fetch in a worker while the runtime loads: counts its bytes, has the browser compare what it loads with
// the SHA-256 that the build wrote down, and remembers the first that failed. Pyodide itself does none of this, and
// blames the hash when a server answered 404 with a page.

const DAMAGED = "is not the file that this page was built with, or arrived damaged (its SHA-256 differs)";

/** As `integrity` wants it. @param {string} hex SHA-256 */
function integrityOf(hex) {
  const bytes = hex.match(/../g) ?? [];
  return `sha256-${btoa(String.fromCharCode(...bytes.map((byte) => parseInt(byte, 16))))}`;
}

/**
 * Wrap `fetch` until `end()`.
 * @param {(loaded: number, total: number) => void} onProgress bytes; total 0 when not known
 */
export function countDownloads(onProgress) {
  const original = globalThis.fetch;
  let loaded = 0;
  let total = 0;
  let missing = "";
  /** @type {Map<string, string>} */
  let hashes = new Map();
  let refuse = () => {};
  /** @type {Promise<never>} */
  const refused = new Promise((_resolve, reject) => (refuse = () => reject(new Error(missing))));
  refused.catch(() => {});

  /** @param {Response} response @param {string} [damage] what a response that is there suffers from */
  function note({ ok, url, status }, damage = "") {
    if (ok && !damage) return;
    const what = ok ? `at ${url} ${damage}` : `not found at ${url} (HTTP ${status})`;
    missing ||= `${url.split("/").pop()} ${what}`;
    refuse();
  }

  /** @param {RequestInfo | URL} input @param {RequestInit} [init] */
  async function counted(input, init) {
    let response;
    const hash = hashes.get(input instanceof Request ? input.url : new URL(input, self.location.href).href);
    const integrity = init?.integrity || (hash && integrityOf(hash));
    try {
      response = await original(input, integrity ? { ...init, integrity } : init);
    } catch (error) {
      // With `integrity`, a 404 page fails by its hash before anyone sees its status; so look again without.
      if (integrity) await original(input).then((response) => note(response, DAMAGED), () => {});
      throw error;
    }
    note(response);
    if (!response.ok || !response.body) return response;
    // WebAssembly is compiled from the network's own response, so that the browser can keep the compiled code.
    if (response.headers.get("Content-Type")?.startsWith("application/wasm")) {
      loaded += Number(response.headers.get("Content-Length") ?? 0);
      onProgress(loaded, Math.max(total, loaded));
      return response;
    }
    const counter = new TransformStream({
      transform(chunk, controller) {
        loaded += chunk.byteLength;
        onProgress(loaded, Math.max(total, loaded));
        controller.enqueue(chunk);
      },
    });
    const { status, statusText, headers } = response;
    const copy = new Response(response.body.pipeThrough(counter), { status, statusText, headers });
    Object.defineProperty(copy, "url", { value: response.url });
    return copy;
  }

  globalThis.fetch = counted;
  return {
    /** @param {number} bytes that will be loaded in all @param {Map<string, string>} files SHA-256 by address */
    expect(bytes, files) {
      total = bytes;
      hashes = files;
    },
    /**
     * Refuse scripts that are not what the build wrote down, before they are imported: `import` in a worker compares no
     * hashes. @param {string[]} urls
     */
    async check(urls) {
      const known = urls.filter((url) => hashes.has(url));
      await Promise.all(known.map(async (url) => (await counted(url)).arrayBuffer()));
    },
    failed: () => missing,
    /** Rejects when a file is missing or damaged: Pyodide waits for ever for a WebAssembly file that does not come. */
    refused,
    end() {
      if (globalThis.fetch === counted) globalThis.fetch = original;
    },
  };
}
