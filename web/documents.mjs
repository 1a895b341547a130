// The prose in a file: of a web page without its markup, of a chat export without its frame. Runs nothing, fetches nothing.

const SKIPPED = "script, style, noscript, template, svg, nav, head";
const BLOCKS = "p, div, li, h1, h2, h3, h4, h5, h6, blockquote, tr, section, article, br";
/** Keys under which chat exports keep what people wrote. */
const TEXT_KEYS = new Set(["text", "content", "body", "message", "parts", "value"]);

/**
 * @param {string} text the file, decoded @param {string} filename
 * @returns {string} its prose
 */
export function proseOf(text, filename) {
  if (/\.html?$/i.test(filename)) return fromHtml(text);
  if (/\.json$/i.test(filename)) return fromJson(text, filename);
  return text;
}

/** @param {string} html */
function fromHtml(html) {
  const page = new DOMParser().parseFromString(html, "text/html"); // inert: no script runs, no image loads
  for (const element of page.querySelectorAll(SKIPPED)) element.remove();
  for (const element of page.querySelectorAll(BLOCKS)) element.append("\n");
  for (const element of page.querySelectorAll("br")) element.replaceWith("\n");
  return tidy(page.body?.textContent ?? "");
}

/** @param {string} json @param {string} filename */
function fromJson(json, filename) {
  /** @type {unknown} */
  let data;
  try {
    data = JSON.parse(json);
  } catch {
    throw new Error(`${filename} is not valid JSON. Export the chat again, or choose a .txt file.`);
  }
  const found = collect(data);
  if (!found.length) throw new Error(`${filename} holds no messages that this page knows. Choose a chat export or a .txt file.`);
  return tidy(found.join("\n"));
}

/** What stands under a text's key, in its order; with a list of its own, since some files nest deeper than calls can. @param {unknown} data */
function collect(data) {
  /** @type {string[]} */
  const found = [];
  /** @type {[unknown, boolean][]} */
  const waiting = [[data, Array.isArray(data)]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [value, wanted] = next;
    if (typeof value === "string") {
      if (wanted && value.trim()) found.push(value.trim());
    } else if (Array.isArray(value)) {
      for (let i = value.length - 1; i >= 0; i--) waiting.push([value[i], wanted]);
    } else if (value && typeof value === "object") {
      for (const [key, item] of Object.entries(value).reverse()) waiting.push([item, TEXT_KEYS.has(key)]);
    }
  }
  return found;
}

/** @param {string} text */
function tidy(text) {
  return text.replace(/[ \t\u00a0]+/g, " ").replace(/ ?\n ?/g, "\n").replace(/\n{3,}/g, "\n\n").trim();
}
