/** The address of the page: the sessions that it names, and in which pane the user is. Each entry of the history keeps both. */
import { followed } from "./panes.js";
import { makeRoute, parseRoute } from "./route.js";

/**
 * Creates what reads and changes it. `window` is a parameter for tests.
 * @param {{location: {hash: string}, history: {state: any, replaceState: Function, pushState: Function}}} window
 */
export function createAddress({ location, history }) {
  const keptPane = () => ([0, 1].includes(history.state?.pane) ? history.state.pane : null);
  /** @type {import("./panes.js").Place} */
  let place = { route: { ...parseRoute(location.hash), code: null }, pane: keptPane() ?? 0 };
  let moves = 0;
  let isRead = false;
  /** @type {Set<(place: import("./panes.js").Place & {moves: number}) => void>} */
  const listeners = new Set();

  const set = (/** @type {import("./panes.js").Place} */ next, /** @type {boolean} */ moved) => {
    place = { route: next.route, pane: next.route.beside === null ? 0 : next.pane };
    if (moved) moves += 1;
    for (const listener of listeners) listener({ ...place, moves });
  };

  return {
    get route() {
      return place.route;
    },
    get pane() {
      return place.pane;
    },
    /** The place, and how many times the page has moved the user to another pane. */
    get state() {
      return { ...place, moves };
    },

    /** Reads it after it has changed: a new entry is a link that was followed, another one is shown as it was left. */
    read() {
      const route = { ...parseRoute(location.hash), code: null };
      const pane = keptPane();
      const isNew = isRead && pane === null;
      const next = isNew ? followed(place, route) : { route, pane: pane ?? 0 };
      isRead = true;
      const isJoined = next.route !== route;
      const isClosed = place.route.beside !== null && next.route.beside === null;
      history.replaceState({ pane: next.pane }, "", isJoined ? makeRoute(next.route) : undefined);
      set(next, isClosed || next.pane !== place.pane);
    },

    /** Goes to a place. @param {import("./panes.js").Place} next */
    go(next) {
      history.pushState({ pane: next.pane }, "", makeRoute(next.route));
      set(next, true);
    },

    /** Notes the pane in use; `moved` if the page is to move the focus there. @param {number} pane @param {boolean} [moved] */
    use(pane, moved = false) {
      if (pane === place.pane || place.route.beside === null) return;
      history.replaceState({ pane }, "");
      set({ ...place, pane }, moved);
    },

    /** Calls a function after changes. @param {(state: any) => void} listener @returns {() => void} ends it. */
    subscribe(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
}
