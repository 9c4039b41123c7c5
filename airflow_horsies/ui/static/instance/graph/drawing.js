// Draws a laid out workflow as SVG; later data changes only what is different.

/** @import { Box, Layout, Line } from "./layout.js" */
/** @import { Item } from "./scene.js" */

import { svg } from "../../common/dom.js";
import { HEADER } from "./layout.js";
import { moveFrom } from "./moving.js";
import { countStates, describeCounts, describeNode, labelOf, stateClass, stateOf } from "./words.js";

const CHAR = 7.5;
const SMALL_CHAR = 6.4;
const MARGIN = 12;

/**
 * @typedef {object} Hands what the keys and the mouse do.
 * @property {(item: Item) => void} select
 * @property {(item: Item) => void} fold
 */

export class Drawing {
  /** @type {Map<string, { group: SVGElement, box: Box, shown: string }>} */
  #drawn = new Map();
  /** @type {{ path: SVGElement, line: Line }[]} */
  #lines = [];
  /** @type {string | null} */
  #selected = null;
  /** @type {string | null} */
  #current = null;
  #hands;
  #root = svg("svg", { class: "graph", role: "group", "aria-label": "Graph of the workflow" });

  /** @param {Hands} hands */
  constructor(hands) {
    this.#hands = hands;
    this.#root.addEventListener("keydown", (event) => this.#press(/** @type {KeyboardEvent} */ (event)));
  }

  get element() {
    return this.#root;
  }

