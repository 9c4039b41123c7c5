// The log of one submission: followed, filtered, downloaded.

/** @import { LineValues, Submission } from "../payloads.d.ts" */

import { h } from "../common/dom.js";
import { number, plural } from "../common/text.js";
import { clockTime, fullTime } from "../common/times.js";

const MOST_LINES = 5000;
const MAY_NOT_READ = "Your role in Airflow does not allow you to read the logs of this DAG.";
const NOT_BEGUN = "There are no log lines until an attempt starts.";
const NOTHING_WRITTEN =
  "There are no log lines: the attempts have written none, or their worker does not use airflow_horsies.worker.";

export class LogPanel {
  /** The last line that was read. */
  seen = { attempt: 0, number: 0 };
  /** Increased with every restart: lines requested before it belong to another log. */
  generation = 0;

  #dropped = 0;
  #scrolling = false;
  #hasBegun = false;
  #mayRead = true;
  #lines = h("ol", { class: "lines", id: "log", tabindex: "0", "aria-label": "Log lines" });
  #filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter lines", id: "filter" });
  #follow = h("input", { type: "checkbox", id: "follow" });
  #attempt = h("select", { "aria-label": "Attempt", id: "log-attempt" });
  #download = h("a", { class: "button small", id: "download" }, "Download");
  #status = h("p", { class: "quiet", role: "status" });

  /** @param {Element} place */
  constructor(place) {
    this.#follow.checked = true;
    this.#filter.addEventListener("input", () => this.#sift());
    this.#attempt.addEventListener("change", () => this.#sift());
    this.#follow.addEventListener("change", () => this.#scroll());
    // Scrolling up stops following, and scrolling to the end starts it.
    this.#lines.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#lines;
      if (!this.#scrolling) this.#follow.checked = scrollHeight - scrollTop - clientHeight < 8;
      this.#scrolling = false;
    });
    const follow = h("label", {}, this.#follow, " Follow");
    const actions = h("span", { class: "actions" }, this.#attempt, this.#filter, follow, this.#download);
    place.append(h("div", { class: "toolbar" }, h("h2", {}, "Log"), actions), this.#status, this.#lines);
  }

  restart() {
    this.generation += 1;
    this.seen = { attempt: 0, number: 0 };
    this.#dropped = 0;
    this.#lines.replaceChildren();
    this.#attempt.replaceChildren();
  }

  /** @param {LineValues[]} lines */
  add(lines) {
    const last = lines.at(-1);
    if (!last) return;
    this.seen = { attempt: last.attempt, number: last.number };
    this.#lines.append(...lines.map((line) => this.#line(line)));
    for (; this.#lines.childElementCount > MOST_LINES; this.#dropped += 1) this.#lines.firstElementChild?.remove();
    this.#scroll();
  }

  /**
   * @param {Pick<Submission, "attempts">} submission
   * @param {{ mayRead: boolean, download: string }} options
   */
  show({ attempts }, { mayRead, download }) {
    this.#hasBegun = attempts.length > 0;
    this.#mayRead = mayRead;
    this.#offerAttempts(attempts.map(({ attempt }) => String(attempt)));
    this.#download.setAttribute("href", download);
    this.#showStatus();
  }

  /** @param {string[]} numbers */
  #offerAttempts(numbers) {
    this.#attempt.hidden = numbers.length < 2;
    const offered = [...this.#attempt.options].slice(1).map((option) => option.value);
    if (offered.join() === numbers.join()) return;
    const before = this.#attempt.value;
    this.#attempt.replaceChildren(
      h("option", { value: "" }, "All attempts"),
      ...numbers.map((attempt) => h("option", { value: attempt }, `Attempt ${attempt}`)),
    );
    this.#attempt.value = numbers.includes(before) ? before : "";
  }

  /** @param {LineValues} line */
  #line({ attempt, level, logged_at, text }) {
    const element = h(
      "li",
      { class: level.toLowerCase().replace(/[^a-z]/g, ""), "data-attempt": attempt },
      h("time", { datetime: logged_at, title: fullTime(logged_at) }, clockTime(logged_at)),
      h("span", { class: "level" }, level),
      // Right-to-left text and control characters stay inside their line.
      h("bdi", { class: "text" }, visible(text)),
    );
    element.hidden = !this.#matches(element);
    return element;
  }

  /** @returns {HTMLElement[]} */
  #elements() {
    return /** @type {HTMLElement[]} */ ([...this.#lines.children]);
  }

  /** @param {HTMLElement} element */
  #matches(element) {
    const wanted = this.#filter.value.toLowerCase();
    if (this.#attempt.value && element.dataset.attempt !== this.#attempt.value) return false;
    const text = element.lastChild?.textContent ?? "";
    return !wanted || text.toLowerCase().includes(wanted) || element.classList.contains(wanted);
  }

  #sift() {
    for (const element of this.#elements()) element.hidden = !this.#matches(element);
    this.#showStatus();
    this.#scroll();
  }

  #scroll() {
    if (!this.#follow.checked) return;
    this.#scrolling = true;
    this.#lines.scrollTop = this.#lines.scrollHeight;
  }

  #showStatus() {
    const total = this.#lines.childElementCount;
    this.#lines.hidden = total === 0;
    this.#download.hidden = total === 0;
    this.#status.textContent = [this.#describe(total), this.#describeDropped()].filter(Boolean).join(" · ");
    this.#status.hidden = !this.#status.textContent;
  }

  /** @param {number} total */
  #describe(total) {
    if (!this.#mayRead) return MAY_NOT_READ;
    if (!total) return this.#hasBegun ? NOTHING_WRITTEN : NOT_BEGUN;
    const matching = this.#elements().filter((element) => !element.hidden).length;
    return matching < total ? `${number(matching)} of ${plural(total, "line")}` : "";
  }

  #describeDropped() {
    if (!this.#dropped) return "";
    return `The first ${plural(this.#dropped, "line")} are not shown. The download contains all lines.`;
  }
}

/**
 * Replaces control characters by their Unicode pictures: an escape sequence is shown, not interpreted.
 *
 * @param {string} text
 */
function visible(text) {
  return text
    // deno-lint-ignore no-control-regex
    .replace(/[\u0000-\u0008\u000a-\u001f]/g, (char) => String.fromCharCode(0x2400 + char.charCodeAt(0)))
    .replaceAll("\u007f", "\u2421");
}
