// Where to draw the items of a scene: in columns from left to right, each item right of what it waits for.

/** @import { Item, Scene } from "./scene.js" */

/**
 * @typedef {object} Box the place of an item.
 * @property {Item} item
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} height
 */

/** @typedef {{ from: string, to: string, points: [number, number][] }} Line */
/** @typedef {{ width: number, height: number, boxes: Box[], lines: Line[] }} Layout outer boxes come first. */

/**
 * @typedef {object} Cell an item in its column, or the place where a line passes a column.
 * @property {Item | null} item
 * @property {number} layer
 * @property {number} width
 * @property {number} height
 * @property {number} y its middle.
 * @property {Cell[]} before
 * @property {Cell[]} after
 * @property {Layout | null} inner
 */

const SIZES = { task: [190, 46], workflow: [190, 60], group: [190, 60], tile: [150, 28] };
export const HEADER = 28;
const PAD = 14;
const GAP_X = 44;
const GAP_Y = 14;
const TILE_GAP = 6;
const PASSAGE = 6;
const SWEEPS = 8;

/**
 * @param {Scene} scene
 * @returns {Layout}
 */
export function layOut(scene) {
  return scene.isGrid ? layGrid(scene) : layColumns(scene);
}

/**
 * @param {Scene} scene
 * @returns {Layout}
 */
function layGrid({ items }) {
  const [width, height] = SIZES.tile;
  const across = Math.max(1, Math.ceil(Math.sqrt((items.length * height) / width)));
  const boxes = items.map((item, at) => ({
    item,
    x: (at % across) * (width + TILE_GAP),
    y: Math.floor(at / across) * (height + TILE_GAP),
    width,
    height,
  }));
  const down = Math.ceil(items.length / across);
  return {
    width: across * (width + TILE_GAP) - TILE_GAP,
    height: down * (height + TILE_GAP) - TILE_GAP,
    boxes,
    lines: [],
  };
}

/**
 * @param {Scene} scene
 * @returns {Layout}
 */
function layColumns(scene) {
  const cells = new Map(scene.items.map((item) => [item.key, makeCell(item)]));
  const edges = scene.edges.map(([from, to]) => [cells.get(from), cells.get(to)]).filter(([from, to]) => from && to);
  const links = /** @type {[Cell, Cell][]} */ (edges);
  assignLayers([...cells.values()], links);
  /** @type {Cell[][]} */
  const layers = [];
  for (const cell of cells.values()) (layers[cell.layer] ??= []).push(cell);
  const chains = links.map(([from, to]) => link(from, to, layers));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) sort(layers, sweep % 2 === 0);
  const height = place(layers);
  const xs = columns(layers);
  return {
    width: xs.width,
    height,
    boxes: [...cells.values()].flatMap((cell) => boxesOf(cell, xs.starts[cell.layer])),
    lines: [
      ...chains.map((chain) => lineOf(chain, xs.starts, xs.widths)),
      ...[...cells.values()].flatMap((cell) => innerLines(cell, xs.starts[cell.layer])),
    ],
  };
}

/**
 * @param {Item} item
 * @returns {Cell}
 */
function makeCell(item) {
  const inner = item.inner ? layOut(item.inner) : null;
  const [width, height] = SIZES[item.kind];
  return {
    item,
    layer: 0,
    width: inner ? Math.max(inner.width + 2 * PAD, width) : width,
    height: inner ? inner.height + HEADER + PAD : height,
    y: 0,
    before: [],
    after: [],
    inner,
  };
}

/**
 * Each right of all that it waits for.
 *
 * @param {Cell[]} cells
 * @param {[Cell, Cell][]} links
 */
function assignLayers(cells, links) {
  /** @type {Map<Cell, Cell[]>} */
  const after = new Map(cells.map((cell) => [cell, []]));
  const waits = new Map(cells.map((cell) => [cell, 0]));
  for (const [from, to] of links) {
    after.get(from)?.push(to);
    waits.set(to, (waits.get(to) ?? 0) + 1);
  }
  const ready = cells.filter((cell) => !waits.get(cell));
  for (let cell = ready.shift(); cell; cell = ready.shift()) {
    for (const next of after.get(cell) ?? []) {
      next.layer = Math.max(next.layer, cell.layer + 1);
      const left = (waits.get(next) ?? 1) - 1;
      waits.set(next, left);
      if (!left) ready.push(next);
    }
  }
}

/**
 * Links two cells through the columns between them; returns all on the way.
 *
 * @param {Cell} from
 * @param {Cell} to
 * @param {Cell[][]} layers
 */
function link(from, to, layers) {
  const chain = [from];
  for (let layer = from.layer + 1; layer < to.layer; layer += 1) {
    /** @type {Cell} */
    const passage = { item: null, layer, width: 0, height: PASSAGE, y: 0, before: [], after: [], inner: null };
    layers[layer].push(passage);
    chain.push(passage);
  }
  chain.push(to);
  for (let at = 1; at < chain.length; at += 1) {
    chain[at].before.push(chain[at - 1]);
    chain[at - 1].after.push(chain[at]);
  }
  return chain;
}

