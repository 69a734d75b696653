/**
 * JSON-RPC client on a WebSocket that is opened again whenever it is lost.
 *
 * Requests made while there is no connection wait, within limits, and are sent in order. A request that was sent when
 * the connection broke is sent again only if it says that this does no harm; otherwise it fails, and its effect is
 * unknown.
 */

/**
 * @typedef {"connecting"|"connected"|"away"|"refused"|"ended"} Phase
 *   away: lost, to be opened again; refused: sign in first; ended: closed by `close`.
 * @typedef {{phase: Phase, since: number, waiting: number, reason: string|null}} ConnectionState
 *   `since` in ms since 1970; `waiting` counts the requests of a person that wait for a connection.
 * @typedef {{resend?: boolean, timeout?: number, quiet?: boolean}} RequestOptions
 * @typedef {object} Entry
 * @property {number} id
 * @property {string} text
 * @property {boolean} resend
 * @property {boolean} quiet
 * @property {number} timeout
 * @property {any} timer
 * @property {(result: any) => void} resolve
 * @property {(error: RpcError) => void} reject
 */

/** Time, in ms, in which a sent request must be answered. */
const TIMEOUT = 30_000;
/** Time, in ms, in which a connection must open. */
const OPEN_TIMEOUT = 10_000;
/** Time, in ms, in which a connection must answer after the page was asleep. */
const PROBE_TIMEOUT = 5_000;
/** First and longest pause, in ms, before the connection is opened again. */
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 30_000;
/** Requests that wait for a connection, and characters of them. */
const MOST_WAITING = 100;
const MOST_WAITING_SIZE = 32 * 1024 * 1024;

/** The browser's timers, which must be called as its own. */
const globalTimers = {
  setTimeout: (/** @type {() => void} */ action, /** @type {number} */ ms) => setTimeout(action, ms),
  clearTimeout: (/** @type {any} */ timer) => clearTimeout(timer),
};

/** Failure of a request: a JSON-RPC error, or the connection's ("lost", "timeout", "full", "ended"). */
export class RpcError extends Error {
  /**
   * @param {number|"lost"|"timeout"|"full"|"ended"} code
   * @param {string} message
   * @param {any} [data]
   */
  constructor(code, message, data = null) {
    super(message);
    this.name = "RpcError";
    this.code = code;
    this.data = data;
  }
}

/**
 * Creates a client; `connect` opens its connection.
 * @param {object} options
 * @param {() => WebSocket} options.open - makes a WebSocket.
 * @param {(method: string, params: any) => void} [options.onNotification]
 * @param {(state: ConnectionState) => void} [options.onState] - called at each change of state.
 * @param {() => Promise<"ok"|"refused">} [options.check] - asked after a connection that never opened: a browser does not
 *   tell a page that the gateway refused it. A failure counts as "ok": try again.
 * @param {{setTimeout: Function, clearTimeout: Function}} [options.timers]
 * @param {() => number} [options.random] - from 0 to 1.
 * @param {() => number} [options.clock] - ms since 1970.
 */
