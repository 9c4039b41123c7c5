// Plots over time.

import { h, svg } from "./dom.js";
import { number } from "./text.js";
import { legend } from "./timeline.js";
import { axisTime, clockTime } from "./times.js";

/**
 * @typedef {{ name: string, className: string, values: (number | null)[] }} Series null leaves a gap.
 * @typedef {{ x: (at: number) => number, y: (value: number) => number, step: number }} Axes
 */

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [400, 150, 46, 22, 10];

/**
 * A plot over time.
 *
 * @param {object} what
 * @param {string} what.title
 * @param {string[]} what.starts
 * @param {Series[]} what.series
 * @param {boolean} [what.bars] draws the series as stacked bars.
 * @param {number | null} [what.top] the highest value, if not that of the data.
 * @param {(value: number) => string} [what.unit]
 */
export function plot({ title, starts, series, bars = false, top = null, unit = number }) {
  const highest = top ?? nice(Math.max(...starts.map((_, at) => heightAt(series, at, bars)), 0));
  const step = (WIDTH - LEFT) / Math.max(starts.length, 1);
  const axes = {
    x: (/** @type {number} */ at) => LEFT + (at + 0.5) * step,
    y: (/** @type {number} */ value) => TOP + (1 - value / highest) * (HEIGHT - BOTTOM - TOP),
    step,
  };
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title },
    [0, 0.5, 1].map((share) => gridLine(share * highest, axes, unit)),
    timeMarks(starts, axes),
    bars ? stacked(series, starts.length, axes) : series.map((entry) => line(entry, axes)),
    starts.map((start, at) => hover(start, at, series, axes, unit)),
  );
  return h(
    "figure",
    { class: "plot" },
    h("figcaption", {}, h("strong", {}, title), legend(series.map((entry) => [entry.className, entry.name]))),
    picture,
  );
}

/**
 * @param {Series[]} series
 * @param {number} at
 * @param {boolean} bars
 */
function heightAt(series, at, bars) {
  const values = series.map((entry) => entry.values[at] ?? 0);
  return bars ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values);
}

/**
 * @param {number} value
 * @param {Axes} axes
 * @param {(value: number) => string} unit
 */
function gridLine(value, { y }, unit) {
  return [
    svg("line", { x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, unit(value)),
  ];
}

/**
 * @param {string[]} starts
 * @param {Axes} axes
 */
function timeMarks(starts, { x }) {
  const instants = starts.map((start) => Date.parse(start));
  const span = (instants.at(-1) ?? 0) - instants[0];
  const every = Math.max(Math.ceil(starts.length / 4), 1);
  return instants.map((instant, at) =>
    at % every ? null : svg("text", { x: x(at), y: HEIGHT - 5, "text-anchor": "middle" }, axisTime(instant, span))
  );
}

/**
 * @param {string} start
 * @param {number} at
 * @param {Series[]} series
 * @param {Axes} axes
 * @param {(value: number) => string} unit
 */
function hover(start, at, series, { step }, unit) {
  const lines = series.flatMap(({ name, values }) => {
    const value = values[at];
    return value === null ? [] : [`${name}: ${unit(value)}`];
  });
  const area = { x: LEFT + at * step, y: TOP, width: step, height: HEIGHT - BOTTOM - TOP, class: "hover" };
  return svg("rect", area, svg("title", {}, [clockTime(start), ...lines].join("\n")));
}

/**
 * @param {Series[]} series
 * @param {number} count
 * @param {Axes} axes
 */
function stacked(series, count, { x, y, step }) {
  /** @type {number[]} */
  const sums = new Array(count).fill(0);
  const width = Math.max(step * 0.8, 1);
  return series.flatMap((entry) =>
    entry.values.map((value, at) => {
      if (!value) return null;
      const bottom = y(sums[at]);
      sums[at] += value;
      const top = y(sums[at]);
      return svg("rect", { x: x(at) - width / 2, y: top, width, height: bottom - top, class: entry.className });
    })
  );
}

/**
 * Where nothing ended, the line continues to the next point: a gap would carry no information.
 *
 * @param {Series} series
 * @param {Axes} axes
 */
function line({ values, className }, { x, y }) {
  const known = values.flatMap((value, at) => (value === null ? [] : [{ cx: x(at), cy: y(value) }]));
  const path = known.map(({ cx, cy }, at) => `${at ? "L" : "M"}${cx.toFixed(1)} ${cy.toFixed(1)}`).join("");
  return [
    svg("path", { d: path, class: `line ${className}` }),
    ...known.map((point) => svg("circle", { ...point, r: 2, class: className })),
  ];
}

/** @param {number} value */
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= value) ?? value;
}
