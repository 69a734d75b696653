/**
 * Sessions side by side: what the address says of them, and which part of the store holds each. Pure.
 *
 * They are in one page, not in frames: they share its connection and notifications, and nothing may frame it.
 */

/** Width from which two sessions have room beside the list. */
export const ROOM = "(min-width: 1200px)";
/** Width from which the columns of the board have room. */
export const BOARD = "(min-width: 960px)";

/**
 * @typedef {import("./route.js").Route} Route
 * @typedef {import("./route.js").Part} Part
 * @typedef {{route: Route, pane: number}} Place - an address, and the pane in use: 0 is the first one.
 */

/** Returns what a route says of each session that it shows. @param {Route} route @returns {Part[]} */
export function partsOf(route) {
  if (route.sessionId === null) return [];
  return route.beside === null ? [route] : [route, route.beside];
}

/** @param {Part[]} parts - one or two. @returns {Route} */
function routeOf(parts) {
  const [first, second = null] = parts.map(({ sessionId, requestId, changes, at, file, line }) => ({ sessionId, requestId, changes, at, ...(file !== undefined && { file, line }) }));
  return { code: null, agent: null, board: false, ...first, beside: second };
}

/**
 * Returns the place that a link to one session leads to where two are shown: its session comes into the pane in use,
 * unless it is in one of them already.
 * @param {Place} before
 * @param {Route} link
 * @returns {Place}
 */
export function followed({ route, pane }, link) {
  const parts = partsOf(route);
  const [wanted, ...more] = partsOf(link);
  if (parts.length < 2 || wanted === undefined || more.length > 0) return { route: link, pane: 0 };
  const known = parts.findIndex(({ sessionId }) => sessionId === wanted.sessionId);
  const at = known < 0 ? pane : known;
  return { route: routeOf(parts.map((part, i) => (i === at ? wanted : part))), pane: at };
}

/**
 * Returns the place with a session beside the one in use, in place of the other one.
 * @param {Place} before
 * @param {Part} wanted
 * @returns {Place}
 */
export function besideOf({ route, pane }, wanted) {
  const parts = partsOf(route);
  const known = parts.findIndex(({ sessionId }) => sessionId === wanted.sessionId);
  if (known >= 0) return { route: routeOf(parts.map((part, i) => (i === known ? wanted : part))), pane: known };
  const at = parts.length < 2 ? parts.length : 1 - pane;
  const next = [...parts];
  next[at] = wanted;
  return { route: routeOf(next), pane: at };
}

/** Returns the place without one of its two sessions. @param {Route} route @param {number} pane @returns {Place} */
export function closedOf(route, pane) {
  return { route: routeOf(partsOf(route).filter((_, i) => i !== pane)), pane: 0 };
}

/**
 * Returns which holder each wanted session has: the one that holds it, else the first that no other one needs.
 * @param {string[]} wanted - ids, each once, at most as many as there are holders.
 * @param {(string|null)[]} held - the id that each holder has.
 * @returns {number[]}
 */
export function assigned(wanted, held) {
  const found = wanted.map((id) => held.indexOf(id));
  const free = held.map((_, i) => i).filter((i) => !found.includes(i));
  return found.map((i) => (i < 0 ? /** @type {number} */ (free.shift()) : i));
}
