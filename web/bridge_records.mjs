/** The list of int32 records that Python hands over, see `backend/device.py`. */

import { failure } from "./bridge_faults.mjs";

/** @typedef {import("./bridge_plans.mjs").Plan} Plan */
/** @typedef {import("./bridge_plans.mjs").Window} Window */

const RUN = 1;
const UPLOAD = 2;
const CLEAR = 3;
const COPY = 4;
const DESTROY = 5;
const REPLAY = 6;
const DROP = 7;

/**
 * What a list of records is made into: commands at once, or a program for later.
 * @typedef {object} Sink
 * @property {(plan: number, ids: Int32Array) => void} run
 * @property {(window: Window) => void} clear
 * @property {(src: GPUBuffer, srcByte: number, dst: GPUBuffer, dstByte: number, count: number) => void} copy
 */

/**
 * What only a submit may hold, and a program may not.
 * @typedef {object} Rest
 * @property {(dst: Window, stagingByte: number, count: number, first: boolean) => void} upload `first`: nothing but uploads came before it
 * @property {(program: number) => void} replay
 * @property {(id: number) => void} destroy a buffer or view
 * @property {(program: number) => void} drop
 */

/**
 * Take the records in order.
 * @param {Int32Array} words
 * @param {(id: number) => Window} windowOf
 * @param {Sink} sink
 * @param {Rest | null} rest
 */
export function walk(words, windowOf, sink, rest) {
  let first = true;
  for (let at = 0; at < words.length; ) {
    const code = words[at];
    if (code === UPLOAD && rest) {
      rest.upload(windowOf(words[at + 1]), words[at + 2], words[at + 3], first);
      at += 4;
      continue;
    }
    first = false;
    if (code === REPLAY && rest) {
      rest.replay(words[at + 1]);
      at += 2;
    } else if (code === RUN) {
      const end = at + 3 + words[at + 2];
      sink.run(words[at + 1], words.subarray(at + 3, end));
      at = end;
    } else if (code === CLEAR) {
      sink.clear(windowOf(words[at + 1]));
      at += 2;
    } else if (code === COPY) {
      const [src, dst] = [windowOf(words[at + 1]), windowOf(words[at + 3])];
      sink.copy(src.buffer, src.offset + words[at + 2], dst.buffer, dst.offset + words[at + 4], words[at + 5]);
      at += 6;
    } else if (code === DESTROY && rest) {
      rest.destroy(words[at + 1]);
      at += 2;
    } else if (code === DROP && rest) {
      rest.drop(words[at + 1]);
      at += 2;
    } else {
      throw failure("BackendError", `record ${code} at word ${at} is unknown`);
    }
  }
}
