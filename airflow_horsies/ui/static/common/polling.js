// Reads repeatedly while the page is visible.

import { asProblem, Problem } from "./requests.js";

const MAX_PAUSE_SECONDS = 30;

/**
 * Calls `read` repeatedly, one call at a time, and never while the page is hidden. After a slow response it waits
 * longer.
 *
 * @param {() => Promise<number>} read returns the seconds until the next call; 0 if there is more to read.
 * @param {(problem: Problem) => void} failed
 * @returns {() => Promise<void>} reads now.
 */
export function poll(read, failed) {
  let timer = 0;
  let busy = false;
  let troubles = 0;
  async function round() {
    clearTimeout(timer);
    if (busy || document.hidden) return;
    busy = true;
    const began = performance.now();
    let seconds;
    try {
      seconds = await read();
      troubles = 0;
    } catch (error) {
      if (!(error instanceof Problem)) console.error(error);
      troubles += 1;
      seconds = Math.min(2 ** troubles, MAX_PAUSE_SECONDS);
      failed(asProblem(error));
    }
    busy = false;
    const pause = seconds ? Math.max(seconds * 1000, 4 * (performance.now() - began)) : 0;
    timer = setTimeout(round, pause);
  }
  document.addEventListener("visibilitychange", () => document.hidden || round());
  round();
  return round;
}
