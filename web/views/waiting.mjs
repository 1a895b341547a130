// What takes longer than people notice shows that it goes on: a bar at the top of the window, wherever they are.

const NOTICED_MS = 150;
/** A pause between two calls of one action: the bar stays. */
const BETWEEN_MS = 50;
let running = 0;
/** When the first of the calls that follow one another began; 0 between actions. */
let since = 0;
let timer = 0;
let shown = false;
/** @type {(on: boolean) => void} */
let show = () => {};

/** @param {(on: boolean) => void} listener called when a wait becomes noticeable, and when it has ended */
export function onWaiting(listener) {
  show = listener;
}

/** @param {boolean} on */
function change(on) {
  if (!on) since = 0;
  if (on !== shown) show((shown = on));
}

/** Do something that may take its time. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
export async function waiting(work) {
  running += 1;
  since ||= performance.now();
  clearTimeout(timer);
  if (!shown) timer = setTimeout(() => change(true), since + NOTICED_MS - performance.now());
  try {
    return await work();
  } finally {
    running -= 1;
    if (!running) {
      clearTimeout(timer);
      timer = setTimeout(() => change(false), BETWEEN_MS);
    }
  }
}
