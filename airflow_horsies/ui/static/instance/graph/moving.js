// Where an arrow key leads in a graph: along an edge if there is one, else to the nearest box in that direction.

/** @import { Box, Line } from "./layout.js" */

/** @type {Record<string, [number, number]>} */
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * @param {string} key of the box to leave.
 * @param {string} pressed
 * @param {Box[]} boxes
 * @param {Line[]} lines
 * @returns {string | null}
 */
export function moveFrom(key, pressed, boxes, lines) {
  if (pressed === "Home") return boxes[0]?.item.key ?? null;
  if (pressed === "End") return boxes.at(-1)?.item.key ?? null;
  const direction = DIRECTIONS[pressed];
  const from = boxes.find((box) => box.item.key === key);
  if (!direction || !from) return null;
  const others = boxes.filter((box) => box !== from);
  return nearest(from, others.filter((box) => isLinked(key, box.item.key, pressed, lines)), [0, 0]) ??
    nearest(from, others, direction);
}

/**
 * @param {string} key
 * @param {string} other
 * @param {string} pressed
 * @param {Line[]} lines
 */
function isLinked(key, other, pressed, lines) {
  if (pressed === "ArrowRight") return lines.some(({ from, to }) => from === key && to === other);
  if (pressed === "ArrowLeft") return lines.some(({ from, to }) => from === other && to === key);
  return false;
}

/**
 * @param {Box} from
 * @param {Box[]} boxes
 * @param {[number, number]} direction of [0, 0] is any.
 */
function nearest(from, boxes, [right, down]) {
  const [x, y] = middle(from);
  let best = Infinity;
  let found = null;
  for (const box of boxes) {
    const [atX, atY] = middle(box);
    const ahead = (atX - x) * right + (atY - y) * down;
    const aside = Math.abs((atX - x) * down) + Math.abs((atY - y) * right);
    const isAhead = (!right && !down) || ahead > 1;
    const distance = right || down ? ahead + 3 * aside : Math.abs(atX - x) + Math.abs(atY - y);
    if (isAhead && distance < best) [best, found] = [distance, box.item.key];
  }
  return found;
}

/**
 * An open box is at its head.
 *
 * @param {Box} box
 */
function middle({ item, x, y, width, height }) {
  return item.inner ? [x + 14, y + 14] : [x + width / 2, y + height / 2];
}
