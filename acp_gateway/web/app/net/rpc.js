/**
 * JSON-RPC client on a link to the gateway.
 *
 * Requests made while there is no connection wait, within limits, and are sent in order. A request that was sent when
 * the connection broke is sent again if it says that this does no harm, or if the gateway still knows this page: then it
 * carries out a request that it has had already only once. Otherwise the request fails, and its effect is unknown.
 */
import { sizeText } from "../text/format.js";
import { createLink } from "./link.js";

/**
 * @typedef {import("./link.js").Line} Line
 * @typedef {import("./link.js").LinkState & {waiting: number}} ConnectionState
 *   `waiting` counts the requests of a person that wait for a connection.
 * @typedef {{resend?: boolean, timeout?: number, quiet?: boolean}} RequestOptions
 * @typedef {object} Entry
 * @property {number} id
 * @property {string} method
 * @property {string} text
 * @property {boolean} resend
 * @property {boolean} quiet
 * @property {boolean} maybe - it was sent on a connection that is gone.
 * @property {number} timeout - in ms; 0 for a probe, which ends with its connection.
 * @property {any} timer
 * @property {(result: any) => void} resolve
 * @property {(error: RpcError) => void} reject
 */

/** Time, in ms, in which a sent request must be answered. */
const TIMEOUT = 30_000;
/** Requests that wait for a connection, and characters of them. */
const MOST_WAITING = 100;
const MOST_WAITING_SIZE = 32 * 1024 * 1024;

/** The request that probes a connection. */
const PROBE = "gateway/info";

const OTHER_PERSON = "Someone else is signed in now.";

/** The browser's timers, which must be called as its own. */
export const globalTimers = {
  setTimeout: (/** @type {() => void} */ action, /** @type {number} */ ms) => setTimeout(action, ms),
  clearTimeout: (/** @type {any} */ timer) => clearTimeout(timer),
};

