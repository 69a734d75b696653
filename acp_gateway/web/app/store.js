/**
 * The state of the page and what changes it, without a DOM.
 *
 * `state` is replaced at each change, its parts only if they changed; listeners hear of it once per frame at most. The
 * open session is followed by number: after a lost connection only what is missing is fetched.
 */
import { createCurrent } from "./current.js";
import { createDrafts } from "./drafts.js";
import { orderOf } from "./sessions.js";

/**
 * @typedef {import("./sessions.js").Session} Session
 * @typedef {import("./rpc.js").ConnectionState} ConnectionState
 * @typedef {import("./current.js").Current} Current
 * @typedef {{id: number, kind: "info"|"error", text: string, at: number, sessionId: string|null}} Toast
 * @typedef {{name: string, title: string, default: boolean, workspaces: {name: string|null, path: string}[],
 *   machine?: string|null, unreachableSince?: string|null}} Agent
 * @typedef {{name: string, version: string, identity: string, role: "controller"|"observer", guest: boolean,
 *   session: string|null, mayShare: boolean}} Info
 * @typedef {object} State
 * @property {ConnectionState & {readAt?: number|null}} connection - `readAt`: when what is shown was read, in ms since
 *   1970, if it is not the present.
 * @property {Info|null} info
 * @property {Agent[]} agents
 * @property {Map<string, Session>} sessions
 * @property {string[]} order - ids of the sessions: what needs a person comes first.
 * @property {boolean} listed - the list has come once.
 * @property {boolean} wasSignedIn - the list has come once, or the browser keeps one: it was signed in.
 * @property {number} more - further sessions that the list does not have.
 * @property {Current|null} current - the open session.
 * @property {Toast[]} toasts
 * @typedef {{request: (method: string, params?: object, options?: import("./rpc.js").RequestOptions) => Promise<any>,
 *   state: ConnectionState}} Rpc
 */

/** Toasts that are kept. */
const MOST_TOASTS = 5;

/**
 * Creates the store. Its `onNotification` and `onState` are the callbacks that createRpc takes.
 * @param {object} options
 * @param {Rpc} options.rpc
 * @param {() => number} [options.clock] - ms since 1970.
 * @param {(callback: () => void) => void} [options.frame] - calls back before the next frame: see frameOf.
 * @param {{getItem: (key: string) => string|null, setItem: (key: string, value: string) => void,
 *   removeItem: (key: string) => void, clear: () => void}|null} [options.storage] - of the tab.
 * @param {any} [options.lasting] - keeps drafts; the tab's by default.
 * @param {ReturnType<import("./keeper.js").createKeeper>|null} [options.keeper] - keeps what was read.
 * @param {(isLeft: boolean) => void} [options.startAfresh] - called when the gateway tells that another identity is signed
 *   in; `isLeft` if something waited that the former one wanted to send.
 */