export function createRpc({
  open,
  onNotification = () => {},
  onState = () => {},
  check = async () => "ok",
  timers = globalTimers,
  random = Math.random,
  clock = Date.now,
}) {
  /** @type {ConnectionState} */
  let state = { phase: "connecting", since: clock(), waiting: 0, reason: null };
  /** @type {WebSocket|null} */
  let socket = null;
  /** @type {Entry[]} */
  let queue = [];
  let queueSize = 0;
  /** @type {Map<number, Entry>} */
  const sent = new Map();
  let lastId = 0;
  let failures = 0;
  /** Counts the checks, so that the answer of an old one is known. */
  let checks = 0;
  /** Timer of the next attempt, or of the current one. @type {any} */
  let timer = null;

  const setState = (/** @type {Partial<ConnectionState>} */ change) => {
    const phase = change.phase ?? state.phase;
    const since = phase === state.phase ? state.since : clock();
    const next = { ...state, ...change, since, waiting: queue.filter(({ quiet }) => !quiet).length };
    const same = next.phase === state.phase && next.waiting === state.waiting && next.reason === state.reason;
    state = next;
    if (!same) onState(state);
  };

  const setTimer = (/** @type {Function} */ action, /** @type {number} */ ms) => {
    timers.clearTimeout(timer);
    timer = timers.setTimeout(action, ms);
  };

  /** Opens a connection, unless there is one. */
  const connect = () => {
    if (socket !== null) return;
    timers.clearTimeout(timer);
    if (state.phase === "refused" || state.phase === "ended") setState({ phase: "connecting", reason: null });
    let opened = false;
    /** @type {WebSocket} */
    let mine;
    try {
      mine = open();
    } catch (error) {
      retry(String(error));
      return;
    }
    socket = mine;
    const gone = (/** @type {string} */ reason) => {
      if (socket !== mine) return;
      socket = null;
      mine.onopen = mine.onmessage = mine.onclose = mine.onerror = null;
      try {
        mine.close();
      } catch {
        // It is closed.
      }
      lost(opened, reason);
    };
    lose = gone;
    mine.onopen = () => {
      opened = true;
      failures = 0;
      timers.clearTimeout(timer);
      const waiting = queue;
      queue = [];
      queueSize = 0;
      setState({ phase: "connected", reason: null });
      waiting.forEach(transmit);
    };
    mine.onmessage = (event) => {
      if (socket === mine && typeof event.data === "string") receive(event.data);
    };
    mine.onclose = (event) => gone(event.reason || "");
    mine.onerror = () => {}; // A close follows.
    setTimer(() => gone("The gateway does not answer."), OPEN_TIMEOUT);
  };

  /** Gives up the current connection. @type {(reason: string) => void} */
  let lose = () => {};

  /**
   * @param {boolean} opened
   * @param {string} reason
   */
  const lost = (opened, reason) => {
    timers.clearTimeout(timer);
    const entries = [...sent.values()];
    sent.clear();
    const again = entries.filter((entry) => entry.resend);
    for (const entry of entries) timers.clearTimeout(entry.timer);
    queue = [...again, ...queue];
    queueSize = queue.reduce((size, entry) => size + entry.text.length, 0);
    for (const entry of entries) {
      if (!entry.resend) entry.reject(new RpcError("lost", "The connection was lost before the answer came."));
    }
    if (state.phase === "ended") return;
    if (opened) {
      retry(reason);
      return;
    }
    setState({ phase: state.phase === "connecting" ? "connecting" : "away" });
    checks += 1;
    const mine = checks;
    const then = (/** @type {Function} */ action) => {
      if (mine !== checks || socket !== null || state.phase === "ended") return;
      checks += 1;
      action();
    };
    setTimer(() => then(() => retry(reason)), OPEN_TIMEOUT);
    check().then(
      (verdict) => then(() => (verdict === "refused" ? refuse() : retry(reason))),
      () => then(() => retry(reason)),
    );
  };

  const retry = (/** @type {string} */ reason) => {
    setState({ phase: "away", reason: reason || null });
    const pause = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** Math.min(failures, 10));
    failures += 1;
    // Jitter: many pages lose one gateway at the same moment.
    setTimer(connect, pause * (0.5 + random() / 2));
  };

  const refuse = () => {
    timers.clearTimeout(timer);
    const entries = queue;
    queue = [];
    queueSize = 0;
    setState({ phase: "refused", reason: null });
    for (const entry of entries) entry.reject(new RpcError("ended", "The gateway asks you to sign in."));
  };

  const transmit = (/** @type {Entry} */ entry) => {
    sent.set(entry.id, entry);
    entry.timer = timers.setTimeout(() => {
      if (!sent.delete(entry.id)) return;
      entry.reject(new RpcError("timeout", "The gateway did not answer in time."));
    }, entry.timeout);
    /** @type {WebSocket} */ (socket).send(entry.text);
  };

  const receive = (/** @type {string} */ text) => {
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return;
    }
    if (typeof message !== "object" || message === null) return;
    if (typeof message.method === "string") {
      if (message.id === undefined) onNotification(message.method, message.params ?? {});
      else {
        const error = { code: -32601, message: "The page serves no requests." };
        socket?.send(JSON.stringify({ jsonrpc: "2.0", id: message.id, error }));
      }
      return;
    }
    const entry = sent.get(message.id);
    if (!entry) return;
    sent.delete(message.id);
    timers.clearTimeout(entry.timer);
    if (message.error === undefined) entry.resolve(message.result);
    else {
      const { code, message: text = "", data } = message.error ?? {};
      entry.reject(new RpcError(code, String(text) || `error ${code}`, data));
    }
  };

  /**
   * Sends a request, as soon as there is a connection.
   * @param {string} method
   * @param {object} [params]
   * @param {RequestOptions} [options] - `resend`: send it again if the connection breaks before the answer;
   *   `timeout` in ms, from sending; `quiet`: not counted as waiting.
   * @returns {Promise<any>} the result; fails with an RpcError.
   */
  const request = (method, params = {}, { resend = false, timeout = TIMEOUT, quiet = false } = {}) =>
    new Promise((resolve, reject) => {
      lastId += 1;
      const text = JSON.stringify({ jsonrpc: "2.0", id: lastId, method, params });
      /** @type {Entry} */
      const entry = { id: lastId, text, resend, quiet, timeout, timer: null, resolve, reject };
      if (state.phase === "connected" && socket !== null) transmit(entry);
      else if (state.phase === "refused" || state.phase === "ended") {
        reject(new RpcError("ended", "There is no connection to the gateway."));
      } else if (queue.length >= MOST_WAITING || queueSize + text.length > MOST_WAITING_SIZE) {
        reject(new RpcError("full", "Too much waits for the connection already."));
      } else {
        queue.push(entry);
        queueSize += text.length;
        setState({});
      }
    });

  return {
    /** @returns {ConnectionState} */
    get state() {
      return state;
    },
    connect,
    request,

    /**
     * Connects at once if the connection is away, and makes sure of one that seems open: for the event `online`, and
     * for a page that becomes visible.
     */
    wake() {
      if (state.phase === "away") {
        failures = 0;
        connect();
      } else if (state.phase === "connected") {
        const doubtful = lose;
        request("gateway/info", {}, { timeout: PROBE_TIMEOUT }).catch((error) => {
          if (error.code === "timeout") doubtful("The connection had died.");
        });
      }
    },

    /** Closes the connection for good; requests that wait or were sent fail. `connect` opens it again. */
    close() {
      timers.clearTimeout(timer);
      setState({ phase: "ended", reason: null });
      lose("");
      const entries = queue;
      queue = [];
      queueSize = 0;
      setState({});
      for (const entry of entries) entry.reject(new RpcError("ended", "The connection was closed."));
    },
  };
}
