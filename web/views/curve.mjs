// A live loss curve: uPlot on a canvas, in the page's colours, with its course in words for screen readers.

import uPlot from "../vendor/uplot.mjs";

const HEIGHT = 170;

/** @param {HTMLElement} box */
export function createCurve(box) {
  /** @type {[number[], number[]]} */
  let data = [[], []];
  /** @type {uPlot | null} */
  let plot = null;

  function draw() {
    plot?.destroy();
    plot = data[0].length > 1 ? new uPlot(options(box), data, box) : null;
  }

  new ResizeObserver(() => plot?.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  return {
    clear() {
      data = [[], []];
      draw();
      box.setAttribute("aria-label", "Loss curve, empty");
    },
    /** @param {[number, number][]} points [step, loss] */
    add(points) {
      if (!points.length) return;
      for (const [step, loss] of points) {
        data[0].push(step);
        data[1].push(loss);
      }
      if (plot) plot.setData(data);
      else draw();
      const [first, last] = [data[1][0], data[1][data[1].length - 1]];
      box.setAttribute("aria-label", `Loss curve: from ${first.toFixed(2)} to ${last.toFixed(2)} in ${data[0].length} steps`);
    },
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
    series: [{}, { stroke: colour("--accent"), width: 2, points: { show: false } }],
  };
}
