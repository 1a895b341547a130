// The TypeScript reference engine: JavaScript on the CPU.

import { EvermindLM, EvermindLMTrainer } from "@seanhogg/builderforce-memory-engine";
import { data, median, shape, timed } from "./common.mjs";

/** @param {any} spec */
function model({ size = "S" }) {
  const { V, D, L, K, H, E, k } = shape(size);
  return new EvermindLM({ vocabSize: V, dModel: D, numLayers: L, convKernel: K, hiddenDim: H, numExperts: E, topK: k, seed: 1 });
}

/** @param {any} spec */
export async function train(spec) {
  const { batch = 8, seqLen = 64, size = "S" } = spec;
  const lm = model(spec);
  const { tokens } = data(shape(size).V, batch, seqLen);
  const sequences = Array.from({ length: batch }, (_, b) => Array.from(tokens.subarray(b * seqLen, (b + 1) * seqLen)));
  const trainer = new EvermindLMTrainer(lm, { lr: 1e-3, epochs: 1, accumSteps: batch });
  const row = await timed({ warm: 1, ...spec }, () => trainer.fit(sequences)[0], (loss) => loss);
  return { peer: "reference engine", ...row };
}

/** @param {any} spec */
export async function decode(spec) {
  const { size = "S", context = 10, tokens = 8 } = spec;
  const lm = model(spec);
  const prompt = Array.from({ length: context }, (_, i) => i % shape(size).V);
  const rates = [];
  for (let i = 0; i < 3; i += 1) {
    const started = performance.now();
    lm.generate(prompt, { maxNewTokens: tokens, temperature: 1, seed: 5 });
    rates.push((1000 * tokens) / (performance.now() - started));
  }
  return { peer: "reference engine", size, context, tokens, tok_s: median(rates) };
}
