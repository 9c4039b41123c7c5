// Dead letters: task instances whose last horsies task failed for good or expired.

/** @import { Failure, Failures, NextFailures } from "../payloads.d.ts" */

import { h, table, update } from "../common/dom.js";
import { errorCode, instanceLink, instanceName } from "../common/links.js";
import { getJson } from "../common/requests.js";
import { horsies } from "../common/site.js";
import { badge, number, plural } from "../common/text.js";
import { time } from "../common/times.js";
import { askRerun } from "./rerunning.js";

const READ_EVERY = 5;
const MOST_FAILURES = 500;
const BUSY = ["running", "queued", "scheduled", "deferred"];

export class FailuresPanel {
  // Older failures stay once they are read; the newest are read repeatedly.
  /** @type {Failure[]} */
  #newest = [];
  /** @type {Failure[]} */
  #older = [];
  /** @type {NextFailures | null} */
  #next = null;
  /** @type {string | null} */
  #searchedTo = null;
  #wentBack = false;
  #rounds = 0;
  /** @type {Set<string>} */
  #chosen = new Set();
  #code = "";
  #place;
  #look;

  /**
   * @param {Element} place
   * @param {() => void} look
   */
  constructor(place, look) {
    this.#place = place;
    this.#look = look;
  }

  /** Reads the newest failures, but not on every call. */
  async refresh() {
    if (this.#rounds % READ_EVERY === 0) await this.#readNewest();
    this.#rounds += 1;
  }

  show() {
    const all = this.#all();
    const keys = new Set(all.map(keyOf));
    for (const chosen of this.#chosen) if (!keys.has(chosen)) this.#chosen.delete(chosen);
    const key = [all, this.#code, [...this.#chosen], this.#next, this.#searchedTo];
    update(this.#place, key, () => this.#content(all));
  }

  async #readNewest() {
    /** @type {Failures} */
    const found = await getJson(`${horsies}/api/failures`);
    this.#newest = found.failures;
    if (this.#wentBack) return;
    this.#next = found.next;
    this.#searchedTo = found.searched_to;
  }

  /** @param {NextFailures} next */
  async #readOlder(next) {
    const asked = new URLSearchParams({ before_at: next.at, before_id: next.id });
    /** @type {Failures} */
    const found = await getJson(`${horsies}/api/failures?${asked}`);
    this.#wentBack = true;
    this.#older.push(...found.failures);
    this.#next = this.#older.length < MOST_FAILURES ? found.next : null;
    this.#searchedTo = found.searched_to ?? this.#searchedTo;
    this.show();
  }

  #all() {
    /** @type {Map<string, Failure>} */
    const found = new Map();
    for (const failure of [...this.#newest, ...this.#older]) {
      if (!found.has(keyOf(failure))) found.set(keyOf(failure), failure);
    }
    return [...found.values()];
  }

  /** @param {Failure[]} all */
  #content(all) {
    const codes = countCodes(all);
    if (!codes.has(this.#code)) this.#code = "";
    const matching = all.filter((failure) => !this.#code || codeOf(failure) === this.#code);
    const actable = matching.filter(canRerun);
    const columns = [this.#chooseAll(actable), "Task", "Error", "Attempts", "Ended", "In Airflow"];
    return [
      h(
        "div",
        { class: "toolbar" },
        h("h2", {}, "Dead letters"),
        h("span", { class: "actions" }, this.#rerun(actable)),
      ),
      h("p", { class: "quiet" }, "Task instances whose last horsies task failed for good or expired."),
      codes.size ? this.#groups(codes, all.length) : null,
      matching.length
        ? table(columns, matching.map((failure) => this.#row(failure)), { id: "dead-letters" })
        : h("p", { class: "good" }, "None. All tasks in this period ended well or run again."),
      this.#searched(),
    ];
  }

  /** @param {Failure[]} actable */
  #rerun(actable) {
    if (!actable.length) return null;
    const chosen = actable.filter((failure) => this.#chosen.has(keyOf(failure)));
    const onclick = () => askRerun(chosen, (cleared) => this.#forget(cleared));
    return h(
      "button",
      {
        type: "button",
        class: "primary small",
        id: "rerun-chosen",
        "data-focus": "rerun",
        disabled: !chosen.length,
        onclick,
      },
      chosen.length ? `Rerun ${plural(chosen.length, "task")}` : "Rerun",
    );
  }

  /** @param {Failure[]} cleared */
  #forget(cleared) {
    const keys = new Set(cleared.map(keyOf));
    for (const key of keys) this.#chosen.delete(key);
    this.#older = this.#older.filter((failure) => !keys.has(keyOf(failure)));
    this.#rounds = 0;
    this.#look();
  }

  /**
   * @param {Map<string, number>} codes
   * @param {number} total
   */
  #groups(codes, total) {
    const sorted = [...codes].sort((a, b) => b[1] - a[1]);
    return h(
      "div",
      { class: "groups", role: "group", "aria-label": "Error codes" },
      this.#group("", total),
      sorted.map(([code, count]) => this.#group(code, count)),
    );
  }

  /**
   * @param {string} code
   * @param {number} count
   */
  #group(code, count) {
    const pressed = String(this.#code === code);
    const onclick = () => {
      this.#code = code;
      this.show();
    };
    return h(
      "button",
      { type: "button", class: "small", "data-focus": `code-${code}`, "aria-pressed": pressed, onclick },
      `${code || "All"} ${number(count)}`,
    );
  }

  #searched() {
    const next = this.#next;
    const onclick = () => next && this.#readOlder(next);
    return h(
      "p",
      { class: "quiet" },
      this.#searchedTo ? ["Searched the tasks sent since ", time(this.#searchedTo), ". "] : "",
      next
        ? h("button", { type: "button", class: "small", "data-focus": "older", onclick }, "Search further back")
        : "",
    );
  }

  /** @param {Failure[]} actable */
  #chooseAll(actable) {
    if (!actable.length) return "";
    return this.#checkbox(actable, "Select all", "all");
  }

  /**
   * @param {Failure[]} failures
   * @param {string} label
   * @param {string} focus
   */
  #checkbox(failures, label, focus) {
    const box = h("input", { type: "checkbox", "aria-label": label, "data-focus": focus });
    box.checked = failures.every((failure) => this.#chosen.has(keyOf(failure)));
    box.addEventListener("change", () => {
      for (const failure of failures) {
        if (box.checked) this.#chosen.add(keyOf(failure));
        else this.#chosen.delete(keyOf(failure));
      }
      this.show();
    });
    return box;
  }

  /** @param {Failure} failure */
  #row(failure) {
    const box = canRerun(failure) ? this.#checkbox([failure], `Select ${instanceName(failure)}`, keyOf(failure)) : "";
    return h(
      "tr",
      {},
      h("td", {}, box),
      h("td", {}, whichInstance(failure)),
      h(
        "td",
        {},
        errorCode(codeOf(failure), failure.error_url),
        h("div", { class: "message" }, failure.error_message ?? ""),
      ),
      h("td", {}, failure.attempts),
      h("td", {}, time(failure.finished_at)),
      h(
        "td",
        {},
        failure.exists ? badge(failure.airflow_state ?? "cleared") : h("span", { class: "quiet" }, "deleted"),
      ),
    );
  }
}

/** @param {Failure} failure */
function keyOf({ dag_id, run_id, task_id, map_index }) {
  return JSON.stringify([dag_id, run_id, task_id, map_index]);
}

/** @param {Failure} failure */
function codeOf({ error_code, state }) {
  return error_code ?? state;
}

/** @param {Failure[]} failures */
function countCodes(failures) {
  /** @type {Map<string, number>} */
  const codes = new Map();
  for (const failure of failures) codes.set(codeOf(failure), (codes.get(codeOf(failure)) ?? 0) + 1);
  return codes;
}

/** @param {Failure} failure */
function canRerun({ can_act, exists, airflow_state }) {
  return can_act && exists && !BUSY.includes(airflow_state ?? "");
}

/** @param {Failure} failure */
function whichInstance(failure) {
  return [
    failure.exists ? instanceLink(failure) : instanceName(failure),
    h("div", { class: "quiet" }, `${failure.dag_id} · ${failure.run_id}`),
    failure.items > 1 ? h("div", { class: "quiet" }, `${plural(failure.items, "item")} of a batch`) : null,
  ];
}
