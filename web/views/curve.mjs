// A live loss curve: uPlot on a canvas, in the page's colours, with its course in words for screen readers.
// Training is a line, held-out text a dashed one with points.

import uPlot from "../vendor/uplot.mjs";

const HEIGHT = 170;

/** @param {HTMLElement} box */
export function createCurve(box) {
  /** @type {Map<number, {loss?: number, heldOut?: number}>} */
  let known = new Map();
  /** @type {uPlot | null} */
  let plot = null;
  let drawn = 0;

  /** @returns {[number[], (number | null)[], (number | null)[]]} */
  function columns() {
    const steps = [...known.keys()].sort((a, b) => a - b);
    const rows = steps.map((step) => known.get(step) ?? {});
    return [steps, rows.map((row) => row.loss ?? null), rows.map((row) => row.heldOut ?? null)];
  }

  function draw() {
    cancelAnimationFrame(drawn);
    drawn = requestAnimationFrame(() => {
      if (known.size < 2 || !box.clientWidth) {
        plot?.destroy();
        plot = null;
      } else if (plot) plot.setData(columns());
      else plot = new uPlot(options(box), columns(), box);
    });
  }

  function restyle() {
    plot?.destroy();
    plot = null;
    draw();
  }

  new ResizeObserver(() => (plot ? plot.setSize({ width: box.clientWidth, height: HEIGHT }) : draw())).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);

  return {
    clear() {
      known = new Map();
      restyle();
      box.setAttribute("aria-label", "Loss curve, empty");
    },
    /** @param {number[][]} points [step, loss, …] @param {number[][]} [heldOut] [step, loss] */
    add(points, heldOut = []) {
      if (!points.length && !heldOut.length) return;
      for (const [step, loss] of points) known.set(step, { ...known.get(step), loss });
      for (const [step, loss] of heldOut) known.set(step, { ...known.get(step), heldOut: loss });
      draw();
      const losses = [...known.values()].flatMap(({ loss }) => loss ?? []);
      if (!losses.length) return;
      const [first, last] = [losses[0], losses[losses.length - 1]];
      box.setAttribute("aria-label", `Loss curve: from ${first.toFixed(2)} to ${last.toFixed(2)} in ${losses.length} steps`);
    },
    /** The picture, or null while there is none. */
    canvas: () => plot?.ctx.canvas ?? null,
  };
}

/** @param {HTMLElement} box @returns {uPlot.Options} */
function options(box) {
  const style = getComputedStyle(box);
  /** @param {string} name */
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: box.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false } },
    axes: [
      { ...axis, size: 28, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000] },
      { ...axis, size: 40, space: 34, values: (_plot, values) => values.map((v) => v.toFixed(1)) },
    ],
    series: [
      {},
      { stroke: colour("--accent"), width: 2, points: { show: false }, spanGaps: true },
      { stroke: colour("--warm"), width: 2, dash: [5, 4], points: { show: true, size: 5 }, spanGaps: true },
    ],
  };
}
