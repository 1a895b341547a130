// Counts the bytes of every fetch in a worker while the runtime loads, and remembers the first that failed:
// Pyodide itself reports neither, and blames the hash when a server answered 404 with a page.

/**
 * Wrap `fetch` until `end()`.
 * @param {(loaded: number, total: number) => void} onProgress bytes; total 0 when not known
 */
export function countDownloads(onProgress) {
  const original = globalThis.fetch;
  let loaded = 0;
  let total = 0;
  let missing = "";

  /** @param {Response} response */
  function note({ ok, url, status }) {
    if (!ok) missing ||= `${url.split("/").pop()} not found at ${url} (HTTP ${status})`;
  }

  /** @param {RequestInfo | URL} input @param {RequestInit} [init] */
  async function counted(input, init) {
    let response;
    try {
      response = await original(input, init);
    } catch (error) {
      // With `integrity`, a 404 page fails by its hash before anyone sees its status; so look again without.
      if (init?.integrity) await original(input).then(note, () => {});
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
    /** @param {number} bytes that will be loaded in all */
    expect(bytes) {
      total = bytes;
    },
    failed: () => missing,
    end() {
      if (globalThis.fetch === counted) globalThis.fetch = original;
    },
  };
}
