/**
 * Keeps a WebSocket to the gateway open: it is opened again whenever it is lost.
 *
 * A connection in doubt is not closed: another one is opened beside it, and the one that answers first carries on.
 */

/**
 * @typedef {"connecting"|"connected"|"away"|"refused"|"ended"} Phase
 *   away: lost or silent, another one is being opened; refused: sign in first; ended: closed by `close`.
 * @typedef {{phase: Phase, since: number, reason: string|null, line: number}} LinkState
 *   `since` in ms since 1970; `line` is the number of the connection: what was followed on another one has to be asked
 *   for again.
 * @typedef {object} Line - a connection.
 * @property {WebSocket} socket
 * @property {boolean} opened
 * @property {number} at - time in ms since 1970 at which it was dialed.
 * @property {Map<number, import("./rpc.js").Entry>} sent - requests without an answer.
 * @property {(reason: string) => void} gone - gives it up.
 */

/**
 * Times, in ms, in which connections must open, in turn: a browser opens one at a time, and one that was begun before the
 * network was back may take long to notice; but on a slow network each needs time.
 */
const OPEN_TIMEOUTS = [2500, 2500, 5000, 10_000];
/** Time, in ms, in which the first connection must open, and one beside another. */
const FIRST_OPEN_TIMEOUT = 10_000;
/** First and longest pause, in ms, before the connection is opened again; longest one while the page is hidden. */
const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 1500;
const LONGEST_HIDDEN_PAUSE = 30_000;
/** Time, in ms, after which a silent connection counts as away. */
const SILENCE = 2000;
const NO_ANSWER = "The gateway does not answer.";

/**
 * Creates a link; `connect` opens its connection.
 * @param {object} options
 * @param {() => WebSocket} options.open - makes a WebSocket.
 * @param {() => Promise<"ok"|"refused">} options.check - asked after a connection that never opened.
 * @param {() => boolean} options.isHidden - true while the page is hidden.
 * @param {(line: Line) => boolean} options.expects - whether the gateway is going to say something: the connection is
 *   probed then.
 * @param {(line: Line) => void} options.probe - asks the gateway for a sign of life, and calls `probed` and `answered`.
 * @param {(state: LinkState, before: LinkState) => void} options.onState
 * @param {(line: Line) => void} options.onOpen - the state was told before.
 * @param {(line: Line, text: string) => void} options.onText
 * @param {(line: Line) => void} options.onLost - the connection is closed, or another one has taken over.
 * @param {{setTimeout: Function, clearTimeout: Function}} options.timers
 * @param {() => number} options.random - from 0 to 1.
 * @param {() => number} options.clock - ms since 1970.
 * @param {number} [options.longestPause] - in ms, before the connection is opened again.
 */
