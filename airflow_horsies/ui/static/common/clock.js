// The server's time, and text that changes with it.

/** @import { Attributes } from "./types.d.ts" */

import { h } from "./dom.js";
import { duration } from "./times.js";

// A browser's clock may be wrong, so the server's time in each response is used.
let skew = 0;

/** @param {string} now */
export function setServerTime(now) {
  skew = Date.parse(now) - Date.now();
}

export function serverNow() {
  return Date.now() + skew;
}

/** @type {WeakMap<Element, (now: number) => string>} */
const writers = new WeakMap();

/**
 * Text that changes with the clock.
 *
 * @param {(now: number) => string} write
 * @param {Attributes} attributes
 */
export function ticking(write, attributes = {}) {
  const element = h("span", { ...attributes, class: `ticking ${attributes.class ?? ""}` }, write(serverNow()));
  writers.set(element, write);
  return element;
}

/**
 * How long ago an instant is.
 *
 * @param {string} instant
 * @param {string} ending
 */
export function since(instant, ending = "") {
  return ticking((now) => `${duration(Math.max(now - Date.parse(instant), 0) / 1000)}${ending}`);
}

setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll(".ticking")) {
    element.textContent = writers.get(element)?.(serverNow()) ?? element.textContent;
  }
}, 1000);
