// The script of embed.html: it needs the built files one folder above, and no other library.
import { load } from "../evermind.mjs";

const [box, learn, go, says] = ["box", "learn", "go", "says"].map((id) => document.getElementById(id));
const onProgress = (p) => (says.textContent = p.totalSteps ? `${p.phase} ${p.step}/${p.totalSteps}` : p.text);
let em;

const doing = (work) => async () => {
  learn.disabled = go.disabled = true;
  await work().catch((error) => (says.textContent = error.message));
  learn.disabled = go.disabled = !em;
};
learn.onclick = doing(async () => {
  const { lossBefore, lossAfter } = await em.personalize(box.value, { name: "me", length: "quick", onProgress });
  await em.save("base"); // kept in this browser, with the adapter "me"
  says.textContent = `Learned: your words cost it ${lossBefore.toFixed(2)} before, ${lossAfter.toFixed(2)} after`;
});
go.onclick = doing(async () => {
  for await (const piece of em.generate(box.value, { maxNewTokens: 40 })) box.value += piece;
});
await doing(async () => {
  em = await load({ onProgress, store: "embed-example" });
  if ((await em.list()).some(({ name }) => name === "me")) await em.load("me");
  else await em.train(await (await fetch("../samples/alice.txt")).text(), { length: "quick", onProgress });
  says.textContent = em.info.adapters.length ? "It remembers how you write" : "Ready to learn";
})();
