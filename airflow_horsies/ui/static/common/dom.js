// Creates elements, and updates places of a page only if their content changes.

/** @import { Attributes, Child } from "./types.d.ts" */

export const page = /** @type {HTMLElement} */ (document.getElementById("page"));

/**
 * Creates an element. Text is always set as text, so output of a task never becomes markup.
 *
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice("on".length), value);
    else if (typeof value === "object") Object.assign(element.style, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

/**
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {Child[]} children
 */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...flat(children));
  return element;
}

/**
 * @param {Child} child
 * @returns {(Node | string)[]}
 */
function flat(child) {
  if (Array.isArray(child)) return child.flatMap(flat);
  if (child === null || child === undefined || child === false) return [];
  return [child instanceof Node ? child : String(child)];
}

/** @type {WeakMap<Element, string>} */
const shownKeys = new WeakMap();

/**
 * Replaces the content of a place if its key has changed.
 *
 * @param {Element} place
 * @param {unknown} key
 * @param {() => Child} make
 */
export function update(place, key, make) {
  const text = JSON.stringify(key);
  if (shownKeys.get(place) === text) return;
  shownKeys.set(place, text);
  const active = document.activeElement;
  const focused = active instanceof HTMLElement && place.contains(active) ? active.dataset.focus : null;
  place.replaceChildren(...flat(make()));
  if (!focused) return;
  const again = place.querySelector(`[data-focus="${CSS.escape(focused)}"]`);
  if (again instanceof HTMLElement) again.focus();
}

/**
 * Makes the next update replace the content in any case.
 *
 * @param {Element} place
 */
export function forget(place) {
  shownKeys.delete(place);
}

/**
 * @param {Child[]} columns
 * @param {Child} rows
 * @param {Attributes} attributes
 */
export function table(columns, rows, attributes = {}) {
  const head = h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)));
  return h("div", { class: "scroll" }, h("table", attributes, h("thead", {}, head), h("tbody", {}, rows)));
}
