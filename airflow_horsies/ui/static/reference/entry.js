// One task or workflow of the reference.

/** @import { KnownEntry, KnownParameter } from "../payloads.d.ts" */

import { since } from "../common/clock.js";
import { h, table } from "../common/dom.js";
import { badge, plural } from "../common/text.js";

const COLUMNS = ["Parameter", "Type", "Default"];
const DISPUTED = "Other live workers have recorded other parameters under this name, as during an upgrade.";

/** @param {KnownEntry} entry */
export function entryCard(entry) {
  const { kind, name, doc, is_live, is_disputed } = entry;
  return h(
    "section",
    { class: "card known" },
    h(
      "div",
      { class: "toolbar" },
      h("h2", {}, h("code", {}, name)),
      h("span", {}, badge(kind), " ", badge(is_live ? "alive" : "silent")),
    ),
    is_disputed ? h("p", { class: "notice" }, DISPUTED) : null,
    doc ? h("p", { class: "doc" }, doc) : null,
    parameters(entry),
    h("p", { class: "quiet" }, whereAndWhen(entry)),
  );
}

/** @param {KnownEntry} entry */
function parameters({ parameters, takes_others }) {
  const others = takes_others ? h("p", { class: "quiet" }, "It accepts further arguments.") : null;
  if (!parameters.length) return others ?? h("p", { class: "quiet" }, "It has no parameters.");
  return [table(COLUMNS, parameters.map(parameterRow)), others];
}

/** @param {KnownParameter} parameter */
function parameterRow({ name, type, is_required, default: value, description }) {
  const none = is_required ? "required" : "optional";
  return h(
    "tr",
    {},
    h("td", {}, h("code", {}, name), description ? h("div", { class: "quiet" }, description) : null),
    h("td", {}, type),
    h("td", {}, value === null ? h("span", { class: "quiet" }, none) : h("code", {}, value)),
  );
}

/** @param {KnownEntry} entry */
function whereAndWhen({ kind, queue, served_queues, workers, hosts, releases, seen_at, is_live }) {
  const served = `${plural(served_queues.length, "queue")} ${served_queues.join(", ")}`;
  return [
    `Known by ${plural(workers, "worker")} of ${served} on ${hosts.join(", ")}, release ${releases.join(", ")}. `,
    queue && kind === "task" ? `Its own queue is ${queue}. ` : null,
    is_live ? "Last seen " : "Ended or silent, last seen ",
    since(seen_at, " ago"),
    ".",
  ];
}
