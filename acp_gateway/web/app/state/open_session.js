/** An open session of the store: its transcript, its questions, the prompts on their way, and the actions on it. */
import { createCopy } from "./copy.js";
import { begin, emptyTranscript, fold, prepend } from "../updates/fold.js";
import { readPorts } from "../text/ports.js";
import { hasArrived } from "./sending.js";
import { resetText, resolvedText } from "../text/words.js";

/**
 * @typedef {import("../updates/fold.js").Transcript} Transcript
 * @typedef {import("./sessions.js").Session} Session
 * @typedef {{requestId: string|number, method: string, params: any, answering: boolean, error: string|null}} Request
 * @typedef {import("./sending.js").Sending} Sending
 * @typedef {object} Current
 * @property {string} id
 * @property {"loading"|"ready"|"error"|"removed"|"unknown"} phase - loading: the transcript is not there yet; unknown:
 *   no such session exists for the page.
 * @property {string|null} error
 * @property {Session|null} session
 * @property {Transcript} transcript
 * @property {string|null} epoch
 * @property {"none"|"more"|"loading"|"cut"} older - what lies before the transcript; cut: it is lost.
 * @property {Request[]} pending - questions of the agent that are open.
 * @property {Sending[]} sending
 * @property {number} sent - key of the last prompt that was sent from here, which may have arrived since; 0 for none.
 * @property {import("./queue_order.js").Queued[]} queue - prompts that wait for the end of the turn.
 * @property {any} modes - `{availableModes, currentModeId}` or null.
 * @property {any} models - `{availableModels, currentModelId}` or null.
 * @property {any[]|null} configOptions
 * @property {any} promptCapabilities
 * @property {boolean} canFork
 * @property {{stopReason: string|null, error: {code: number, message: string}|null}|null} turn - how the last one ended.
 * @property {string} draft
 */

/** Updates that are fetched at once: the newest, then older ones as they are wanted. */
const PAGE = 5000;
/** Options of requests that only read. */
const QUIET = { quiet: true, resend: true };

/** How the disk is asked: the gateway gives git half a minute. */
const DISK = { quiet: true, timeout: 60_000 };
/** Code of the error for a session that does not exist. */
const INVALID_PARAMS = -32602;

/**
 * Creates a part of the store that deals with one of the sessions side by side; none is open at first.
 * @param {object} options
 * @param {import("./store.js").Rpc} options.rpc
 * @param {() => number} options.clock
 * @param {{getItem: (key: string) => string|null, setItem: (key: string, value: string) => void,
 *   removeItem: (key: string) => void, clear: () => void}|null} options.storage - of the tab.
 * @param {string} options.copyName - of the copy in it.
 * @param {ReturnType<typeof import("./keeper.js").createKeeper>|null} options.keeper
 * @param {ReturnType<typeof import("./drafts.js").createDrafts>} options.drafts
 * @param {(kind: "info"|"error", text: string, sessionId?: string|null) => void} options.toast
 * @param {(session: Session) => void} options.setSession
 * @param {() => Promise<unknown>} options.changed - waits for the next change of the store.
 * @param {() => import("./store.js").State} options.get
 * @param {(current: Current|null) => void} options.set
 */
