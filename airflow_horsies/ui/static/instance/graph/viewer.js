// The graph of a workflow in its frame: folded and unfolded, zoomed, scrolled.

/** @import { WorkflowNode } from "../../payloads.d.ts" */
/** @import { Item, Tree } from "./scene.js" */

import { h } from "../../common/dom.js";
import { Drawing } from "./drawing.js";
import { layOut } from "./layout.js";
import { keyOf } from "./scene.js";

const STEP = 1.25;
const SMALLEST = 0.15;
const LARGEST = 2;
// Smaller text cannot be read: a large graph is scrolled.
const SMALLEST_FIT = 0.5;

export class Viewer {
  /** @type {Set<string>} */
  #open = new Set();
  /** @type {Tree | null} */
  #tree = null;
  #shape = "";
  /** @type {number | null} null fits the graph into the frame. */
  #scale = null;
  #frame = h("div", { class: "graph-frame", id: "graph" });
  #drawing;

  /** @param {(node: WorkflowNode) => void} select */
  constructor(select) {
    this.#drawing = new Drawing({ select: ({ node }) => select(node), fold: (item) => this.#fold(item) });
    this.#frame.append(this.#drawing.element);
    const buttons = [
      button("zoom-out", "−", "Zoom out", () => this.#zoom(this.#now() / STEP)),
      button("zoom-in", "+", "Zoom in", () => this.#zoom(this.#now() * STEP)),
      button("zoom-fit", "Fit", "Fit the graph into its frame", () => this.#zoom(null)),
      button("zoom-full", "100 %", "Original size", () => this.#zoom(1)),
    ];
    this.tools = h("span", { class: "zoom", role: "group", "aria-label": "Zoom" }, buttons);
    this.element = this.#frame;
    new ResizeObserver(() => this.#size()).observe(this.#frame);
  }

  /**
   * @param {Tree} tree
   * @param {string | null} selected
   */
  show(tree, selected) {
    this.#tree = tree;
    this.#drawing.selected = selected;
    const scene = tree.scene(this.#open);
    const items = allItems(scene.items);
    const shape = JSON.stringify([
      items.map(({ key, kind, canFold, inner }) => [key, kind, canFold, !inner]),
      edges(scene),
    ]);
    if (shape === this.#shape) {
      this.#drawing.refresh(items);
      return;
    }
    this.#shape = shape;
    this.#drawing.draw(layOut(scene));
    this.#size();
  }

  /**
   * Unfolds what is around a node, and scrolls to it.
   *
   * @param {WorkflowNode} node
   */
  reveal(node) {
    for (const key of this.#tree?.around(node) ?? []) this.#open.add(key);
    if (this.#tree) this.show(this.#tree, keyOf(node));
    this.#drawing.reveal(keyOf(node));
  }

  /** @param {Item} item */
  #fold({ key }) {
    if (!this.#open.delete(key)) this.#open.add(key);
    if (this.#tree) this.show(this.#tree, null);
    this.#drawing.focus(key);
  }

  #now() {
    return this.#scale ?? this.#fitting();
  }

  #fitting() {
    const { width, height } = this.#drawing.size ?? { width: 1, height: 1 };
    const fit = Math.min(this.#frame.clientWidth / width, maxHeight() / height, 1);
    return Math.max(fit, this.#scale === null && this.#fits ? SMALLEST : SMALLEST_FIT);
  }

  #fits = false;

  /** @param {number | null} scale null fits all into the frame. */
  #zoom(scale) {
    this.#fits = scale === null;
    this.#scale = scale === null ? null : Math.min(Math.max(scale, SMALLEST), LARGEST);
    this.#size();
  }

  #size() {
    if (this.#frame.clientWidth) this.#drawing.scale = this.#now();
  }
}

function maxHeight() {
  return Math.max(260, Math.min(620, globalThis.innerHeight * 0.7));
}

/**
 * @param {Item[]} items
 * @returns {Item[]}
 */
function allItems(items) {
  return items.flatMap((item) => [item, ...(item.inner ? allItems(item.inner.items) : [])]);
}

/**
 * @param {import("./scene.js").Scene} scene
 * @returns {unknown}
 */
function edges({ edges: own, items }) {
  return [own, items.map(({ inner }) => (inner ? edges(inner) : null))];
}

/**
 * @param {string} id
 * @param {string} text
 * @param {string} label
 * @param {() => void} onclick
 */
function button(id, text, label, onclick) {
  return h("button", { type: "button", class: "small", id, title: label, "aria-label": label, onclick }, text);
}
