/**
 * Parses and makes the fragment of the page's address.
 *
 * `#/s/SESSION` opens a session, `#/s/SESSION/r/REQUESTID` one of its questions, `#/s/SESSION/changes`
 * what it has changed, `#/s/SESSION/files/PATH/LINE` a file, `#/s/SESSION/u/NUMBER` the place of an update, `#/new/AGENT` the dialog for a new one, `#/board` the board,
 * `#/s/SESSION&/s/OTHER` opens two side by side, each with what may follow its id;
 * `#acpgwp_CODE` signs in, and a sign-in code may be followed by a path: `#acpgwp_CODE/s/SESSION`. Anything else is the
 * list.
 */

/** Longest fragment that is read, in characters. */
const LONGEST = 2048;

const NUMBER = /^[1-9]\d{0,14}$/;

/** @type {Part} */
const NOTHING = { sessionId: null, requestId: null, changes: false, at: null };

const CODE = /^acpgwp_[A-Za-z0-9_-]+$/;

/**
 * @typedef {{sessionId: string|null, requestId: string|null, changes: boolean, at: number|null,
 *   file?: string|null, line?: number|null}} Part - a session and what of it is shown; `file` is empty for its folder.
 * @typedef {Part & {code: string|null, agent: string|null, board: boolean, beside: Part|null}} Route
 */

/**
 * Parses a fragment.
 * @param {string} hash - `location.hash`, with or without its `#`.
 * @returns {Route}
 */
export function parseRoute(hash) {
  /** @type {Route} */
  const route = { code: null, ...NOTHING, agent: null, board: false, beside: null };
  if (hash.length > LONGEST) return route;
  const [whole, second] = hash.replace(/^#/, "").split("&");
  const parts = whole.split("/");
  if (CODE.test(parts[0])) route.code = parts[0];
  else if (parts[0] !== "") return route;
  Object.assign(route, partOf(parts));
  route.board = parts[1] === "board";
  if (parts[1] === "new") route.agent = decoded(parts[2]);
  const beside = partOf(second?.split("/") ?? []);
  if (route.sessionId !== null && beside.sessionId !== null && beside.sessionId !== route.sessionId) route.beside = beside;
  return route;
}

/** @param {string[]} parts - of a path. @returns {Part} */
function partOf(parts) {
  const sessionId = parts[1] === "s" ? decoded(parts[2]) : null;
  if (sessionId === null) return NOTHING;
  return {
    sessionId,
    requestId: parts[3] === "r" ? decoded(parts[4]) : null,
    changes: parts[3] === "changes",
    at: parts[3] === "u" && NUMBER.test(parts[4]) ? Number(parts[4]) : null,
    ...(parts[3] === "files" && { file: decoded(parts[4]) ?? "", line: NUMBER.test(parts[5]) ? Number(parts[5]) : null }),
  };
}

/**
 * Makes the fragment that parseRoute reads; a sign-in code is never part of it.
 * @param {{sessionId?: string|null, requestId?: string|number|null, agent?: string|null,
 *   changes?: boolean, at?: number|null, file?: string|null, line?: number|null, beside?: Part|null}} route
 * @returns {string} `#/` for the list.
 */
export function makeRoute({ beside = null, ...first } = {}) {
  return beside === null ? pathOf(first) : `${pathOf(first)}&${pathOf(beside).slice(1)}`;
}

/**
 * @param {{sessionId?: string|null, requestId?: string|number|null, agent?: string|null, changes?: boolean, at?: number|null,
 *   file?: string|null, line?: number|null}} part
 */
function pathOf({ sessionId = null, requestId = null, agent = null, changes = false, at = null, file = null, line = null }) {
  if (sessionId === null) return agent === null ? "#/" : `#/new/${encodeURIComponent(agent)}`;
  const session = `#/s/${encodeURIComponent(sessionId)}`;
  if (at !== null) return `${session}/u/${at}`;
  if (changes) return `${session}/changes`;
  if (file !== null) return [`${session}/files`, ...(file === "" ? [] : [encodeURIComponent(file)]), ...(line === null ? [] : [line])].join("/");
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