export function createOpenSession({ rpc, clock, storage, copyName, keeper, drafts, toast, setSession, changed, get, set }) {
  /** Counts sessions opened and resets, so that answers that come too late are known. */
  let generation = 0;
  /** Highest number heard of in the open session. */
  let heard = 0;
  /** The generation that is being fetched. */
  let syncing = -1;
  const copy = createCopy(storage, copyName);
  let lastSending = 0;
  let lastSearch = 0;

  const current = () => /** @type {Current} */ (get().current);
  const id = () => get().current?.id ?? null;
  const isOpen = (/** @type {string} */ id) => get().current !== null && current().id === id;
  const change = (/** @type {Partial<Current>} */ part) => {
    if (get().current === null) return;
    const next = { ...current(), ...part };
    if (part.transcript) {
      const arrived = next.sending.filter((one) => hasArrived(next.transcript, one));
      for (const one of arrived) drafts.settled(next.id, one);
      if (arrived.length > 0) next.sending = next.sending.filter((one) => !arrived.includes(one));
    }
    set(next);
  };

  /** Fetches what is missing of the open session, and follows it from then on. */
  const sync = async () => {
    if (syncing === generation || get().current === null) return;
    const mine = generation;
    syncing = mine;
    try {
      // Without progress the gateway does not have what is missing.
      for (let before = -1; before !== current().transcript.lastSeq;) {
        before = current().transcript.lastSeq;
        await fetchMissing(mine);
        if (mine !== generation) return;
        if (heard <= current().transcript.lastSeq) break;
      }
      heard = current().transcript.lastSeq;
    } catch (error) {
      const { code, message } = /** @type {any} */ (error);
      // Without a connection nothing is wrong with the session: `connected` does it again.
      if (mine !== generation || code === "lost" || code === "ended") return;
      const unknown = code === INVALID_PARAMS && (current().session === null || Boolean(get().connection.readAt));
      change(unknown ? { phase: "unknown", session: null } : { phase: "error", error: message });
    } finally {
      if (syncing === mine) syncing = -1;
    }
  };

  const fetchMissing = async (/** @type {number} */ mine) => {
    const { id, epoch, transcript } = current();
    const known = transcript.lastSeq > 0 && epoch !== null ? { since: transcript.lastSeq, epoch } : {};
    const answer = await rpc.request("session/get", { sessionId: id, limit: PAGE, ...known }, QUIET);
    if (mine !== generation) return;
    const updates = answer.updates ?? [];
    const now = current();
    const replaces = answer.reset === true || (updates.length > 0 && updates[0].seq > now.transcript.lastSeq + 1);
    const kept = replaces ? emptyTranscript() : now.transcript;
    const empty = kept.lastSeq === 0;
    const [states, older] = [statesOf(answer), olderOf(answer)];
    if (empty) copy.begin({ sessionId: id, epoch: answer.epoch ?? "", older, states, updates });
    else copy.add(updates, answer.epoch ?? "");
    change({
      phase: "ready",
      error: null,
      transcript: fold(empty ? begin(kept, states) : kept, updates),
      epoch: answer.epoch ?? null,
      older: empty ? older : now.older,
      pending: (answer.pendingRequests ?? []).map((/** @type {any} */ one) => requestOf(one, now.pending)),
      ...presentOf(answer),
    });
    if (answer.session) setSession(answer.session);
  };

  const onNotification = (/** @type {string} */ method, /** @type {any} */ params) => {
    if (!isOpen(params.sessionId)) return;
    const { transcript, pending } = current();
    if (method === "session/updated") {
      const updates = params.updates ?? [];
      heard = Math.max(heard, updates[updates.length - 1]?.seq ?? 0);
      if (current().phase !== "ready") return;
      copy.add(updates);
      const next = fold(transcript, updates);
      if (next !== transcript) change({ transcript: next });
      if (next.missing !== null) void sync();
    } else if (method === "session/reset") {
      generation += 1;
      heard = 0;
      copy.end();
      change({ phase: "loading", transcript: emptyTranscript(), epoch: null, older: "none" });
      toast("info", resetText(params.movedTo), params.sessionId);
      void sync();
    } else if (method === "session/request") {
      const others = pending.filter((one) => String(one.requestId) !== String(params.requestId));
      change({ pending: [...others, requestOf(params, [])] });
    } else if (method === "session/request_resolved") {
      const known = pending.find((one) => String(one.requestId) === String(params.requestId));
      if (!known) return;
      change({ pending: pending.filter((one) => one !== known) });
      if (!known.answering) toast("info", resolvedText(params), params.sessionId);
    } else if (method === "session/queue_changed") {
      change({ queue: params.queue ?? [] });
    } else if (method === "session/status_changed") {
      const { stopReason = null, error = null, status } = params;
      if (stopReason !== null || error !== null) change({ turn: { stopReason, error } });
      else if (status === "running") change({ turn: null });
    }
  };

  /** @param {string} id */
  const open = (id) => {
    const before = get().current;
    if (before?.id === id && before.phase !== "error" && before.phase !== "unknown") return;
    close();
    generation += 1;
    heard = 0;
    const left = copy.take(id);
    if (left) copy.begin(left);
    set({
      id,
      phase: "loading",
      error: null,
      session: get().sessions.get(id) ?? null,
      transcript: left ? fold(begin(emptyTranscript(), left.states), left.updates) : emptyTranscript(),
      epoch: left?.epoch ?? null,
      older: /** @type {Current["older"]} */ (left?.older ?? "none"),
      pending: [],
      sending: drafts.left(id),
      sent: 0,
      ...presentOf({}),
      turn: null,
      draft: drafts.get(id),
    });
    if (left || !keeper) void sync();
    else void takeKept(id).then(sync);
  };

  /** Shows what was kept of the open session, unless its transcript is fetched already. */
  const takeKept = async (/** @type {string} */ id) => {
    const mine = generation;
    const kept = await keeper?.session(id);
    if (!kept || mine !== generation || syncing === mine || current().phase !== "loading") return;
    copy.begin({ sessionId: id, epoch: kept.epoch, older: kept.older, states: kept.states, updates: kept.updates });
    const transcript = fold(begin(emptyTranscript(), kept.states), kept.updates);
    change({ transcript, epoch: kept.epoch, older: kept.older });
  };

  const close = () => {
    const before = get().current;
    if (before === null) return;
    generation += 1;
    void keeper?.keepSession(before.id, copy.text());
    copy.end();
    set(null);
    rpc.request("session/unsubscribe", { sessionId: before.id }, QUIET).catch(() => {});
  };

  const send = async (/** @type {Sending} */ sending) => {
    if (get().current === null) return;
    const { id } = current();
    const others = () => current().sending.filter((one) => one.key !== sending.key);
    const after = current().transcript.lastSeq;
    change({ sending: [...others(), { ...sending, error: null, unsure: false, after }], sent: sending.key });
    drafts.sent(id, { ...sending, after });
    try {
      const queue = sending.queue ? { queue: sending.queue } : {};
      await rpc.request(sending.steers ? "session/steer" : "session/prompt", { sessionId: id, prompt: sending.blocks, ...queue });
      drafts.settled(id, sending);
      if (isOpen(id)) change({ sending: others() });
    } catch (error) {
      const { message, code } = /** @type {any} */ (error);
      const unsure = code === "lost" || code === "timeout";
      const failed = { ...sending, error: message, unsure, after };
      drafts.failed(id, failed);
      if (isOpen(id)) change({ sending: [...others(), failed] });
      else toast("error", message, id);
    }
  };

  /**
   * Runs an action of the open session; a failure becomes a toast.
   * @param {string} method
   * @param {object} params
   * @param {(answer: any) => Partial<Current>} [effect] - on the open session, if it is still the same.
   */
  const act = async (method, params, effect = () => ({})) => {
    const sessionId = get().current?.id;
    if (sessionId === undefined) return;
    try {
      const answer = await rpc.request(method, { sessionId, ...params });
      if (isOpen(sessionId)) change(effect(answer));
    } catch (error) {
      toast("error", /** @type {Error} */ (error).message, sessionId);
    }
  };

  /** Chooses one of the open session's modes or models. */
  const choose = (/** @type {string} */ method, /** @type {object} */ params, /** @type {"modes"|"models"} */ name, /** @type {object} */ chosen) =>
    act(method, params, () => (current()[name] ? { [name]: { ...current()[name], ...chosen } } : {}));

  const actions = {
    open,
    close,

    /**
     * Sends a prompt; it stays in `sending` until the gateway has it, and after a failure.
     * @param {any[]} blocks - ACP content blocks. @param {boolean} [steers] - it is for the turn that runs.
     * @param {object|null} [queue] - when it is to be sent, as the gateway reads it.
     */
    prompt: (blocks, steers = false, queue = null) => {
      lastSending = Math.max(lastSending, ...(get().current?.sending ?? []).map((one) => one.key)) + 1;
      return send({ key: lastSending, blocks, ...(steers && { steers }), ...(queue && { queue }), at: clock(), error: null, unsure: false, after: 0 });
    },

    /** Sends a failed prompt again. @param {number} key */
    retry: async (key) => {
      const failed = get().current?.sending.find((one) => one.key === key && one.error !== null);
      if (failed) await send(failed);
    },

    /** Forgets a failed prompt. @param {number} key */
    discard: (key) => {
      const sending = get().current?.sending ?? [];
      for (const one of sending) if (one.key === key && one.error !== null) drafts.settled(current().id, one);
      change({ sending: sending.filter((one) => one.key !== key || one.error === null) });
    },

    /** Stops the running turn, unless another one runs by the time that the gateway is reached. */
    cancel: () => {
      const open = get().current;
      return act("session/cancel", open?.epoch ? { epoch: open.epoch, seq: open.transcript.lastSeq } : {});
    },

    /** Changes a prompt that waits. @param {{promptId: string, action: string, text?: string, before?: string}} what */
    changeQueue: (what) => rpc.request("session/queue", { sessionId: get().current?.id, ...what }),

    /** Keeps the transcript for the next load of the page. */
    keepCopy: () => {
      copy.save();
      const { current: open } = get();
      if (open !== null) void keeper?.keepSession(open.id, copy.text());
    },

    /** Keeps nothing for the next load of the page, which may be of another person. */
    forgetCopy: () => {
      copy.forget();
      try {
        storage?.clear(); // It has remarks as well.
      } catch {
        // The browser keeps nothing.
      }
    },

    /**
     * Answers a question of the agent.
     * @param {string|number} requestId
     * @param {any} response - the result of the ACP request, such as `{outcome: {outcome: "selected", optionId}}`.
     */
    respond: async (requestId, response) => {
      if (get().current === null) return;
      const { id } = current();
      const mark = (/** @type {Partial<Request>} */ part) => {
        if (!isOpen(id)) return;
        change({ pending: current().pending.map((one) => (one.requestId === requestId ? { ...one, ...part } : one)) });
      };
      mark({ answering: true, error: null });
      try {
        await rpc.request("session/respond", { sessionId: id, requestId, response }, { resend: true });
        if (isOpen(id)) change({ pending: current().pending.filter((one) => one.requestId !== requestId) });
      } catch (error) {
        mark({ answering: false, error: /** @type {Error} */ (error).message });
      }
    },

    /**
     * Asks for the rules that may be written as a question is answered.
     * @param {string|number} requestId
     * @returns {Promise<{rules: string[], project: string}>}
     */
    rulesFor: (requestId) => rpc.request("session/rules", { sessionId: get().current?.id, requestId }),

    /** @param {string} modeId */
    setMode: (modeId) => choose("session/set_mode", { modeId }, "modes", { currentModeId: modeId }),

    /** @param {string} modelId */
    setModel: (modelId) => choose("session/set_model", { modelId }, "models", { currentModelId: modelId }),

    /** @param {string} configId @param {any} value */
    setOption: (configId, value) =>
      act("session/set_config_option", { configId, value }, (answer) =>
        Array.isArray(answer?.configOptions) ? { configOptions: answer.configOptions } : {},
      ),

    /** Fetches updates before the first one of the transcript, if there are any. */
    loadOlder: async () => {
      if (get().current?.older !== "more") return;
      const { id, transcript } = current();
      const mine = generation;
      change({ older: "loading" });
      try {
        const before = transcript.firstSeq;
        const answer = await rpc.request("session/get", { sessionId: id, before, limit: PAGE }, QUIET);
        if (mine !== generation) return;
        change({ transcript: prepend(current().transcript, answer.updates ?? []), older: olderOf(answer) });
      } catch (error) {
        if (mine !== generation) return;
        change({ older: "more" });
        toast("error", /** @type {Error} */ (error).message, id);
      }
    },

    /**
     * Finds files of the session's folder.
     * @param {string} query
     * @returns {Promise<string[]|null>} null if a later search has begun, or there is no answer.
     */
    searchFiles: async (query) => {
      lastSearch += 1;
      const mine = lastSearch;
      try {
        const answer = await rpc.request("files/list", { sessionId: get().current?.id, query, limit: 50 }, QUIET);
        return mine === lastSearch ? (answer.files ?? []) : null;
      } catch {
        return null;
      }
    },

    /** Asks for the ports of the session's agent; none without an answer. */
    ports: async () => {
      try {
        return readPorts(await rpc.request("ports/list", { sessionId: id() }, QUIET));
      } catch {
        return readPorts(null);
      }
    },

    /**
     * Asks for a link to what listens on a port.
     * @param {number} port
     * @returns {Promise<string|null>} null if there is none, which was told.
     */
    openPort: async (port) => {
      try {
        return (await rpc.request("ports/preview", { port, sessionId: id() }, QUIET)).url ?? null;
      } catch (error) {
        toast("error", /** @type {Error} */ (error).message, id());
        return null;
      }
    },

    /** Keeps what is typed but not sent. @param {string} draft */
    setDraft: (draft) => {
      if (get().current === null) return;
      change({ draft });
      drafts.set(current().id, draft);
    },

    /**
     * Starts a session and opens it in place of this one.
     * @param {{agentType?: string, cwd?: string, title?: string, worktree?: string}} what
     * @returns {Promise<string>} its id.
     */
    async newSession(what) {
      const { sessionId } = await rpc.request("session/new", what, { timeout: 120_000 });
      open(sessionId);
      return sessionId;
    },

    /**
     * Has the agent make a second session with the history of this one.
     * @returns {Promise<string>} its id.
     */
    fork: async () => (await rpc.request("session/fork", { sessionId: id() }, { timeout: 60_000 })).sessionId,

    /** @param {string} title */
    async rename(title) {
      const sessionId = id() ?? "";
      await rpc.request("session/set_title", { sessionId, title });
      const session = get().sessions.get(sessionId);
      if (session) setSession({ ...session, title });
    },

    /**
     * Finds the last places of the session before an update, the last one first.
     * @param {string} words
     * @param {number} [before]
     * @returns {Promise<{found: {seq: number, text: string, marks: [number, number][]}[], more: boolean}>}
     */
    searchHere: (words, before) =>
      rpc.request("session/search", { sessionId: id(), words, ...(before && { before }) }, { quiet: true }),

    /**
     * Loads older updates until one is there, or no more come.
     * @param {number} seq
     * @returns {Promise<number|null>} the number of the first one that is there; null if the session was closed.
     */
    reach: async (seq) => {
      const mine = id();
      for (let tried = 0; mine !== null && id() === mine; ) {
        const { older, transcript } = /** @type {Current} */ (get().current);
        if (older === "loading") await changed();
        else if (transcript.firstSeq <= seq || older !== "more" || transcript.firstSeq === tried) return transcript.firstSeq;
        else {
          tried = transcript.firstSeq;
          await actions.loadOlder();
        }
      }
      return null;
    },

    /** Asks the gateway for files. @type {import("./store.js").Rpc["request"]} */
    request: (method, params, options) => rpc.request(method, params, options),

    /**
     * Has the gateway write the session as a file.
     * @param {{format: string, redact: boolean}} how
     * @returns {Promise<{name: string, mimeType: string, text: string}>}
     */
    exportSession: ({ format, redact }) =>
      rpc.request("session/export", { sessionId: id(), format, redact }, { timeout: 120_000 }),

    /** Asks what has changed on the disk since the mark of a turn; since the first one for null. @param {number|null} mark */
    changesOnDisk: (mark) => rpc.request("session/changes", { sessionId: id(), ...(mark === null ? {} : { mark }) }, DISK),

    /** Puts a file, or some of its lines, back to the mark of a turn. @param {{mark: number|null, path: string, old: string, new: string, lines?: number[]}} what */
    undoOnDisk: ({ mark, ...what }) => rpc.request("session/undo", { sessionId: id(), ...what, ...(mark === null ? {} : { mark }) }, { timeout: DISK.timeout }),

    /**
     * Makes a link for a guest to the session.
     * @param {{observe?: boolean}} [how]
     * @returns {Promise<{link: string, expires: string|null}>}
     */
    share: ({ observe = true } = {}) => rpc.request("session/share", { sessionId: id(), observe }),
  };

  return {
    id,
    actions,
    open,
    onNotification,
    connected: () => {
      if (get().current) void sync();
    },
    /** Shows what the one who is signed in has left of the open session. */
    takeLeft: () => {
      if (get().current === null) return;
      const { id, transcript, sending } = current();
      change({ transcript, draft: drafts.get(id), sending: [...drafts.left(id), ...sending.filter(({ error }) => error === null)] });
    },
    removed: () => change({ phase: "removed", pending: [], queue: [], session: null }),
  };
}

// What the gateway answers about a session, as the page has it

/** @param {any} answer - of session/get. @returns {any[]} payloads. */
function statesOf({ states }) {
  return (states ?? []).map((/** @type {any} */ one) => one.payload);
}

/** @param {any} answer - of session/get. @returns {Current["older"]} */
function olderOf(answer) {
  if (answer.more) return "more";
  return answer.truncated ? "cut" : "none";
}

/**
 * @param {any} answer - of session/get; `{}` before it is there.
 * @returns {Pick<Current, "modes"|"models"|"configOptions"|"promptCapabilities"|"queue"|"canFork">}
 */
function presentOf({ modes = null, models = null, configOptions = null, promptCapabilities = null, queue = [], canFork = false }) {
  return { modes, models, configOptions, promptCapabilities, queue, canFork };
}

/**
 * @param {any} one - of `pendingRequests`, or the params of session/request.
 * @param {Request[]} known
 * @returns {Request}
 */
function requestOf(one, known) {
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
