// Assembles simd/kernels.wat with wabt and prints JSON: name → module in base64. `node simd/assemble.mjs`
//
// "strict" multiplies and adds, the same bits on every machine; "relaxed" may keep the product exact (fused
// multiply-add) where the processor can, for machines that have relaxed SIMD.

import { readFileSync } from "node:fs";
import initWabt from "wabt";

/**
 * The products of one depth in the tile: eight accumulators, two vectors of B, four elements of A.
 * @param {number} depth @param {boolean} relaxed @returns {string}
 */
function step(depth, relaxed) {
  const lines = [0, 1].map((j) => `(local.set $b${j} (v128.load offset=${32 * depth + 16 * j} (local.get $b)))`);
  for (const i of [0, 1, 2, 3]) {
    lines.push(`(local.set $av (v128.load32_splat offset=${16 * depth + 4 * i} (local.get $a)))`);
    for (const j of [0, 1]) {
      const [a, b, c] = ["$av", `$b${j}`, `$c${i}${j}`].map((name) => `(local.get ${name})`);
      const sum = relaxed ? `(f32x4.relaxed_madd ${a} ${b} ${c})` : `(f32x4.add ${c} (f32x4.mul ${a} ${b}))`;
      lines.push(`(local.set $c${i}${j} ${sum})`);
    }
  }
  return lines.join("\n");
}

/**
 * Emscripten loads a module into its own memory if the first section says that it is a library; ours needs nothing.
 * @param {Uint8Array} module @returns {Buffer}
 */
function asLibrary(module) {
  const [memorySize, memoryAlign, tableSize, tableAlign] = [0, 0, 0, 0];
  const payload = [8, ...Buffer.from("dylink.0"), 1, 4, memorySize, memoryAlign, tableSize, tableAlign];
  return Buffer.concat([module.subarray(0, 8), Buffer.from([0, payload.length, ...payload]), module.subarray(8)]);
}

const source = readFileSync(new URL("./kernels.wat", import.meta.url), "utf8");
const wabt = await initWabt();
/** @type {Record<string, string>} */
const modules = {};
for (const name of ["strict", "relaxed"]) {
  const relaxed = name === "relaxed";
  const text = source.replace(/;;#step (\d)/g, (_, depth) => step(Number(depth), relaxed));
  const module = wabt.parseWat("kernels.wat", text, { simd: true, relaxed_simd: relaxed });
  module.resolveNames();
  module.validate();
  modules[name] = asLibrary(module.toBinary({}).buffer).toString("base64");
  module.destroy();
}
process.stdout.write(JSON.stringify(modules, null, 0));
