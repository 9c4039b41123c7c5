// Drawings: bars of time to one scale, and plots over time.

import { axisTime, badge, clockTime, duration, h, number, serverNow, svg } from "./common.js";

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];

function ticks(from, to, count) {
  const step = (STEPS.find((each) => (to - from) / 1000 / each <= count) ?? STEPS.at(-1)) * 1000;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

/**
 * Rows of bars on one clock. A row has a `label` (a node or text), `bars` with start, end, className and text, and may
 * be `strong`. What has no end lasts until now, and is drawn on as time goes by.
 */
export function timeline(rows, { from = null, minimumSeconds = 1 } = {}) {
  const bars = rows.flatMap((row) => row.bars);
  const first = from ?? Math.min(...bars.map((bar) => Date.parse(bar.start)));
  const isLive = bars.some((bar) => !bar.end);
  const lastKnown = Math.max(first, ...bars.map((bar) => Date.parse(bar.end ?? bar.start)));

  const box = h("div", { class: "timeline" });
  const axis = h("div", { class: "axis" });
  const drawn = [];
  for (const row of rows) {
    const track = h("div", { class: "track" });
    for (const bar of row.bars) {
      const element = h("span", { class: `bar ${bar.className}`, tabindex: "0" }, h("span", { class: "tip" }));
      drawn.push({ bar, element });
      track.append(element);
    }
    box.append(h("div", { class: row.strong ? "row strong" : "row" }, h("div", { class: "label" }, row.label), track));
  }
  box.append(h("div", { class: "row" }, h("div", { class: "label" }), axis));

  function draw() {
    const now = Math.max(serverNow(), lastKnown);
    const to = Math.max(isLive ? now : lastKnown, first + minimumSeconds * 1000);
    const share = (instant) => ((instant - first) / (to - first)) * 100;
    for (const { bar, element } of drawn) {
      const [start, end] = [Date.parse(bar.start), bar.end ? Date.parse(bar.end) : now];
      element.style.left = `${share(start)}%`;
      element.style.width = `${Math.max(share(end) - share(start), 0)}%`;
      const told = `${bar.text}: ${duration((end - start) / 1000)}, ${clockTime(start)} to ${bar.end ? clockTime(end) : "now"}`;
      element.setAttribute("aria-label", told);
      element.firstChild.textContent = told;
      element.classList.toggle("right", share(start) > 60);
    }
    axis.replaceChildren(
      ...ticks(first, to, 6).map((at) =>
        h("span", { style: { left: `${share(at)}%` } }, axisTime(at, to - first)),
      ),
    );
  }
  draw();
  if (isLive) {
    const timer = setInterval(() => (box.isConnected ? document.hidden || draw() : clearInterval(timer)), 1000);
  }
  return box;
}

export function legend(entries) {
  return h(
    "p",
    { class: "legend" },
    entries.map(([className, text]) => h("span", {}, h("i", { class: `bar ${className}` }), text)),
  );
}

export const KIND_CLASS = { waiting: "waiting", claimed: "claimed", "backing off": "backing-off" };

/** A bar for a segment as the server tells it. */
export function segmentBar(segment, what = "") {
  const outcome = String(segment.outcome ?? "").toLowerCase();
  const running = segment.kind === "running";
  const name = running ? `${segment.attempt ? `attempt ${segment.attempt}, ` : ""}${outcome}` : segment.kind;
  return {
    start: segment.start,
    end: segment.end,
    className: running ? outcome : KIND_CLASS[segment.kind],
    text: what ? `${what}, ${name}` : name,
  };
}

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [400, 150, 46, 22, 10];

/**
 * A plot over time. `series`: name, className, values (null leaves a gap); `bars` draws them as stacked bars.
 * The numbers are in a table too, for those who cannot see it.
 */
export function plot({ title, starts, series, bars = false, top = null, unit = (value) => number(value) }) {
  const heights = starts.map((_, at) =>
    bars ? series.reduce((sum, each) => sum + (each.values[at] ?? 0), 0) : Math.max(...series.map((each) => each.values[at] ?? 0)),
  );
  const highest = top ?? nice(Math.max(...heights, 0));
  const step = (WIDTH - LEFT) / Math.max(starts.length, 1);
  const x = (at) => LEFT + (at + 0.5) * step;
  const y = (value) => TOP + (1 - value / highest) * (HEIGHT - BOTTOM - TOP);
  const span = Date.parse(starts.at(-1)) - Date.parse(starts[0]);
  const every = Math.max(Math.ceil(starts.length / 4), 1);
  const marks = [
    [0, 0.5, 1].map((share) => [
      svg("line", { x1: LEFT, x2: WIDTH, y1: y(share * highest), y2: y(share * highest), class: "grid" }),
      svg("text", { x: LEFT - 6, y: y(share * highest) + 4, "text-anchor": "end" }, unit(share * highest)),
    ]),
    starts.map((start, at) =>
      at % every ? null : svg("text", { x: x(at), y: HEIGHT - 5, "text-anchor": "middle" }, axisTime(Date.parse(start), span)),
    ),
  ];
  const shapes = bars ? stacked(series, starts.length, x, y, step) : series.map((each) => line(each, x, y));
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title },
    marks,
    shapes,
    starts.map((start, at) => hover(start, at, series, step, unit)),
  );
  return h(
    "figure",
    { class: "plot" },
    h("figcaption", {}, h("strong", {}, title), legend(series.map((each) => [each.className, each.name]))),
    picture,
  );
}

function hover(start, at, series, step, unit) {
  const told = series.filter((each) => each.values[at] !== null).map((each) => `${each.name}: ${unit(each.values[at])}`);
  const area = { x: LEFT + at * step, y: TOP, width: step, height: HEIGHT - BOTTOM - TOP, class: "hover" };
  return svg("rect", area, svg("title", {}, [clockTime(start), ...told].join("\n")));
}

function stacked(series, count, x, y, step) {
  const sums = new Array(count).fill(0);
  return series.flatMap((each) =>
    each.values.map((value, at) => {
      if (!value) return null;
      const [bottom, top] = [y(sums[at]), y((sums[at] += value))];
      const width = Math.max(step * 0.8, 1);
      return svg("rect", { x: x(at) - width / 2, y: top, width, height: bottom - top, class: each.className });
    }),
  );
}

function line({ values, className }, x, y) {
  const points = values.map((value, at) => (value === null ? null : [x(at), y(value)]));
  // Where nothing ended the line goes on to the next point: a gap of a quiet minute says nothing.
  const known = points.filter(Boolean);
  const path = known.map(([left, top], at) => `${at ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`).join("");
  return [
    svg("path", { d: path, class: `line ${className}` }),
    ...known.map(([cx, cy]) => svg("circle", { cx, cy, r: 2, class: className })),
  ];
}

function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value);
}

export function countBar(counts, total) {
  return h(
    "div",
    { class: "counts" },
    h(
      "div",
      { class: "count-bar", role: "img", "aria-label": Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ") },
      Object.entries(counts).map(([state, count]) =>
        h("span", { class: `bar ${state.toLowerCase()}`, style: { width: `${(count / total) * 100}%` } }),
      ),
    ),
    h("p", {}, Object.entries(counts).map(([state, count]) => [badge(state), ` ${number(count)}  `])),
  );
}
