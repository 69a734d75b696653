/**
 * The state of the page and what changes it, without a DOM.
 *
 * `state` is replaced at each change, its parts only if they changed; `signals` follow it once per frame at most. Open
 * sessions are followed by number: after a lost connection only what is missing is fetched.
 */
import { createDrafts } from "./drafts.js";
import { createOpenSession } from "./open_session.js";
import { createSignals } from "./signals.js";
import { assigned } from "../route/panes.js";
import { orderOf } from "./sessions.js";
import { leftText, remarksIn, unsentText } from "./unsent.js";

/**
 * @typedef {import("./sessions.js").Session} Session
 * @typedef {import("../net/rpc.js").ConnectionState} ConnectionState
 * @typedef {import("./open_session.js").Current} Current
 * @typedef {{id: number, kind: "info"|"error", text: string, at: number, sessionId: string|null}} Toast
 * @typedef {{name: string, title: string, default: boolean, workspaces: {name: string|null, path: string}[],
 *   machine?: string|null, unreachableSince?: string|null}} Agent
 * @typedef {{name: string, version: string, identity: string, role: "controller"|"observer", guest: boolean,
 *   session: string|null, mayShare: boolean, mayUseFiles?: boolean, machines?: import("../net/fleet.js").Told[]}} Info - `machines` are those that the gateway
 *   leads to, each with a connection of its own.
 * @typedef {object} State
 * @property {ConnectionState & {readAt?: number|null}} connection - `readAt`: when what is shown was read, in ms since
 *   1970, if it is not the present.
 * @property {Info|null} info
 * @property {Agent[]} agents
 * @property {Map<string, Session>} sessions
 * @property {string[]} order - ids of the sessions: what needs a person comes first.
 * @property {boolean} listed - the list has come once.
 * @property {boolean} wasSignedIn - the list has come once, or the browser keeps one: it was signed in.
 * @property {string|null} left - what the browser keeps unsent, or could not keep, once it is signed out; null for nothing.
 * @property {number} more - further sessions that the list does not have.
 * @property {number} moreThere - the same of machines.
 * @property {Current|null} current - the open session.
 * @property {Current|null} beside - another open one.
 * @property {Toast[]} toasts
 * @typedef {{request: (method: string, params?: object, options?: import("../net/rpc.js").RequestOptions) => Promise<any>,
 *   state: ConnectionState, follow?: (machines?: import("../net/fleet.js").Told[]) => void}} Rpc - `follow` gets the machines that the
 *   gateway leads to.
 */

/** Toasts that are shown: more of them would leave a phone no room. */
const MOST_TOASTS = 3;

/** Members of the state that are open sessions. @type {("current"|"beside")[]} */
const NAMES = ["current", "beside"];

