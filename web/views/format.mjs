// Numbers, sizes and times in words for people.

const number = new Intl.NumberFormat("en");

/** @param {number} count */
export const integer = (count) => number.format(Math.round(count));

/** @param {number} count @param {string} noun */
export const counted = (count, noun) => `${integer(count)} ${noun}${count === 1 ? "" : "s"}`;

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(0)} KB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return "under 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** @param {string} iso */
export const date = (iso) => new Date(iso).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

/** @param {number} tokensPerSecond */
export const speed = (tokensPerSecond) => `${integer(tokensPerSecond)} tokens/s`;

/** @param {string} text */
export function count(text) {
  const words = text.trim() ? text.trim().split(/\s+/).length : 0;
  return text ? `${counted(words, "word")}, ${counted(text.length, "character")}` : "";
}

/** A name within a sentence; one from right to left is set apart, or the numbers behind it would change sides. @param {string} name */
export const name = (name) => (/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name);
