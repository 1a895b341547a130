// A page in TypeScript, as a user of the package would write it; tests/tools/test_release.py compiles it.
import { Evermind, EvermindError, load } from "evermind-web";
import type { Progress, SavedItem, TrainingResult } from "evermind-web";

export async function story(text: string, signal: AbortSignal): Promise<string> {
  const em: Evermind = await load({ base: "/evermind/", backend: "webgpu", onProgress: ({ loaded }) => use(loaded) });
  const result: TrainingResult = await em.train(text, {
    length: "quick",
    signal,
    onProgress: (progress: Progress) => use(progress.tokensPerSecond ?? 0),
  });
  use(result.lossAfter);
  await em.personalize(new Blob([text]), { name: "me", steps: 10 });
  let written = "";
  for await (const piece of em.generate("Once", { temperature: 0, adapter: null })) written += piece;
  for await (const { side, text } of em.compare("Once")) written += side === "base" ? text : "";
  const saved: SavedItem[] = await em.list();
  try {
    await em.load(saved[0]!.name);
  } catch (error) {
    if (error instanceof EvermindError) return error.message;
  }
  return written + em.info.version;
}

function use(_: number): void {}

// What the types have to refuse.
export async function mistakes(em: Evermind): Promise<void> {
  // @ts-expect-error a length that does not exist
  await em.train("text", { length: "endless" });
  // @ts-expect-error the adapter needs a name
  await em.personalize("text", {});
  // @ts-expect-error the pieces are strings
  for await (const piece of em.generate("Once")) use(piece);
}

// What an event carries, by its name; a file that was exported goes on as a File.
export async function follow(em: Evermind): Promise<File> {
  em.addEventListener("change", (event) => console.log(event.detail.mix));
  em.addEventListener("progress", ({ detail }) => console.log(detail.step / detail.totalSteps));
  em.addEventListener("lost", ({ detail }) => console.log(detail.trim()));
  em.addEventListener("abort", () => {}); // any other event, as on each EventTarget
  // @ts-expect-error: no number
  em.addEventListener("lost", ({ detail }) => detail.toFixed());
  const { bytes, filename } = await em.exportFile("mine");
  return new File([bytes], filename);
}
