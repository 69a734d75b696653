/**
 * Parses and makes the fragment of the page's address.
 *
 * `#/s/SESSION` opens a session, `#/s/SESSION/r/REQUESTID` one of its questions, `#/s/SESSION/changes`
 * what it has changed, `#/s/SESSION/u/NUMBER` the place of an update, `#/new/AGENT` the dialog for a new one, `#/board` the board,
 * `#acpgwp_CODE` signs in, and a sign-in code may be followed by a path: `#acpgwp_CODE/s/SESSION`. Anything else is the
 * list.
 */

/** Longest fragment that is read, in characters. */
const LONGEST = 2048;

const NUMBER = /^[1-9]\d{0,14}$/;

const CODE = /^acpgwp_[A-Za-z0-9_-]+$/;

/** @typedef {{code: string|null, sessionId: string|null, requestId: string|null, agent: string|null, changes: boolean,
 *   board: boolean, at: number|null}} Route */

/**
 * Parses a fragment.
 * @param {string} hash - `location.hash`, with or without its `#`.
 * @returns {Route}
 */
export function parseRoute(hash) {
  /** @type {Route} */
  const route = { code: null, sessionId: null, requestId: null, agent: null, changes: false, board: false, at: null };
  if (hash.length > LONGEST) return route;
  const parts = hash.replace(/^#/, "").split("/");
  if (CODE.test(parts[0])) route.code = parts[0];
  else if (parts[0] !== "") return route;
  if (parts[1] === "s") route.sessionId = decoded(parts[2]);
  route.board = parts[1] === "board";
  if (parts[1] === "new") route.agent = decoded(parts[2]);
  if (route.sessionId !== null && parts[3] === "r") route.requestId = decoded(parts[4]);
  if (route.sessionId !== null && parts[3] === "u" && NUMBER.test(parts[4])) route.at = Number(parts[4]);
  route.changes = route.sessionId !== null && parts[3] === "changes";
  return route;
}

/**
 * Makes the fragment that parseRoute reads; a sign-in code is never part of it.
 * @param {{sessionId?: string|null, requestId?: string|number|null, agent?: string|null,
 *   changes?: boolean, at?: number|null}} route
 * @returns {string} `#/` for the list.
 */
export function makeRoute({ sessionId = null, requestId = null, agent = null, changes = false, at = null } = {}) {
  if (sessionId === null) return agent === null ? "#/" : `#/new/${encodeURIComponent(agent)}`;
  const session = `#/s/${encodeURIComponent(sessionId)}`;
  if (at !== null) return `${session}/u/${at}`;
  if (changes) return `${session}/changes`;
  return requestId === null ? session : `${session}/r/${encodeURIComponent(String(requestId))}`;
}

/** @param {string|undefined} part */
function decoded(part) {
  if (!part) return null;
  try {
    return decodeURIComponent(part);
  } catch {
    return null; // A lone "%".
  }
}
