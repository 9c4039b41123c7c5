// What every page needs: elements, requests, times, the looks of the Airflow around it.

export const base = document.body.dataset.base;
export const horsies = `${base}/horsies`;

/** An element. Text is only ever set as text, so nothing a task wrote can become markup. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(element.style, value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.flat(Infinity).filter(Boolean));
  return element;
}

// -- requests ---------------------------------------------------------------------------------------------------------

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function request(address, options) {
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin", ...options });
  } catch {
    throw new Problem(0, "Airflow's api-server does not answer.");
  }
  const text = await answer.text();
  let content = null;
  try {
    content = text ? JSON.parse(text) : null;
  } catch {
    throw new Problem(answer.status, `The answer (${answer.status}) is not JSON.`);
  }
  if (!answer.ok) {
    const detail = typeof content?.detail === "string" ? content.detail : answer.statusText;
    throw new Problem(answer.status, detail || `The request failed (${answer.status}).`);
  }
  return content;
}

export function getJson(address) {
  return request(address, { headers: { Accept: "application/json" } });
}

export function postJson(address, body) {
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  return request(address, { method: "POST", headers, body: JSON.stringify(body) });
}

/**
 * Calls `read` again and again, one call at a time, and never while the page is hidden. `read` returns the seconds
 * until the next call; none, if there is more to read. The machine behind a slow answer is left alone for longer.
 */
export function poll(read, { failed }) {
  let timer = null;
  let busy = false;
  let troubles = 0;
  async function round() {
    clearTimeout(timer);
    timer = null;
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
      seconds = Math.min(2 ** troubles, 30);
      failed(error);
    }
    busy = false;
    const pause = seconds ? Math.max(seconds * 1000, 4 * (performance.now() - began)) : 0;
    timer = setTimeout(round, pause);
  }
  document.addEventListener("visibilitychange", () => document.hidden || round());
  round();
  return round;
}

// -- times ------------------------------------------------------------------------------------------------------------

function chosenTimeZone() {
  try {
    const zone = JSON.parse(localStorage.getItem("timezone"));
    new Intl.DateTimeFormat("en", { timeZone: zone });
    return zone ?? undefined;
  } catch {
    return undefined;
  }
}

// Swedish writes dates as ISO does, which is how Airflow shows them.
function formats() {
  const timeZone = chosenTimeZone();
  const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZone };
  const day = { year: "numeric", month: "2-digit", day: "2-digit", timeZone };
  return {
    zone: timeZone,
    full: new Intl.DateTimeFormat("sv-SE", { ...day, ...clock }),
    clock: new Intl.DateTimeFormat("sv-SE", clock),
    minutes: new Intl.DateTimeFormat("sv-SE", { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone }),
    day: new Intl.DateTimeFormat("sv-SE", day),
  };
}

const format = formats();
window.addEventListener("storage", (event) => {
  if (event.key === "timezone") location.reload();
  if (event.key === "theme") dress();
});

export function fullTime(instant) {
  return instant ? format.full.format(new Date(instant)) : "–";
}

export function clockTime(instant) {
  return format.clock.format(new Date(instant));
}

export function axisTime(milliseconds, span) {
  const instant = new Date(milliseconds);
  if (span > 5 * 86_400_000) return format.day.format(instant);
  return (span > 1_200_000 ? format.minutes : format.clock).format(instant);
}

