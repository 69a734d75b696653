/** Requests of the page over HTTP, each with a time limit. */

/** Time in ms in which the gateway must have answered. */
export const LIMIT = 12_000;

/** Failure of a request that the gateway did not answer; it may have carried it out. */
export class NoAnswer extends Error {
  constructor(text = "The gateway does not answer.") {
    super(text);
    this.name = "NoAnswer";
  }
}

/**
 * Fetches an address, and its answer whole.
 * @param {any} window - the browser's: its `fetch` and timers.
 * @param {string|URL} url
 * @param {object} options - of `fetch`.
 * @returns {Promise<{ok: boolean, status: number, text: string}>} fails with NoAnswer after the limit, and with a TypeError
 *   if the gateway can't be reached.
 */
export async function ask(window, url, options) {
  const controller = new AbortController();
  const timer = window.setTimeout(() => controller.abort(), LIMIT);
  try {
    const answer = await window.fetch(url, { ...options, signal: controller.signal });
    return { ok: answer.ok, status: answer.status, text: await answer.text() };
  } catch (error) {
    throw controller.signal.aborted ? new NoAnswer() : error;
  } finally {
    window.clearTimeout(timer);
  }
}

/**
 * Waits for what a browser does, but not for longer than the limit.
 * @param {any} window
 * @param {Promise<any>} work
 * @returns {Promise<any>} its result; fails as it does, and with NoAnswer after the limit.
 */
export function within(window, work) {
  return new Promise((resolve, reject) => {
    const timer = window.setTimeout(() => reject(new NoAnswer()), LIMIT);
    work.then(resolve, reject).finally(() => window.clearTimeout(timer));
  });
}
