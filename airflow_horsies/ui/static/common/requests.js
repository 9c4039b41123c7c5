// Requests to Airflow's api-server.

/** @import { Problem as ProblemAnswer } from "../payloads.d.ts" */

export class Problem extends Error {
  /**
   * @param {number | null} status of the response; 0 without a response, null if the page itself failed.
   * @param {string} detail
   */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** @param {unknown} error */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  return new Problem(null, error instanceof Error ? error.message : String(error));
}

/**
 * @param {string} address
 * @param {RequestInit} options
 */
async function request(address, options) {
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin", ...options });
  } catch {
    throw new Problem(0, "Airflow's api-server does not respond.");
  }
  const text = await answer.text();
  let content = null;
  try {
    content = text ? JSON.parse(text) : null;
  } catch {
    throw new Problem(answer.status, `The response (${answer.status}) is not JSON.`);
  }
  if (!answer.ok) {
    /** @type {Partial<ProblemAnswer> | null} */
    const problem = content;
    const detail = typeof problem?.detail === "string" ? problem.detail : answer.statusText;
    throw new Problem(answer.status, detail || `The request failed (${answer.status}).`);
  }
  return content;
}

/**
 * @template Answer
 * @param {string} address
 * @returns {Promise<Answer>}
 */
export function getJson(address) {
  return request(address, { headers: { Accept: "application/json" } });
}

/**
 * @template Answer
 * @param {string} address
 * @param {unknown} body
 * @returns {Promise<Answer>}
 */
export function postJson(address, body) {
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  return request(address, { method: "POST", headers, body: JSON.stringify(body) });
}
