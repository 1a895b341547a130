// Keeps the page's files, so that it opens without a network. A version is kept whole or not at all: evermind.json
// lists every file with its SHA-256, each version has a cache of its own, and what is served comes from one of them.
// A new version waits until no tab of the old one is open, or until the page says "take over". Models are not kept
// here: they are in the store. A classic script, because Firefox has no module service workers yet.

const VERSION = "SHA-256 of evermind.json"; // written in by the build, so that a new version is a new worker
const PREFIX = "evermind-";
const scope = self.registration.scope;
/** @param {string} name */
const at = (name) => new URL(name, scope).href;

/** @param {BufferSource} data */
async function sha256(data) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A file with this hash, from a cache of an earlier version or from the server. */
async function obtain(name, hash) {
  const earlier = await caches.match(at(name));
  if (earlier && earlier.headers.get("X-Evermind-Hash") === hash) return earlier;
  const response = await fetch(at(name), { cache: "no-cache" });
  const data = await response.arrayBuffer();
  if (!response.ok || (await sha256(data)) !== hash) throw new Error(`${name} is not the file that evermind.json lists`);
  return kept(data, response, hash);
}

/** A copy that remembers its hash and keeps the page's policy. */
function kept(data, response, hash) {
  const headers = new Headers({ "X-Evermind-Hash": hash });
  for (const name of ["Content-Type", "Content-Security-Policy", "X-Content-Type-Options"]) {
    const value = response.headers.get(name);
    if (value) headers.set(name, value);
  }
  headers.set("Content-Length", String(data.byteLength));
  return new Response(data, { headers });
}

async function install() {
  const response = await fetch(at("evermind.json"), { cache: "no-cache" });
  const data = await response.arrayBuffer();
  if (!response.ok || (await sha256(data)) !== VERSION) throw new Error("evermind.json is not of this version yet");
  const { files } = JSON.parse(new TextDecoder().decode(data));
  const cache = await caches.open(PREFIX + VERSION);
  try {
    for (const [name, hash] of Object.entries(files)) await cache.put(at(name), await obtain(name, hash));
    await cache.put(at("evermind.json"), kept(data, response, VERSION));
  } catch (error) {
    await caches.delete(PREFIX + VERSION);
    throw error;
  }
}

/** Every tab has this version now: the others go. */
async function activate() {
  for (const name of await caches.keys()) {
    if (name.startsWith(PREFIX) && name !== PREFIX + VERSION) await caches.delete(name);
  }
}

/** From this version's cache; what that does not hold comes from the network. @param {Request} request */
async function answer(request) {
  const url = new URL(request.url);
  const name = url.pathname.endsWith("/") ? `${url.pathname}index.html` : url.pathname;
  const cache = await caches.open(PREFIX + VERSION);
  return (await cache.match(new URL(name, url).href)) ?? fetch(request);
}

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("message", (event) => event.data === "take over" && self.skipWaiting());
self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && request.url.startsWith(scope)) event.respondWith(answer(request));
});
