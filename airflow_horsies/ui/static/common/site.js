// The Airflow around a page: its address and its window.

export const base = document.body.dataset.base ?? "";
export const horsies = `${base}/horsies`;

/** The window of Airflow, or null if the page is not in a frame of it. */
export function host() {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null;
  }
}

export const isEmbedded = host() !== null;
