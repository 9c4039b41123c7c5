// Bars of time, drawn to one scale.

/** @import { Child } from "./types.d.ts" */
/** @import { RunSegment } from "../payloads.d.ts" */

import { serverNow } from "./clock.js";
import { h } from "./dom.js";
import { axisTime, clockTime, duration } from "./times.js";

/**
 * @typedef {{ start: string, end: string | null, className: string, text: string }} Bar without an end it continues.
 * @typedef {{ label: Child, bars: Bar[], strong?: boolean }} Row
 * @typedef {{ bar: Bar, element: HTMLElement, tip: HTMLElement }} DrawnBar
 * @typedef {{ first: number, to: number, now: number }} Scale
 */

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const MINIMUM_MS = 1000;
const TICKS = 6;
/** @type {Record<string, string>} */
const KIND_CLASS = { waiting: "waiting", claimed: "claimed", "backing off": "backing-off", parked: "parked" };
/** @type {[string, string][]} */
const KINDS = [
  ["waiting", "waiting"],
  ["claimed", "claimed"],
  ["running", "running"],
  ["completed", "completed"],
  ["failed", "failed"],
  ["backing-off", "backing off"],
  ["parked", "parked"],
  ["cancelled", "cancelled"],
];

/**
 * Rows of bars on one time axis. A bar without an end lasts until now and grows.
 *
 * @param {Row[]} rows
 * @param {number | null} from the start of the axis, if not the first bar.
 */
export function timeline(rows, from = null) {
  const bars = rows.flatMap((row) => row.bars);
  const first = from ?? Math.min(...bars.map((bar) => Date.parse(bar.start)));
  const isLive = bars.some((bar) => !bar.end);
  const lastKnown = Math.max(first, ...bars.map((bar) => Date.parse(bar.end ?? bar.start)));

  const axis = h("div", { class: "axis" });
  const box = h("div", { class: "timeline" });
  /** @type {DrawnBar[]} */
  const drawn = [];
  for (const row of rows) {
    const drawnRow = row.bars.map(drawBar);
    drawn.push(...drawnRow);
    const track = h("div", { class: "track" }, drawnRow.map(({ element }) => element));
    box.append(h("div", { class: row.strong ? "row strong" : "row" }, h("div", { class: "label" }, row.label), track));
  }
  box.append(h("div", { class: "row" }, h("div", { class: "label" }), axis));

  function draw() {
    const now = Math.max(serverNow(), lastKnown);
    const scale = { first, now, to: Math.max(isLive ? now : lastKnown, first + MINIMUM_MS) };
    for (const bar of drawn) placeBar(bar, scale);
    axis.replaceChildren(
      ...ticks(scale).map((at) =>
        h("span", { style: { left: `${share(at, scale)}%` } }, axisTime(at, scale.to - first))
      ),
    );
  }
  draw();
  if (isLive) {
    const timer = setInterval(() => (box.isConnected ? document.hidden || draw() : clearInterval(timer)), 1000);
  }
  return box;
}

/**
 * @param {Bar} bar
 * @returns {DrawnBar}
 */
function drawBar(bar) {
  const tip = h("span", { class: "tip" });
  return { bar, tip, element: h("span", { class: `bar ${bar.className}`, tabindex: "0" }, tip) };
}

/**
 * @param {DrawnBar} drawn
 * @param {Scale} scale
 */
function placeBar({ bar, element, tip }, scale) {
  const start = Date.parse(bar.start);
  const end = bar.end ? Date.parse(bar.end) : scale.now;
  const left = share(start, scale);
  element.style.left = `${left}%`;
  element.style.width = `${Math.max(share(end, scale) - left, 0)}%`;
  const period = `${clockTime(start)} to ${bar.end ? clockTime(end) : "now"}`;
  tip.textContent = `${bar.text}: ${duration((end - start) / 1000)}, ${period}`;
  element.setAttribute("aria-label", tip.textContent);
  element.classList.toggle("right", left > 60);
}

/**
 * @param {number} instant
 * @param {Scale} scale
 */
function share(instant, { first, to }) {
  return ((instant - first) / (to - first)) * 100;
}

/** @param {Scale} scale */
function ticks({ first, to }) {
  const step = (STEPS.find((seconds) => (to - first) / 1000 / seconds <= TICKS) ?? 604800) * 1000;
  const found = [];
  for (let at = Math.ceil(first / step) * step; at <= to; at += step) found.push(at);
  return found;
}

/** @param {[className: string, text: string][]} entries */
export function legend(entries) {
  return h(
    "p",
    { class: "legend" },
    entries.map(([className, text]) => h("span", {}, h("i", { class: `bar ${className}` }), text)),
  );
}

/**
 * The legend of bars for segments.
 *
 * @param {[className: string, text: string][]} more
 */
export function segmentLegend(...more) {
  return legend([...KINDS, ...more]);
}

/**
 * A bar for a segment of an answer.
 *
 * @param {RunSegment} segment
 * @param {string | null} what precedes the kind of the segment.
 * @returns {Bar}
 */
export function segmentBar({ kind, start, end, outcome }, what) {
  const name = kind === "running" ? (outcome ?? "").toLowerCase() : kind;
  return { start, end, className: KIND_CLASS[kind] ?? name, text: what ? `${what}, ${name}` : name };
}