/**
 * Creates the store. Its `onNotification` and `onState` are the callbacks that createRpc takes.
 * @param {object} options
 * @param {Rpc} options.rpc
 * @param {() => number} [options.clock] - ms since 1970.
 * @param {(callback: () => void) => void} [options.frame] - calls back before the next frame: see frames.js.
 * @param {{getItem: (key: string) => string|null, setItem: (key: string, value: string) => void,
 *   removeItem: (key: string) => void, clear: () => void}|null} [options.storage] - of the tab.
 * @param {any} [options.lasting] - keeps drafts; the tab's by default.
 * @param {ReturnType<typeof import("./keeper.js").createKeeper>|null} [options.keeper] - keeps what was read.
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
    left: null,
    more: 0,
    moreThere: 0,
    current: null,
    beside: null,
    toasts: [],
  };
  const signals = createSignals(state);
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
      signals.follow(state);
      for (const listener of [...listeners]) listener(state);
    });
  };

  /** Remarks on changes that the end of the sign-in has removed. */
  let remarks = 0;
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
    const others = state.toasts.filter((one) => one.text !== text || one.sessionId !== sessionId);
    set({ toasts: [...others, { id: lastToast, kind, text, at: clock(), sessionId }].slice(-MOST_TOASTS) });
  };

  const setSessions = (/** @type {Map<string, Session>} */ sessions) => {
    set({ sessions, order: orderOf(sessions) });
  };

  const setSession = (/** @type {Session} */ session) => {
    setSessions(new Map(state.sessions).set(session.id, session));
    for (const name of NAMES) {
      const open = state[name];
      if (open?.id === session.id) set({ [name]: { ...open, session } });
    }
  };

  const dropSession = (/** @type {string} */ id) => {
    const sessions = new Map(state.sessions);
    if (sessions.delete(id)) setSessions(sessions);
    for (const pane of panes) if (pane.id() === id) pane.removed();
    keepList();
  };

  const drafts = createDrafts(lasting, clock);
  const panes = NAMES.map((name) =>
    createOpenSession({
      ...{ rpc, clock, storage, keeper, drafts, toast, setSession, changed },
      copyName: name === "current" ? "transcript" : `transcript ${name}`,
      get: name === "current" ? () => state : () => ({ ...state, current: state[name] }),
      set: (open) => set({ [name]: open }),
    }),
  );

  /** Time in ms since 1970 at which the list was read that is shown; null for the present one. */
  let readAt = /** @type {number|null} */ (null);

  const updateOpen = () => {
    for (const name of NAMES) {
      const open = state[name];
      if (open === null) continue;
      // Lists are limited and lack archived sessions: what was fetched of this one is as true.
      const fetched = open.phase === "ready" ? open.session : null;
      set({ [name]: { ...open, session: state.sessions.get(open.id) ?? fetched } });
    }
  };

  const readKept = async () => {
    const kept = await keeper?.list();
    if (kept) set({ wasSignedIn: true });
    if (!kept || state.listed || state.connection.phase === "refused") return;
    readAt = kept.at;
    signedIn(kept.info);
    set({ info: kept.info, agents: kept.agents, listed: true, more: kept.more, connection: { ...state.connection, readAt } });
    setSessions(new Map(kept.sessions.map((/** @type {Session} */ session) => [session.id, session])));
    updateOpen();
  };

  let shownKept = Promise.resolve();
  /** Shows the list that was kept, until the gateway has told the present one. */
  const showKept = () => (shownKept = readKept());

  /** Shows what this person has left unsent. @param {any} info */
  const signedIn = (info) => {
    if (drafts.signedIn(personOf(info))) for (const pane of panes) pane.takeLeft();
  };

  /** Says, once, which other sessions have prompts of an earlier load of the page. */
  let isTold = false;
  const tellLeft = () => {
    const text = isTold ? null : unsentText(drafts.all().filter(({ id }) => !NAMES.some((name) => state[name]?.id === id)), state.sessions);
    isTold = true;
    if (text !== null) toast("error", text);
  };

  const keepList = () => {
    if (!state.listed || readAt !== null || state.info === null) return;
    const { info, agents, more } = state;
    void keeper?.keepList({ info, agents, more, sessions: [...state.sessions.values()] });
  };

  /** Fetches what the list shows; a lost connection calls it again. */
  const refresh = async () => {
    const options = { quiet: true, resend: true };
    const asked = ["gateway/info", "agents/list", "session/list"].map((method, i) => rpc.request(method, i === 2 ? { watch: true } : {}, options));
    const [info, agents, list] = await Promise.all(asked);
    // What is kept of machines stays until they have told theirs.
    if (info.machines?.length > 0) await shownKept;
    if (isOther(info)) {
      drafts.end();
      startAfresh(isLeft || state.connection.waiting > 0);
      return;
    }
    const wasKept = readAt !== null;
    readAt = null;
    signedIn(info);
    const connection = { ...state.connection, readAt };
    set({ info, agents: [...(agents.agents ?? []), ...ofMachines(info, state.agents)], listed: true, wasSignedIn: true, more: list.more ?? 0, connection });
    const sessions = [...(list.sessions ?? []), ...ofMachines(info, state.sessions.values())];
    setSessions(new Map(sessions.map((/** @type {Session} */ session) => [session.id, session])));
    if (wasKept) updateOpen();
    rpc.follow?.(info.machines);
    keepList();
    tellLeft();
  };

  /** Fetches the agents again, which change with the nodes. */
  const refreshAgents = async () => {
    const answer = await rpc.request("agents/list", {}, { quiet: true }).catch(() => null);
    if (answer !== null) set({ agents: [...(answer.agents ?? []), ...ofMachines(state.info, state.agents)] });
  };

  const onState = (/** @type {ConnectionState} */ connection) => {
    set({ connection: { ...connection, readAt } });
    if (connection.phase === "refused") {
      void keeper?.forget();
      remarks += remarksIn(storage);
      forgetCopy();
      set({ left: leftText(drafts.all(), drafts.unkept(), remarks, state.sessions) });
    }
    if (connection.phase !== "connected" || connection.line === line) return;
    line = connection.line;
    remarks = 0;
    for (const pane of panes) pane.connected();
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
      for (const pane of panes) pane.onNotification(method, params);
    }
  };

  /** Keeps nothing for the next load of the page, which may be of another person. */
  const forgetCopy = () => panes.forEach((pane) => pane.actions.forgetCopy());

  return {
    /** @returns {State} */
    get state() {
      return state;
    },
    /** The state as it is drawn. */
    signals,
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

    /** Shows what the machines of the gateway have told. @param {(state: State) => Partial<State>} change */
    merge: (change) => {
      const { sessions, ...rest } = change(state);
      set(rest);
      if (sessions) setSessions(sessions);
      updateOpen();
      keepList();
    },
    /** Follows the open sessions of a machine over its new connection. @param {string} machine */
    reached: (machine) => panes.forEach((pane) => pane.id()?.startsWith(`${machine}/`) && pane.connected()),
    toast,
    drafts,

    /** Removes what is typed and not sent, for good. @returns {number} the prompts among it. */
    forgetDrafts: () => {
      const prompts = drafts.all().reduce((sum, one) => sum + one.prompts, drafts.unkept().length);
      drafts.forget();
      remarks = 0;
      set({ left: null });
      return prompts;
    },
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
     * @param {string} sessionId
     * @param {boolean} [worktree] - whether its git worktree is removed too.
     */
    async remove(sessionId, worktree = false) {
      const answer = await rpc.request("session/delete", { sessionId, ...(worktree && { worktree }) }, worktree ? { timeout: 180_000 } : {});
      if (answer?.kept) toast("info", answer.kept);
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
     * Returns the last line of live sessions.
     * @param {string[]} sessionIds
     * @returns {Promise<{lines: Record<string, string>}>}
     */
    lastLines: (sessionIds) => rpc.request("session/last", { sessionIds }, { quiet: true }),

    /**
     * Opens sessions, and closes those that are not among them.
     * @param {string[]} sessionIds - at most as many as there are panes.
     */
    show(sessionIds) {
      const places = assigned(sessionIds, panes.map((pane) => pane.id()));
      panes.forEach((pane, i) => places.includes(i) || pane.actions.close());
      sessionIds.forEach((id, i) => panes[places[i]].actions.open(id));
    },

    /** The actions on each open session: on `state.current`, then on `state.beside`. */
    panes: panes.map((pane) => pane.actions),
    ...panes[0].actions,
    forgetCopy,
    keepCopy: () => panes.forEach((pane) => pane.actions.keepCopy()),
  };
}

/** @param {any} info - of gateway/info. @returns {string} the same for the same identity, and guest of a session. */
export function personOf({ identity, session = null }) {
  return JSON.stringify([identity, session]);
}

/**
 * Returns what machines have told that the gateway leads to, and tell themselves.
 * @template {{machine?: string|null}} T
 * @param {Info|null} info
 * @param {Iterable<T>} all
 * @returns {T[]}
 */
function ofMachines(info, all) {
  return [...all].filter(({ machine }) => info?.machines?.some(({ name }) => name === machine));
}
