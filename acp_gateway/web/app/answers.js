/** What the gateway answers about a session, as the page has it. Pure. */

/** @param {any} answer - of session/get. @returns {any[]} payloads. */
export function statesOf({ states }) {
  return (states ?? []).map((/** @type {any} */ one) => one.payload);
}

/** @param {any} answer - of session/get. @returns {import("./current.js").Current["older"]} */
export function olderOf(answer) {
  if (answer.more) return "more";
  return answer.truncated ? "cut" : "none";
}

/**
 * @param {any} answer - of session/get; `{}` before it is there.
 * @returns {Pick<import("./current.js").Current, "modes"|"models"|"configOptions"|"promptCapabilities"|"queue"|"canFork">}
 */
export function presentOf({ modes = null, models = null, configOptions = null, promptCapabilities = null, queue = [], canFork = false }) {
  return { modes, models, configOptions, promptCapabilities, queue, canFork };
}

/**
 * @param {any} one - of `pendingRequests`, or the params of session/request.
 * @param {import("./current.js").Request[]} known
 * @returns {import("./current.js").Request}
 */
export function requestOf(one, known) {
  const before = known.find((old) => String(old.requestId) === String(one.requestId));
  const method = one.requestType ?? one.method ?? "session/request_permission";
  const params = one.payload ?? one.request ?? {};
  return {
    requestId: one.requestId,
    method,
    params,
    answering: before?.answering ?? false,
    error: before?.error ?? null,
  };
}
