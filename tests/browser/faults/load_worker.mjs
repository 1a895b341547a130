// One of many workers on one GPU: writes numbers of its own and looks at what comes back.

import { requestBridge } from "../../bridge.mjs";

const FLOATS = 4096;
const memory = new Uint8Array(1 << 20);
const words = new Int32Array(memory.buffer);
const floats = new Float32Array(memory.buffer);

/** @param {number} number */
async function work(number) {
  const bridge = await requestBridge({ HEAPU8: memory }, JSON.stringify({ limits: [] }));
  let wrong = 0;
  for (let round = 1; round <= 20; round++) {
    const own = number * 1000 + round;
    floats.fill(own, 1024, 1024 + FLOATS);
    bridge.createBuffer(round, 4 * FLOATS);
    bridge.write(round, 4 * 1024, 4 * FLOATS);
    words[0] = round;
    await bridge.read(round, 0, 1);
    bridge.collect(round, 4 * 8192);
    for (let i = 0; i < FLOATS; i++) if (floats[8192 + i] !== own) wrong++;
  }
  bridge.dispose();
  return { number, wrong };
}

self.addEventListener("message", ({ data }) => {
  work(data).then(
    (found) => self.postMessage(found),
    (error) => self.postMessage({ number: data, error: String(error) }),
  );
});