export function time(instant) {
  if (!instant) return "–";
  const title = `${fullTime(instant)} ${format.zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone}`;
  return h("time", { datetime: instant, title }, fullTime(instant));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${whole % 60} s`;
}

/** The clocks of browsers are wrong at times; the server's, told with each answer, counts. */
let skew = 0;
export function setServerTime(now) {
  skew = Date.parse(now) - Date.now();
}
export function serverNow() {
  return Date.now() + skew;
}

/** Text that changes with the clock: `write(now)` gives it. */
export function ticking(write, attributes = {}) {
  const element = h("span", { ...attributes, class: `ticking ${attributes.class ?? ""}` });
  element.tick = () => {
    element.textContent = write(serverNow());
  };
  element.tick();
  return element;
}
setInterval(() => {
  if (!document.hidden) for (const element of document.querySelectorAll(".ticking")) element.tick();
}, 1000);

// -- words ------------------------------------------------------------------------------------------------------------

export function number(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

export function bytes(size) {
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < 5) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toFixed(1) : size} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** A state of a horsies task, an outcome of an attempt, or a state of Airflow's: told by words, and by a colour. */
export function badge(state, attributes = {}) {
  const name = String(state ?? "no state").toLowerCase();
  return h("span", { ...attributes, class: `badge ${name.replace(/[^a-z]+/g, "-")}` }, name.replaceAll("_", " "));
}

// -- the Airflow around -----------------------------------------------------------------------------------------------

function host() {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null;
  }
}

export const isEmbedded = host() !== null;

const BORROWED = {
  "--bg": "--chakra-colors-bg",
  "--fg": "--chakra-colors-fg",
  "--fg-muted": "--chakra-colors-fg-muted",
  "--border": "--chakra-colors-border",
  "--font": "--chakra-fonts-body",
  "--mono": "--chakra-fonts-mono",
};

function isDark(parent) {
  if (parent) return parent.document.documentElement.classList.contains("dark");
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") return theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function dress() {
  const parent = host();
  const root = document.documentElement;
  root.dataset.theme = isDark(parent) ? "dark" : "light";
  if (!parent) return;
  const given = parent.getComputedStyle(parent.document.documentElement);
  for (const [ours, theirs] of Object.entries(BORROWED)) {
    const value = given.getPropertyValue(theirs).trim();
    if (value && !value.startsWith("var(")) root.style.setProperty(ours, value);
  }
}

dress();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
if (isEmbedded) {
  new MutationObserver(dress).observe(window.parent.document.documentElement, { attributeFilter: ["class"] });
}

/** Where Airflow shows a task instance, at our tab. */
export function instanceAddress({ dag_id, run_id, task_id, map_index }) {
  const path = `${base}/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}`;
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  return `${path}/tasks/${encodeURIComponent(task_id)}${mapped}/plugin/horsies-task`;
}

/** A link to a page of Airflow's: in a frame it moves the Airflow around, which a plain link may not. */
export function airflowLink(address, ...children) {
  return h("a", { href: address, onclick: (event) => followInAirflow(event, address) }, ...children);
}

export function followInAirflow(event, address) {
  const parent = host();
  if (!parent || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  parent.history.pushState({}, "", address);
  parent.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
}

export function instanceLink(instance, text) {
  return airflowLink(instanceAddress(instance), text ?? instanceName(instance));
}

export function instanceName({ task_id, map_index }) {
  return map_index >= 0 ? `${task_id} [${map_index}]` : task_id;
}

// -- pieces of pages --------------------------------------------------------------------------------------------------

export function problemBox(error) {
  const title = {
    0: "No answer",
    401: "Please log in to Airflow",
    403: "You may not see this",
    404: "Nothing here",
    503: "Not available",
  }[error.status];
  const detail =
    { 401: "Your session has ended.", 403: "Your role in Airflow does not allow it." }[error.status] ?? error.message;
  return h(
    "section",
    { class: "state problem", role: "alert" },
    h("h1", {}, title ?? "Something went wrong"),
    h("p", {}, detail),
    error.status === 401 ? h("p", {}, airflowLink(`${base}/`, "Open Airflow")) : null,
  );
}

export function emptyBox(title, detail) {
  return h("section", { class: "state", role: "status" }, h("h1", {}, title), h("p", {}, detail));
}

/** A line on top of a page that still shows what it last knew. */
export function staleNotice(error) {
  return h("p", { class: "notice", role: "status" }, `Not up to date: ${error.message} Trying again…`);
}

/** Puts new content into a place if it differs from what is there by `key`; returns whether it did. */
export function update(place, key, make) {
  const text = JSON.stringify(key);
  if (place.shownKey === text) return false;
  place.shownKey = text;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  place.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
  if (focused) place.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  return true;
}

export function copyButton(text) {
  const button = h("button", { type: "button", class: "small" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not allowed in this frame, or not over plain HTTP: the older way works.
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/**
 * Asks before something is done, does it, and shows what came of it. `act(say)` may tell how far it is; what it
 * returns is shown at the end.
 */
export function confirmAction({ title, content, action, danger = false, act }) {
  const body = h("div", { class: "dialog-body" }, content);
  const said = h("p", { class: "quiet", role: "status" });
  const close = h("button", { type: "button", value: "close" }, "Close");
  const go = h("button", { type: "button", class: danger ? "danger" : "primary", disabled: act === null }, action);
  const heading = h("h2", { id: "dialog-title" }, title);
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, heading, body, said, h("footer", {}, close, go));
  const opener = document.activeElement;
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => {
    box.remove();
    opener?.focus?.();
  });
  box.addEventListener("cancel", (event) => go.dataset.busy && event.preventDefault());
  go.addEventListener("click", async () => {
    go.dataset.busy = "1";
    go.disabled = close.disabled = true;
    said.className = "quiet";
    said.textContent = "Working…";
    try {
      said.replaceChildren((await act((text) => (said.textContent = text))) ?? "Done.");
      said.className = "done";
      go.remove();
    } catch (error) {
      said.className = "failed";
      said.textContent = error.status === 403 ? "Your role in Airflow does not allow it." : error.message;
      go.disabled = false;
    }
    delete go.dataset.busy;
    close.disabled = false;
    close.focus();
  });
  document.body.append(box);
  box.showModal();
  close.focus();
  return { body, enable: () => (go.disabled = false) };
}

/** Clears a task instance and what is downstream of it, through Airflow's own API; without `dry` it is done. */
export async function clearInstance({ dag_id, run_id, task_id, map_index }, { dry }) {
  const answer = await postJson(`${base}/api/v2/dags/${encodeURIComponent(dag_id)}/clearTaskInstances`, {
    dry_run: dry,
    dag_run_id: run_id,
    task_ids: [map_index >= 0 ? [task_id, map_index] : task_id],
    include_downstream: true,
    only_failed: false,
    reset_dag_runs: true,
  });
  return answer.task_instances;
}