  /** @param {Layout} layout */
  draw({ width, height, boxes, lines }) {
    const focused = this.#focusedKey();
    this.size = { width: width + 2 * MARGIN, height: height + 2 * MARGIN };
    this.#root.setAttribute("viewBox", `${-MARGIN} ${-MARGIN} ${this.size.width} ${this.size.height}`);
    this.#lines = lines.map((line) => ({ line, path: svg("path", { class: "edge", d: curve(line.points) }) }));
    this.#drawn = new Map(
      boxes.map((box) => [box.item.key, { box, shown: "", group: this.#group(box) }]),
    );
    const frames = boxes.filter((box) => box.item.inner);
    const others = boxes.filter((box) => !box.item.inner);
    const groups = (/** @type {Box[]} */ some) => some.map((box) => this.#drawn.get(box.item.key)?.group ?? null);
    this.#root.replaceChildren(
      .../** @type {SVGElement[]} */ (groups(frames)),
      ...this.#lines.map(({ path }) => path),
      .../** @type {SVGElement[]} */ (groups(others)),
    );
    if (!this.#drawn.has(this.#current ?? "")) this.#current = boxes[0]?.item.key ?? null;
    this.refresh(boxes.map((box) => box.item));
    if (focused) this.focus(focused);
  }

  /** @param {Item[]} items as they are now, at the places where they were. */
  refresh(items) {
    for (const item of items) {
      const drawn = this.#drawn.get(item.key);
      if (!drawn) continue;
      drawn.box = { ...drawn.box, item };
      const state = stateOf(item);
      const isSelected = item.key === this.#selected;
      const label = labelOf(item);
      const shown = JSON.stringify([state, label, describeNode(item.node), countStates(item.members), isSelected]);
      if (shown === drawn.shown) continue;
      drawn.shown = shown;
      drawn.group.setAttribute("class", `node ${item.kind} ${stateClass(state)}${item.inner ? " open" : ""}`);
      drawn.group.setAttribute("aria-label", label);
      drawn.group.setAttribute("aria-pressed", String(isSelected));
      if (item.canFold) drawn.group.setAttribute("aria-expanded", String(item.inner !== null));
      drawn.group.replaceChildren(...paint(drawn.box));
    }
    for (const [key, { group }] of this.#drawn) group.setAttribute("tabindex", key === this.#current ? "0" : "-1");
    for (const { line, path } of this.#lines) {
      const isNear = line.from === this.#selected || line.to === this.#selected;
      path.setAttribute("class", isNear ? "edge near" : "edge");
    }
  }

  /** @param {string | null} key */
  set selected(key) {
    this.#selected = key;
    if (key && this.#drawn.has(key)) this.#current = key;
  }

  /** @param {number} scale */
  set scale(scale) {
    this.#root.setAttribute("width", String((this.size?.width ?? 0) * scale));
    this.#root.setAttribute("height", String((this.size?.height ?? 0) * scale));
  }

  /** @param {string} key */
  focus(key) {
    const drawn = this.#drawn.get(key);
    if (!drawn) return;
    this.#current = key;
    for (const [each, { group }] of this.#drawn) group.setAttribute("tabindex", each === key ? "0" : "-1");
    drawn.group.focus({ preventScroll: true });
    this.reveal(key);
  }

  /** @param {string} key */
  reveal(key) {
    this.#drawn.get(key)?.group.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  #focusedKey() {
    const active = document.activeElement;
    return [...this.#drawn].find(([, { group }]) => group === active)?.[0] ?? null;
  }

  /** @param {Box} box */
  #group({ item: { key }, x, y }) {
    const group = svg("g", { transform: `translate(${x} ${y})`, role: "button", "data-key": key });
    group.addEventListener("click", (event) => {
      const item = this.#drawn.get(key)?.box.item;
      if (!item) return;
      const onFold = event.target instanceof Element && event.target.closest(".fold");
      this.#current = key;
      if (onFold || item.kind === "group") this.#hands.fold(item);
      else this.#hands.select(item);
    });
    group.addEventListener("dblclick", () => {
      const item = this.#drawn.get(key)?.box.item;
      if (item?.kind === "workflow" && item.canFold) this.#hands.fold(item);
    });
    return group;
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const key = this.#focusedKey();
    const item = key ? this.#drawn.get(key)?.box.item : null;
    if (!key || !item || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      if (item.canFold) this.#hands.fold(item);
      if (item.kind !== "group") this.#hands.select(item);
    } else {
      const boxes = [...this.#drawn.values()].map(({ box }) => box);
      const next = moveFrom(key, event.key, boxes, this.#lines.map(({ line }) => line));
      if (!next) return;
      this.focus(next);
    }
    event.preventDefault();
  }
}

/**
 * @param {Box} box
 * @returns {SVGElement[]}
 */
function paint({ item, width, height }) {
  const frame = svg("rect", { class: "box", width, height, rx: 5 });
  const title = svg("title", {}, `${item.name}\n${describe(item)}`);
  if (item.kind === "tile") {
    const name = svg("text", { class: "name small", x: 12, y: 18 }, fit(item.name, width - 20, SMALL_CHAR));
    return [title, frame, svg("rect", { class: "stripe", width: 5, height, rx: 2 }), name];
  }
  const room = width - 24 - (item.canFold ? 22 : 0);
  const pieces = [
    title,
    frame,
    svg("rect", { class: "stripe", width: 5, height, rx: 2 }),
    svg("text", { class: "name", x: 14, y: 19 }, fit(item.name, room, CHAR)),
  ];
  if (item.canFold) pieces.push(...foldMark(item, width));
  if (item.inner) return pieces;
  pieces.push(svg("text", { class: "quiet", x: 14, y: 36 }, fit(describe(item), width - 24, SMALL_CHAR)));
  if (item.members.length) pieces.push(...countBar(item, width, height));
  return pieces;
}

/** @param {Item} item */
function describe({ kind, node, members }) {
  const counts = describeCounts(countStates(members));
  if (kind === "group") return counts;
  return members.length ? `${describeNode(node)} · ${counts}` : describeNode(node);
}

/**
 * @param {Item} item
 * @param {number} width
 */
function foldMark({ inner }, width) {
  return [
    svg(
      "g",
      { class: "fold", transform: `translate(${width - 26} 4)` },
      svg("rect", { width: 22, height: HEADER - 8, rx: 4 }),
      svg("text", { x: 11, y: 15, "text-anchor": "middle" }, inner ? "−" : "+"),
    ),
  ];
}

/**
 * @param {Item} item
 * @param {number} width
 * @param {number} height
 */
function countBar({ members }, width, height) {
  const whole = width - 28;
  let x = 14;
  return countStates(members).reverse().map(([state, count]) => {
    const part = (whole * count) / members.length;
    const rect = svg("rect", { class: `count ${stateClass(state)}`, x, y: height - 14, width: part, height: 5 });
    x += part;
    return rect;
  });
}

/**
 * @param {string} text
 * @param {number} room
 * @param {number} char
 */
function fit(text, room, char) {
  const most = Math.floor(room / char);
  return text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`;
}

/** @param {[number, number][]} points */
function curve([first, ...others]) {
  let [x, y] = first;
  let path = `M${x} ${y}`;
  for (const [toX, toY] of others) {
    const half = (toX - x) / 2;
    path += toY === y ? `H${toX}` : `C${x + half} ${y} ${toX - half} ${toY} ${toX} ${toY}`;
    [x, y] = [toX, toY];
  }
  return path;
}