export function createLink({
  open,
  check,
  isHidden,
  expects,
  probe,
  onState,
  onOpen,
  onText,
  onLost,
  timers,
  random,
  clock,
  longestPause = LONGEST_PAUSE,
}) {
  /** @type {LinkState} */
  let state = { phase: "connecting", since: clock(), reason: null, line: 0 };
  /** The connection, open or being opened. @type {Line|null} */
  let line = null;
  /** The one that is being opened beside it, while it is in doubt. @type {Line|null} */
  let rival = null;
  const suspicion = new Suspicion();
  let failures = 0;
  /** Counts connections and checks, so that the answer of an old check is known. */
  let checks = 0;
  /** Timers by what they are for. @type {{next: any, rival: any, probe: any, doubt: any, silence: any}} */
  const running = { next: null, rival: null, probe: null, doubt: null, silence: null };

  const setState = (/** @type {Partial<LinkState>} */ change) => {
    const before = state;
    const phase = change.phase ?? state.phase;
    state = { ...state, ...change, since: phase === state.phase ? state.since : (change.since ?? clock()) };
    onState(state, before);
  };

  const stop = (/** @type {keyof typeof running} */ name) => {
    timers.clearTimeout(running[name]);
    running[name] = null;
  };
  const start = (/** @type {keyof typeof running} */ name, /** @type {Function} */ action, /** @type {number} */ ms) => {
    stop(name);
    running[name] = timers.setTimeout(() => {
      running[name] = null;
      action();
    }, ms);
  };

  const stopAll = () => {
    for (const name of /** @type {(keyof typeof running)[]} */ (Object.keys(running))) stop(name);
  };

  /** Begins to open a connection. Throws if the browser can't make one. */
  const dial = () => {
    const socket = open();
    /** @type {Line} */
    const dialed = { socket, opened: false, at: clock(), sent: new Map(), gone: () => {} };
    dialed.gone = (reason) => {
      hangUp(dialed);
      if (dialed === line) lost(dialed, reason);
      else if (dialed === rival) dialAgain();
    };
    socket.onopen = () => {
      dialed.opened = true;
      if (dialed === line) begin(dialed);
      else takeOver(dialed);
    };
    socket.onmessage = (event) => {
      if (dialed === line && typeof event.data === "string") hear(dialed, event.data);
    };
    socket.onclose = (event) => dialed.gone(event.reason || "");
    socket.onerror = () => {}; // A close follows.
    return dialed;
  };

  const hangUp = (/** @type {Line} */ { socket }) => {
    socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
    try {
      socket.close();
    } catch {
      // It is closed.
    }
  };

  /** Opens a connection, unless there is one. */
  const connect = () => {
    if (line !== null) return;
    stop("next");
    if (state.phase === "refused" || state.phase === "ended") setState({ phase: "connecting", reason: null });
    try {
      line = dial();
    } catch (error) {
      retry(String(error));
      return;
    }
    const mine = line;
    const timeout = state.line === 0 ? FIRST_OPEN_TIMEOUT : OPEN_TIMEOUTS[failures % OPEN_TIMEOUTS.length];
    start("next", () => mine.gone(NO_ANSWER), timeout);
  };

  /** Carries on with a connection that has opened. */
  const begin = (/** @type {Line} */ dialed) => {
    line = dialed;
    failures = 0;
    checks += 1;
    stop("next");
    stop("silence");
    suspicion.heard();
    setState({ phase: "connected", reason: null, line: state.line + 1 });
    onOpen(dialed);
    watch();
  };

  const lost = (/** @type {Line} */ mine, /** @type {string} */ reason) => {
    line = rival;
    rival = null;
    stopAll();
    suspicion.heard();
    onLost(mine);
    if (state.phase === "ended") return;
    if (line !== null) {
      const next = line;
      setState({ phase: "away", reason: reason || null });
      start("next", () => next.gone(NO_ANSWER), OPEN_TIMEOUTS[0]);
      return;
    }
    retry(reason);
    if (mine.opened) return;
    checks += 1;
    const asked = checks;
    check().then(
      (verdict) => verdict === "refused" && asked === checks && state.phase === "away" && refuse(),
      () => {},
    );
  };

  const retry = (/** @type {string} */ reason) => {
    setState({ phase: "away", reason: reason || null });
    const longest = isHidden() ? LONGEST_HIDDEN_PAUSE : longestPause;
    const pause = Math.min(longest, FIRST_PAUSE * 2 ** Math.min(failures, 10));
    failures += 1;
    // Jitter: many pages lose one gateway at the same moment.
    start("next", connect, pause * (0.5 + random() / 2));
  };

  const refuse = () => {
    stop("next");
    if (line !== null) hangUp(line);
    line = null;
    setState({ phase: "refused", reason: null });
  };

  // A connection in doubt

  /** Waits until the connection is in doubt, should nothing come. */
  const look = (/** @type {Line} */ mine) => {
    const due = suspicion.dueIn(clock());
    if (due !== null) start("doubt", () => line === mine && doubt(mine), due);
    else stop("doubt");
  };

  const watch = () => {
    if (running.probe === null && isWatched()) start("probe", tick, FIRST_PROBE);
  };
  const isWatched = () => line !== null && line.opened && !isHidden() && expects(line);
  const tick = () => {
    if (!isWatched() || line === null) return;
    // Those that were sent are enough for the doubt.
    if (suspicion.probes.length < 2) probe(line);
    start("probe", tick, PROBE_PAUSE);
  };

  /** Opens another connection beside the one in doubt. */
  const doubt = (/** @type {Line} */ mine) => {
    const since = suspicion.probes[0];
    start("silence", () => line === mine && setState({ phase: "away", since }), Math.max(0, since + SILENCE - clock()));
    if (rival !== null) return;
    try {
      const dialed = dial();
      rival = dialed;
      start("rival", () => dialed.gone(""), FIRST_OPEN_TIMEOUT);
    } catch {
      dialAgain();
    }
  };

  const dialAgain = () => {
    rival = null;
    const mine = line;
    start("rival", () => mine !== null && line === mine && doubt(mine), LONGEST_PAUSE * (0.5 + random() / 2));
  };

  /** Carries on with the other connection, which has opened before the one in doubt said anything. */
  const takeOver = (/** @type {Line} */ dialed) => {
    const old = line;
    rival = null;
    stopAll();
    if (old !== null) {
      hangUp(old);
      onLost(old);
    }
    suspicion.replaced(clock());
    begin(dialed);
  };

  /** Notes that the connection lives. */
  const alive = () => {
    suspicion.heard();
    stop("doubt");
    stop("silence");
    if (rival !== null) {
      suspicion.falseAlarm(clock());
      hangUp(rival);
      rival = null;
    }
    stop("rival");
    if (state.phase === "away") setState({ phase: "connected", reason: null });
  };

  const hear = (/** @type {Line} */ mine, /** @type {string} */ text) => {
    alive();
    onText(mine, text);
    watch();
  };

  return {
    /** @returns {LinkState} */
    get state() {
      return state;
    },
    /** The connection on which requests are sent; null while there is none. @returns {Line|null} */
    get line() {
      return state.phase === "connected" ? line : null;
    },
    connect,

    /** Notes a request that was sent. @param {number} size - in characters. */
    requested: (size) => {
      suspicion.sentRequest(clock(), size);
      watch();
    },

    /** Notes a probe that was sent. @param {Line} mine */
    probed: (mine) => {
      suspicion.sent(clock());
      look(mine);
    },

    /** Notes the answer to a probe that was sent at a time in ms. @param {number} at */
    answered: (at) => suspicion.answered(clock(), at),

    /** Notes that no request is without its answer. */
    answeredAll: () => suspicion.answeredAll(),

    /** Connects at once if the connection is away, and makes sure of one that seems open: at signs of another network. */
    wake() {
      // Before the first attempt the page may still have to sign in.
      if (state.phase !== "connected" && state.phase !== "away") return;
      failures = 0;
      if (line !== null && !line.opened && clock() - line.at > FIRST_PAUSE) {
        // What was begun on the old network may take long to notice.
        hangUp(line);
        line = null;
      }
      if (line === null) connect();
      else if (line.opened) {
        suspicion.sign = true;
        if (suspicion.probes.length < 2) probe(line);
        else look(line);
      }
    },

    /** Closes the connection for good. `connect` opens it again. */
    close() {
      stopAll();
      setState({ phase: "ended", reason: null });
      for (const mine of [line, rival]) if (mine !== null) hangUp(mine);
      if (line !== null) onLost(line);
      line = rival = null;
    },
  };
}