/** Failure of a request: a JSON-RPC error, or the connection's ("lost", "timeout", "full", "large", "ended"). */
export class RpcError extends Error {
  /**
   * @param {number|"lost"|"timeout"|"full"|"large"|"ended"} code
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
 * @param {() => boolean} [options.isBusy] - whether an answer is expected though no request is open: the connection is
 *   probed then.
 * @param {((info: any) => boolean)|null} [options.isOther] - whether gateway/info tells of another person than the one who has
 *   used this page: what that one wants is not sent then.
 * @param {() => boolean} [options.isHidden] - true while the page is hidden.
 * @param {{setTimeout: Function, clearTimeout: Function}} [options.timers]
 * @param {() => number} [options.random] - from 0 to 1.
 * @param {() => number} [options.clock] - ms since 1970.
 * @param {number} [options.longestPause] - in ms, before the connection is opened again.
 */
export function createRpc({
  open,
  onNotification = () => {},
  onState = () => {},
  check = async () => "ok",
  isBusy = () => false,
  isOther = null,
  isHidden = () => false,
  timers = globalTimers,
  random = Math.random,
  clock = Date.now,
  longestPause,
}) {
  /** @type {Entry[]} */
  let queue = [];
  let queueSize = 0;
  let lastId = 0;
  /** The largest message that the gateway takes, as it has told last. @type {{size: number, option: string}|null} */
  let limit = null;
  /** True until it is known whether requests that were sent before may be sent again. */
  let settling = false;
  /** The connection that is known to be of the person who has used the page. @type {Line|null} */
  let trusted = null;
  const isTrusted = (/** @type {Line} */ mine) => isOther === null || trusted === mine;

  const link = createLink({
    open,
    check,
    isHidden,
    expects: (line) => isBusy() || hasRequests(line),
    probe: (line) => void probe(line).catch(() => {}),
    onState: (now, before) => linkChanged(now, before),
    onOpen: (line) => flush(line),
    onText: (line, text) => receive(line, text),
    onLost: (line) => takeBack(line),
    timers,
    random,
    clock,
    longestPause,
  });

  /** @type {ConnectionState} */
  let state = { ...link.state, waiting: 0 };
  const setState = () => {
    const next = { ...link.state, waiting: queue.filter(({ quiet }) => !quiet).length };
    const names = /** @type {const} */ (["phase", "waiting", "reason", "line"]);
    const same = names.every((name) => next[name] === state[name]);
    state = next;
    if (!same) onState(state);
  };

  const linkChanged = (
    /** @type {import("./link.js").LinkState} */ now,
    /** @type {import("./link.js").LinkState} */ before,
  ) => {
    setState();
    if (now.phase === "refused") failAll("The gateway asks you to sign in.");
    // The connection that was in doubt has answered.
    const back = now.phase === "connected" && before.phase === "away" && now.line === before.line;
    if (back && !settling && link.line !== null) flush(link.line);
  };

  const setQueue = (/** @type {Entry[]} */ entries) => {
    queue = entries;
    queueSize = entries.reduce((size, entry) => size + entry.text.length, 0);
  };

  const failAll = (/** @type {string} */ why) => {
    const entries = queue;
    setQueue([]);
    setState();
    for (const entry of entries) {
      entry.reject(isUnsure(entry) ? lostError() : new RpcError("ended", why));
    }
  };

  /** Sends what waits. The gateway tells first who is signed in, and whether it would know again what was sent before. */
  const flush = (/** @type {Line} */ mine) => {
    settling = queue.some((entry) => isUnsure(entry) || (!entry.quiet && !isTrusted(mine)));
    if (!settling) {
      const waiting = queue;
      setQueue([]);
      setState();
      waiting.forEach((entry) => transmit(mine, entry));
      return;
    }
    probe(mine).then(
      (info) => {
        if (link.line !== mine) return;
        const failed = new Map();
        for (const entry of queue) {
          if (isUnsure(entry) && info?.known !== true) failed.set(entry, lostError());
          else if (!entry.quiet && !isTrusted(mine)) failed.set(entry, new RpcError("ended", OTHER_PERSON));
        }
        setQueue(queue.filter((entry) => !failed.has(entry)).map((entry) => ({ ...entry, maybe: false })));
        for (const [entry, error] of failed) entry.reject(error);
        flush(mine);
      },
      () => link.line === mine && mine.gone("The gateway does not answer."),
    );
  };

  /** Puts what was sent on a connection back in front of what waits. */
  const takeBack = (/** @type {Line} */ { sent }) => {
    for (const { timer } of sent.values()) timers.clearTimeout(timer);
    const entries = [...sent.values()].filter(({ timeout }) => timeout !== 0);
    sent.clear();
    setQueue([...entries.map((entry) => ({ ...entry, maybe: true })), ...queue].sort((a, b) => a.id - b.id));
  };

  /** Asks the gateway for a sign of life. */
  const probe = (/** @type {Line} */ mine) =>
    new Promise((resolve, reject) => {
      lastId += 1;
      const at = clock();
      const answered = (/** @type {any} */ result) => {
        link.answered(at);
        resolve(result);
      };
      const text = JSON.stringify({ jsonrpc: "2.0", id: lastId, method: PROBE, params: {} });
      const flags = { resend: false, quiet: true, maybe: false, timeout: 0 };
      transmit(mine, { id: lastId, method: PROBE, text, ...flags, timer: null, resolve: answered, reject });
      link.probed(mine);
    });

  const transmit = (/** @type {Line} */ mine, /** @type {Entry} */ entry) => {
    const size = limit === null || entry.text.length * 3 <= limit.size ? 0 : new TextEncoder().encode(entry.text).length;
    if (limit !== null && size > limit.size) {
      // It would end the connection.
      const most = `${limit.option} allows ${sizeText(limit.size)}`;
      entry.reject(new RpcError("large", `This is too large: it has ${sizeText(size)}, and ${most}.`));
      return;
    }
    mine.sent.set(entry.id, entry);
    if (entry.timeout !== 0) {
      entry.timer = timers.setTimeout(() => {
        if (!mine.sent.delete(entry.id)) return;
        entry.reject(new RpcError("timeout", "The gateway did not answer in time."));
      }, entry.timeout);
    }
    mine.socket.send(entry.text);
    link.requested(entry.text.length);
  };

  const receive = (/** @type {Line} */ mine, /** @type {string} */ text) => {
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
        mine.socket.send(JSON.stringify({ jsonrpc: "2.0", id: message.id, error }));
      }
      return;
    }
    const entry = mine.sent.get(message.id);
    if (!entry) return;
    mine.sent.delete(message.id);
    timers.clearTimeout(entry.timer);
    if (!hasRequests(mine)) link.answeredAll();
    if (entry.method === PROBE && message.error === undefined) {
      limit = message.result?.limit ?? null;
      if (!isOther?.(message.result)) trusted = mine;
    }
    if (message.error === undefined) entry.resolve(message.result);
    else {
      const { code, message: text = "", data } = message.error ?? {};
      entry.reject(data?.reason === "lost" ? lostError() : new RpcError(code, String(text) || `error ${code}`, data));
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
      const entry = { id: lastId, method, text, resend, quiet, maybe: false, timeout, timer: null, resolve, reject };
      if (link.line !== null && (quiet || (!settling && isTrusted(link.line)))) transmit(link.line, entry);
      else if (state.phase === "refused" || state.phase === "ended") {
        reject(new RpcError("ended", "There is no connection to the gateway."));
      } else if (queue.length >= MOST_WAITING || queueSize + text.length > MOST_WAITING_SIZE) {
        reject(new RpcError("full", "Too much waits for the connection already."));
      } else {
        setQueue([...queue, entry]);
        setState();
        if (link.line !== null && !settling) flush(link.line);
      }
    });

  return {
    /** @returns {ConnectionState} */
    get state() {
      return state;
    },
    connect: () => link.connect(),
    request,
    wake: () => link.wake(),

    /** Closes the connection for good; requests that wait or were sent fail. `connect` opens it again. */
    close() {
      link.close();
      failAll("The connection was closed.");
    },
  };
}

/** Tells whether requests other than probes wait for an answer. @param {Line} line */
function hasRequests({ sent }) {
  return [...sent.values()].some(({ timeout }) => timeout !== 0);
}

/** Tells whether the effect of a request is unknown. @param {Entry} entry */
function isUnsure({ maybe, resend }) {
  return maybe && !resend;
}

function lostError() {
  return new RpcError("lost", "The connection was lost before the answer came.");
}