export function createStore({
  rpc,
  clock = Date.now,
  frame = (callback) => void setTimeout(callback, 16),
  storage = null,
  lasting = storage,
  keeper = null,
  startAfresh = () => {},
}) {
  /** @type {State} */
  let state = {
    connection: rpc.state,
    info: null,
    agents: [],
    sessions: new Map(),
    order: [],
    listed: false,
    wasSignedIn: false,
    more: 0,
    current: null,
    toasts: [],
  };
  /** @type {Set<(state: State) => void>} */
  const listeners = new Set();
  let scheduled = false;
  let lastToast = 0;
  /** The connection on which everything is followed. */
  let line = 0;

  const set = (/** @type {Partial<State>} */ change) => {
    state = { ...state, ...change };
    if (scheduled) return;
    scheduled = true;
    frame(() => {
      scheduled = false;
      for (const listener of [...listeners]) listener(state);
    });
  };

  /** Whether something was not sent because another person is signed in. */
  let isLeft = false;
  const isOther = (/** @type {any} */ info) => state.info !== null && personOf(info) !== personOf(state.info);

  /** Waits for the next change. */
  const changed = () =>
    new Promise((resolve) => {
      const listener = () => resolve(listeners.delete(listener));
      listeners.add(listener);
    });

  const toast = (
    /** @type {Toast["kind"]} */ kind,
    /** @type {string} */ text,
    /** @type {string|null} */ sessionId = null,
  ) => {
    lastToast += 1;
    set({ toasts: [...state.toasts, { id: lastToast, kind, text, at: clock(), sessionId }].slice(-MOST_TOASTS) });
  };

  const setSessions = (/** @type {Map<string, Session>} */ sessions) => {
    set({ sessions, order: orderOf(sessions) });
  };

  const setSession = (/** @type {Session} */ session) => {
    setSessions(new Map(state.sessions).set(session.id, session));
    if (state.current?.id === session.id) set({ current: { ...state.current, session } });
  };

  const dropSession = (/** @type {string} */ id) => {
    const sessions = new Map(state.sessions);
    if (sessions.delete(id)) setSessions(sessions);
    if (state.current?.id === id) opened.removed();
    keepList();
  };

  const opened = createCurrent({
    rpc,
    clock,
    storage,
    keeper,
    drafts: createDrafts(lasting),
    toast,
    setSession,
    get: () => state,
    set: (current) => set({ current }),
  });

  /** Time in ms since 1970 at which the list was read that is shown; null for the present one. */
  let readAt = /** @type {number|null} */ (null);

  const updateCurrent = () => {
    const { current, sessions } = state;
    if (current === null) return;
    // Lists are limited and lack archived sessions: what was fetched of this one is as true.
    const fetched = current.phase === "ready" ? current.session : null;
    set({ current: { ...current, session: sessions.get(current.id) ?? fetched } });
  };

  /** Shows the list that was kept, until the gateway has told the present one. */
  const showKept = async () => {
    const kept = await keeper?.list();
    if (kept) set({ wasSignedIn: true });
    if (!kept || state.listed || state.connection.phase === "refused") return;
    readAt = kept.at;
    set({ info: kept.info, agents: kept.agents, listed: true, more: kept.more, connection: { ...state.connection, readAt } });
    setSessions(new Map(kept.sessions.map((/** @type {Session} */ session) => [session.id, session])));
    updateCurrent();
  };

  const keepList = () => {
    if (!state.listed || readAt !== null || state.info === null) return;
    const { info, agents, more } = state;
    void keeper?.keepList({ info, agents, more, sessions: [...state.sessions.values()] });
  };

  /** Fetches what the list shows; a lost connection calls it again. */
  const refresh = async () => {
    const options = { quiet: true, resend: true };
    const [info, agents, list] = await Promise.all([
      rpc.request("gateway/info", {}, options),
      rpc.request("agents/list", {}, options),
      rpc.request("session/list", { watch: true }, options),
    ]);
    if (isOther(info)) {
      startAfresh(isLeft || state.connection.waiting > 0);
      return;
    }
    const wasKept = readAt !== null;
    readAt = null;
    const connection = { ...state.connection, readAt };
    set({ info, agents: agents.agents ?? [], listed: true, wasSignedIn: true, more: list.more ?? 0, connection });
    setSessions(new Map((list.sessions ?? []).map((/** @type {Session} */ session) => [session.id, session])));
    if (wasKept) updateCurrent();
    keepList();
  };

  /** Fetches the agents again, which change with the nodes. */
  const refreshAgents = async () => {
    const answer = await rpc.request("agents/list", {}, { quiet: true }).catch(() => null);
    if (answer !== null) set({ agents: answer.agents ?? [] });
  };

  const onState = (/** @type {ConnectionState} */ connection) => {
    set({ connection: { ...connection, readAt } });
    if (connection.phase === "refused") {
      void keeper?.forget();
      opened.actions.forgetCopy();
    }
    if (connection.phase !== "connected" || connection.line === line) return;
    line = connection.line;
    opened.connected();
    refresh().catch((error) => {
      if (error.code !== "lost") toast("error", error.message);
    });
  };

  const onNotification = (/** @type {string} */ method, /** @type {any} */ params) => {
    if (method === "session/changed") setSession(params.session);
    else if (method === "session/removed") dropSession(params.sessionId);
    else {
      if (method === "session/status_changed") {
        const session = state.sessions.get(params.sessionId);
        const { status, exitReason = null } = params;
        if (session) setSession({ ...session, status, exitReason });
      }
      opened.onNotification(method, params);
    }
  };

  return {
    /** @returns {State} */
    get state() {
      return state;
    },
    onState,
    onNotification,
    /** The `isOther` that createRpc takes. @param {any} info */
    isOther: (info) => {
      const is = isOther(info);
      isLeft ||= is && state.connection.waiting > 0;
      return is;
    },
    refresh,
    showKept,
    keepList,
    refreshAgents,
    toast,

    /**
     * Calls a function after changes.
     * @param {(state: State) => void} listener
     * @returns {() => void} ends it.
     */
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },

    /** @param {number} id */
    dismiss(id) {
      set({ toasts: state.toasts.filter((one) => one.id !== id) });
    },

    /**
     * Starts a session and opens it.
     * @param {{agentType?: string, cwd?: string, title?: string}} options
     * @returns {Promise<string>} its id.
     */
    async newSession(options) {
      const { sessionId } = await rpc.request("session/new", options, { timeout: 60_000 });
      opened.open(sessionId);
      return sessionId;
    },

    /**
     * Takes a session out of the list, or puts it back.
     * @param {string} sessionId
     * @param {boolean} [archived]
     */
    async archive(sessionId, archived = true) {
      await rpc.request("session/archive", { sessionId, archived });
      const session = state.sessions.get(sessionId);
      if (session) setSession({ ...session, archived });
    },

    /**
     * Has the agent make a second session with the history of the open one.
     * @returns {Promise<string>} its id.
     */
    fork: async () => (await rpc.request("session/fork", { sessionId: state.current?.id }, { timeout: 60_000 })).sessionId,

    /** @param {string} title - of the open session. */
    async rename(title) {
      const sessionId = state.current?.id ?? "";
      await rpc.request("session/set_title", { sessionId, title });
      const session = state.sessions.get(sessionId);
      if (session) setSession({ ...session, title });
    },

    /** @param {string} sessionId */
    async remove(sessionId) {
      await rpc.request("session/delete", { sessionId });
      dropSession(sessionId);
    },

    /**
     * Lists sessions that only an agent has on its disk; it is started for that.
     * @param {string} agentType
     * @param {string} [cursor] - where the page before it has ended.
     */
    diskSessions: (agentType, cursor) => rpc.request("agents/sessions", { agentType, ...(cursor && { cursor }) }, { quiet: true }),

    /**
     * Opens a session of an id that several agents have on their disks; from now on the id stands for it.
     * @param {string} sessionId
     * @param {string} agentType
     */
    openOnDisk: (sessionId, agentType) => rpc.request("session/get", { sessionId, agentType, limit: 1 }, { quiet: true }),

    /**
     * Finds sessions by their texts.
     * @param {string} words
     * @returns {Promise<{found: {sessionId: string, seq: number, text: string, marks: [number, number][]}[], complete: boolean}>}
     */
    search: (words) => rpc.request("session/search", { words }, { quiet: true }),

    /**
     * Finds the last places of the open session before an update, the last one first.
     * @param {string} words
     * @param {number} [before]
     * @returns {Promise<{found: {seq: number, text: string, marks: [number, number][]}[], more: boolean}>}
     */
    searchHere: (words, before) =>
      rpc.request("session/search", { sessionId: state.current?.id, words, ...(before && { before }) }, { quiet: true }),

    /**
     * Returns the last line of live sessions.
     * @param {string[]} sessionIds
     * @returns {Promise<{lines: Record<string, string>}>}
     */
    lastLines: (sessionIds) => rpc.request("session/last", { sessionIds }, { quiet: true }),

    /**
     * Loads older updates of the open session until one is there, or no more come.
     * @param {number} seq
     * @returns {Promise<number|null>} the number of the first one that is there; null if the session was closed.
     */
    reach: async (seq) => {
      const id = state.current?.id;
      for (let tried = 0; state.current !== null && state.current.id === id; ) {
        const { older, transcript } = state.current;
        if (older === "loading") await changed();
        else if (transcript.firstSeq <= seq || older !== "more" || transcript.firstSeq === tried) return transcript.firstSeq;
        else {
          tried = transcript.firstSeq;
          await opened.actions.loadOlder();
        }
      }
      return null;
    },

    /**
     * Has the gateway write the open session as a file.
     * @param {{format: string, redact: boolean}} options
     * @returns {Promise<{name: string, mimeType: string, text: string}>}
     */
    exportSession: ({ format, redact }) =>
      rpc.request("session/export", { sessionId: state.current?.id, format, redact }, { timeout: 120_000 }),

    /**
     * Makes a link for a guest to the open session.
     * @param {{observe?: boolean}} [options]
     * @returns {Promise<{link: string, expires: string|null}>}
     */
    share: ({ observe = true } = {}) => rpc.request("session/share", { sessionId: state.current?.id, observe }),
    ...opened.actions,
  };
}

/** @param {any} info - of gateway/info. @returns {string} the same for the same identity, and guest of a session. */
function personOf({ identity, session = null }) {
  return JSON.stringify([identity, session]);
}

/**
 * Returns the `frame` of a window: before its next frame, or after a second where frames rest because the page is
 * hidden.
 * @param {Window} window
 * @returns {(callback: () => void) => void}
 */
export function frameOf(window) {
  return (callback) => {
    let called = false;
    const once = () => {
      if (called) return;
      called = true;
      window.clearTimeout(timer);
      callback();
    };
    const timer = window.setTimeout(once, 1000);
    window.requestAnimationFrame(once);
  };
}