/** Time in ms between two probes, and until the first one after a request was sent. */
const PROBE_PAUSE = 1000;
const FIRST_PROBE = 250;
/** Time in ms for the answer to the first of two probes, and to one after a sign that the network has changed. */
const PATIENCE = 1250;
const PATIENCE_AFTER_SIGN = 250;
/** Round trips that an answer may take. */
const ROUND_TRIPS = 3;
/** Time in ms for which no connection is in doubt after a false alarm. */
const REST = 10_000;
/** Characters that any connection transmits in a ms, from how many on that is considered, and the longest time for it. */
const SLOWEST = 10;
const LARGE = 16_384;
const LONGEST_UPLOAD = 60_000;
/**
 * How often the patience grows, fourfold each time, while connections that left everything unanswered replace each
 * other within `SHORT` ms: what a slow network takes long to bring must come at last.
 */
const MOST_ALARMS = 4;
const SHORT = 60_000;

/**
 * Decides when a connection that seems open is in doubt: its probes have had no answer for too long. Times are in ms since
 * 1970.
 *
 * A false alarm costs one handshake, at most one in `REST` ms; so the doubt may come early.
 */
export class Suspicion {
  /** Times of probes without an answer. @type {number[]} */
  probes = [];
  /** Duration of the last round trip. */
  roundTrip = 0;
  /** True if something tells that the network has changed: then one probe is enough. */
  sign = false;
  /** Connections without an answer that were replaced in a row, the last of them at `replacedAt`. */
  alarms = 0;
  /** True if the present connection has brought what was asked over it: the answer to a probe, or all other ones. */
  moved = false;
  replacedAt = -Infinity;
  /** Time until which there is no doubt: after a false alarm, and while much is being sent. */
  restsUntil = 0;

  /** Notes a probe. @param {number} now */
  sent(now) {
    this.probes.push(now);
  }

  /** Notes a request that was sent. @param {number} now @param {number} size - in characters. */
  sentRequest(now, size) {
    if (size < LARGE) return;
    this.restsUntil = Math.max(this.restsUntil, now + Math.min(LONGEST_UPLOAD, size / SLOWEST));
  }

  /** Notes anything that has come: the connection lives. */
  heard() {
    this.probes = [];
    this.sign = false;
  }

  /** Notes the answer to a probe that was sent at a time. @param {number} now @param {number} at */
  answered(now, at) {
    this.roundTrip = Math.max(0, now - at);
    this.moved = true;
  }

  /** Notes that all requests are answered. */
  answeredAll() {
    this.moved = true;
  }

  /** Notes a false alarm: the connection has answered before the other one. @param {number} now */
  falseAlarm(now) {
    this.restsUntil = Math.max(this.restsUntil, now + REST);
  }

  /** Notes that another connection has taken over. @param {number} now */
  replaced(now) {
    const before = now - this.replacedAt > SHORT ? 0 : this.alarms;
    this.alarms = this.moved ? 0 : Math.min(MOST_ALARMS, before + 1);
    this.moved = false;
    this.replacedAt = now;
    this.restsUntil = 0;
    this.heard();
  }

  /**
   * Returns the ms until the connection is in doubt, 0 if it is, null if it is not going to be by these probes.
   * @param {number} now
   */
  dueIn(now) {
    if (this.probes.length < (this.sign ? 1 : 2)) return null;
    const alarms = now - this.replacedAt > SHORT ? 0 : this.alarms;
    const patience = (this.sign ? PATIENCE_AFTER_SIGN : PATIENCE) * 4 ** alarms;
    const due = this.probes[0] + Math.max(patience, ROUND_TRIPS * this.roundTrip);
    return Math.max(0, due - now, this.restsUntil - now);
  }
}