/**
 * Sorts each column by the places of the neighbours in the column before, or after.
 *
 * @param {Cell[][]} layers
 * @param {boolean} forwards
 */
function sort(layers, forwards) {
  for (const layer of layers) layer.forEach((cell, at) => (cell.y = at));
  for (const layer of forwards ? layers : [...layers].reverse()) {
    const wanted = new Map(layer.map((cell) => [cell, mean(forwards ? cell.before : cell.after) ?? cell.y]));
    layer.sort((one, other) => (wanted.get(one) ?? 0) - (wanted.get(other) ?? 0));
    layer.forEach((cell, at) => (cell.y = at));
  }
}

/** @param {Cell[]} cells */
function mean(cells) {
  return cells.length ? cells.reduce((sum, { y }) => sum + y, 0) / cells.length : null;
}

/**
 * The heights in all columns: each cell as near to its neighbours as the order allows. Returns the height of all.
 *
 * @param {Cell[][]} layers
 */
function place(layers) {
  for (const layer of layers) spread(layer, layer.map(() => 0));
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forwards = sweep % 2 === 0;
    for (const layer of forwards ? layers : [...layers].reverse()) {
      spread(layer, layer.map((cell) => mean(forwards ? cell.before : cell.after) ?? cell.y));
    }
  }
  const all = layers.flat();
  const top = Math.min(...all.map((cell) => cell.y - cell.height / 2));
  for (const cell of all) cell.y -= top;
  return Math.max(0, ...all.map((cell) => cell.y + cell.height / 2));
}

/**
 * Puts the cells of a column as near as possible to the wanted places without an overlap: neighbours that would overlap
 * become a block, which moves as one.
 *
 * @param {Cell[]} layer
 * @param {number[]} wanted
 */
function spread(layer, wanted) {
  /** @type {number[]} */
  const offsets = [];
  layer.forEach((cell, at) => {
    const previous = layer[at - 1];
    offsets[at] = previous ? offsets[at - 1] + (previous.height + cell.height) / 2 + GAP_Y : 0;
  });
  /** @type {{ sum: number, count: number, first: number }[]} */
  const blocks = [];
  wanted.forEach((y, at) => {
    let block = { sum: y - offsets[at], count: 1, first: at };
    for (let last = blocks.at(-1); last && last.sum / last.count > block.sum / block.count; last = blocks.at(-1)) {
      blocks.pop();
      block = { sum: last.sum + block.sum, count: last.count + block.count, first: last.first };
    }
    blocks.push(block);
  });
  blocks.forEach(({ sum, count, first }) => {
    for (let at = first; at < first + count; at += 1) layer[at].y = sum / count + offsets[at];
  });
}

/** @param {Cell[][]} layers */
function columns(layers) {
  const widths = layers.map((layer) => Math.max(...layer.map((cell) => cell.width)));
  let x = 0;
  const starts = widths.map((width) => {
    const start = x;
    x += width + GAP_X;
    return start;
  });
  return { starts, widths, width: Math.max(0, x - GAP_X) };
}

/**
 * @param {Cell} cell
 * @param {number} x
 * @returns {Box[]}
 */
function boxesOf({ item, y, width, height, inner }, x) {
  if (!item) return [];
  const top = y - height / 2;
  const inside = (inner?.boxes ?? []).map((box) => ({ ...box, x: box.x + x + PAD, y: box.y + top + HEADER }));
  return [{ item, x, y: top, width, height }, ...inside];
}

/**
 * @param {Cell} cell
 * @param {number} x
 * @returns {Line[]}
 */
function innerLines({ y, height, inner }, x) {
  const top = y - height / 2 + HEADER;
  return (inner?.lines ?? []).map(({ from, to, points }) => ({
    from,
    to,
    points: points.map(([atX, atY]) => [atX + x + PAD, atY + top]),
  }));
}

/**
 * @param {Cell[]} chain
 * @param {number[]} starts
 * @param {number[]} widths
 * @returns {Line}
 */
function lineOf(chain, starts, widths) {
  const [from, to] = [chain[0], chain[chain.length - 1]];
  /** @type {[number, number][]} */
  const points = [[starts[from.layer] + from.width, from.y]];
  // What is narrower than its column is left of the end of it.
  if (from.width < widths[from.layer]) points.push([starts[from.layer] + widths[from.layer], from.y]);
  for (const passage of chain.slice(1, -1)) {
    points.push([starts[passage.layer], passage.y], [starts[passage.layer] + widths[passage.layer], passage.y]);
  }
  points.push([starts[to.layer], to.y]);
  return { from: from.item?.key ?? "", to: to.item?.key ?? "", points };
}
