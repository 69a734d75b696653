/**
 * Asks the worker for the colours of code and for comparisons of long texts.
 *
 * One question is out at a time, the latest first: what was asked last is what is seen. An answer that takes too long
 * ends the worker, and the next question starts another one.
 */
import { globalTimers } from "../net/rpc.js";

/** Time in ms for an answer: a grammar may take for ever on strange code. */
const TIMEOUT = 8000;
/** Longest text, in characters, that is coloured. */
const LONGEST = 2_000_000;
/** Questions that wait; the oldest one is given up beyond it. */
const MOST_WAITING = 200;
/** Failures of the worker after which it is not started: the browser has none, or the network is gone. */
const MOST_FAILURES = 3;
/** Time in ms for which a failure counts. */
const FORGOTTEN = 60_000;

/**
 * Creates a reader.
 * @param {{create: () => Worker, timers: {setTimeout: Function, clearTimeout: Function}}} options
 */
export function createReader({ create, timers }) {
  /** @type {{message: any, resolve: (result: any) => void}[]} */
  const waiting = [];
  /** @type {{message: any, resolve: (result: any) => void, parts: any[], timer: any}|null} */
  let asked = null;
  /** @type {Worker|null} */
  let worker = null;
  let last = 0;
  let failures = 0;
  /** Called when the worker has failed. */
  let onFailure = () => {};

  const end = (/** @type {any} */ result) => {
    if (asked === null) return;
    timers.clearTimeout(asked.timer);
    const { resolve } = asked;
    asked = null;
    resolve(result);
    next();
  };

  const fail = () => {
    failures += 1;
    onFailure();
    timers.setTimeout(() => (failures -= 1), FORGOTTEN);
    worker?.terminate();
    worker = null;
    end(null);
  };

  const start = () => {
    const made = create();
    made.onmessage = ({ data }) => {
      if (asked === null || data.id !== asked.message.id) return;
      if (data.part) asked.parts.push(...data.part);
      else if (data.error !== undefined) end(null);
      else end([...asked.parts, ...data.result]);
    };
    made.onerror = fail;
    return made;
  };

  const next = () => {
    if (asked !== null || waiting.length === 0) return;
    const { message, resolve } = /** @type {any} */ (waiting.pop());
    asked = { message, resolve, parts: [], timer: timers.setTimeout(fail, TIMEOUT) };
    try {
      if (failures >= MOST_FAILURES) return end(null);
      worker ??= start();
      worker.postMessage(message);
    } catch {
      fail();
    }
  };

  /** @param {string} kind @param {any} rest @returns {Promise<any>} null without an answer. */
  const ask = (kind, rest) =>
    new Promise((resolve) => {
      last += 1;
      waiting.push({ message: { id: last, kind, ...rest }, resolve });
      if (waiting.length > MOST_WAITING) waiting.shift()?.resolve(null);
      next();
    });

  return {
    /** @param {() => void} called */
    set onFailure(called) {
      onFailure = called;
    },
    /**
     * @param {string} text
     * @param {string|null} language
     * @returns {Promise<import("./colours.js").Colours|null>}
     */
    colour: async (text, language) => {
      if (language === null || text.length > LONGEST) return null;
      return (await ask("text", { text, language }))?.[0] ?? null;
    },

    /**
     * @param {string|null} oldText
     * @param {string|null} newText
     * @param {string} language
     * @returns {Promise<import("./colours.js").Colours[]|null>} of the old text and of the new one.
     */
    colourChange: async (oldText, newText, language) => {
      if (Math.max((oldText ?? "").length, (newText ?? "").length) > LONGEST) return null;
      return ask("change", { oldText, newText, language });
    },

    /**
     * Compares two texts, as diffRows does.
     * @param {string|null} oldText
     * @param {string|null} newText
     * @param {number} context
     * @returns {Promise<import("../text/diff.js").Row[]|null>}
     */
    rows: (oldText, newText, context) => ask("rows", { oldText, newText, context }),
  };
}

/** Starts the worker. The page's policy demands an address that is marked as trusted; this marks no other one. */
function startWorker() {
  const url = new URL("./code_worker.js", import.meta.url).href;
  const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("code", { createScriptURL: () => url });
  return new Worker(policy ? policy.createScriptURL("") : url, { type: "module" });
}

export const reader = createReader({ create: startWorker, timers: globalTimers });
