// Offline use: registers the service worker once the page is ready, and offers a new version when there is one.
// Where there are no service workers (a private window, plain http) the page works without.

import { query } from "./views/dom.mjs";
import { showNotice } from "./views/messages.mjs";

const RENEWED = "evermind:renewed";

/**
 * Load the page anew if it is of two versions, because a new one took over while it was loading.
 * @returns {Promise<boolean>} whether it does @throws if that was in vain
 */
export async function renewed() {
  const manifest = fetch(new URL("./evermind.json", import.meta.url), { cache: "no-cache" });
  const { build } = await manifest.then((response) => response.json()).catch(() => ({})); // gone offline since
  if (!build || build === query('meta[name="build"]', HTMLMetaElement).content) return false;
  let before = build; // where the tab may keep nothing
  try {
    before = sessionStorage.getItem(RENEWED);
    sessionStorage.setItem(RENEWED, build);
  } catch {
    // as above
  }
  if (before === build) throw new Error("This page is made of files of two versions. Reload it in a minute; whoever runs it: copy the whole dist folder to the server.");
  location.reload();
  return true;
}

/** @param {() => boolean} mayReload whether nothing would be lost @param {() => unknown} onKept the page is kept here from now on */
export async function workOffline(mayReload, onKept) {
  if (!("serviceWorker" in navigator) || !isSecureContext) return;
  try {
    const registration = await navigator.serviceWorker.register(new URL("./service-worker.js", import.meta.url));
    const offer = () => {
      const { waiting } = registration;
      if (!waiting || !navigator.serviceWorker.controller) return;
      showNotice("A new version of this page is ready.", { label: "Reload", act: () => waiting.postMessage("take over") });
    };
    offer();
    if (!registration.active) void navigator.serviceWorker.ready.then(onKept);
    registration.addEventListener("updatefound", () => {
      const { installing } = registration;
      installing?.addEventListener("statechange", () => installing.state === "installed" && offer());
    });
    let controlled = Boolean(navigator.serviceWorker.controller);
    navigator.serviceWorker.addEventListener("controllerchange", () => {
      if (controlled && mayReload()) location.reload(); // all of the new version, nothing of the old one
      controlled = true;
    });
  } catch {
    // Refused (a blocked origin, a full disk): online use goes on.
  }
}

/** Bytes of the page and of Python that are kept for use without a network. */
export async function keptBytes() {
  let bytes = 0;
  try {
    for (const name of await caches.keys()) {
      if (!name.startsWith("evermind-")) continue;
      const responses = await (await caches.open(name)).matchAll();
      bytes += responses.reduce((sum, { headers }) => sum + Number(headers.get("Content-Length")), 0);
    }
  } catch {
    // There are none, or the mere look is forbidden.
  }
  return bytes;
}
