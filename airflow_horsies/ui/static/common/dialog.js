// Asks for confirmation before an action.

/** @import { Child } from "./types.d.ts" */

import { h } from "./dom.js";
import { asProblem } from "./requests.js";

/**
 * Asks for confirmation, performs the action, and shows its result.
 *
 * @param {object} question
 * @param {string} question.title
 * @param {Child} question.content
 * @param {string} question.action
 * @param {boolean} [question.danger]
 * @param {(say: (text: string) => void) => Promise<Node | string>} question.act may show its progress; its return
 *   value is shown at the end.
 * @returns {HTMLElement} the place of the content.
 */
export function confirmAction({ title, content, action, danger = false, act }) {
  const body = h("div", { class: "dialog-body" }, content);
  const outcome = h("p", { class: "quiet", role: "status" });
  const close = h("button", { type: "button", value: "close" }, "Close");
  const go = h("button", { type: "button", class: danger ? "danger" : "primary" }, action);
  const heading = h("h2", { id: "dialog-title" }, title);
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, heading, body, outcome, h("footer", {}, close, go));
  const opener = document.activeElement;
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => {
    box.remove();
    if (opener instanceof HTMLElement) opener.focus();
  });
  box.addEventListener("cancel", (event) => go.dataset.busy && event.preventDefault());
  go.addEventListener("click", async () => {
    go.dataset.busy = "1";
    go.disabled = close.disabled = true;
    outcome.className = "quiet";
    outcome.textContent = "Working…";
    try {
      outcome.replaceChildren(await act((text) => (outcome.textContent = text)));
      outcome.className = "done";
      go.remove();
    } catch (error) {
      const { status, message } = asProblem(error);
      outcome.className = "failed";
      outcome.textContent = status === 403 ? "Your role in Airflow does not allow this." : message;
      go.disabled = false;
    }
    delete go.dataset.busy;
    close.disabled = false;
    close.focus();
  });
  document.body.append(box);
  box.showModal();
  close.focus();
  return body;
}
