/**
 * Keeps what is typed but not sent, and prompts that the gateway has not confirmed, for the next load of the page.
 *
 * Each belongs to the identity that wrote it, and is shown to no other one: it outlasts the end of the sign-in, and is
 * removed once another identity is signed in.
 */
import { keep, OLDEST, read } from "./kept.js";

/** Longest draft, and prompt as JSON, that is kept, in characters. */
const LONGEST = 100_000;
const DRAFT = "draft ";
const UNSENT = "unsent ";
const NOT_CONFIRMED = "The page was closed or signed out before the gateway had confirmed it.";

/**
 * @typedef {import("./sending.js").Sending} Sending
 * @typedef {{id: string, prompts: number, typed: number}} Left - what is kept of a session; of a new one as "".
 */

/**
 * Creates the keeper. No method throws: where the browser keeps nothing, or no more, nothing is kept.
 * @param {any} storage - of the browser, or null.
 * @param {() => number} [clock] - ms since 1970.
 */
export function createDrafts(storage, clock = Date.now) {
  /** Who is signed in; null until that is known: then nothing is shown or kept. @type {string|null} */
  let owner = null;
  /** True once this page may keep nothing any more. */
  let isOver = false;
  /** Prompts that were sent by this load of the page, and of those the ones without confirmation, with their session. */
  const begun = new Set();
  /** @type {Map<string, {id: string, sending: Sending}>} */
  const open = new Map();
  const nameOf = (/** @type {string} */ id, /** @type {{key: number, at: number}} */ { key, at }) => `${key} ${at} ${id}`;

  const write = (/** @type {string} */ name, /** @type {any} */ value) => {
    if (isOver || owner === null) return;
    const text = value === null ? null : JSON.stringify({ owner, at: clock(), value });
    if (text === null || text.length <= LONGEST) keep(storage, name, text);
  };
  const entry = (/** @type {string} */ name) => {
    try {
      return JSON.parse(read(storage, name) ?? "null");
    } catch {
      return null;
    }
  };
  const own = (/** @type {string} */ name) => {
    const found = entry(name);
    return owner !== null && found?.owner === owner ? found.value : null;
  };
  const unsent = (/** @type {string} */ id) => {
    const found = own(UNSENT + id);
    return Array.isArray(found) ? found : [];
  };
  const keepAll = (/** @type {string} */ id, /** @type {any[]} */ all) => write(UNSENT + id, all.length === 0 ? null : all);
  const others = (/** @type {string} */ id, /** @type {{key: number, at: number}} */ { key, at }) =>
    unsent(id).filter((one) => one.key !== key || one.at !== at);
  const names = () => {
    try {
      return Object.keys(storage ?? {}).filter((name) => name.startsWith(DRAFT) || name.startsWith(UNSENT));
    } catch {
      return [];
    }
  };
  /** Removes what is too old or damaged, and what others have left, once it is known who is signed in. */
  const clean = () => {
    for (const name of names()) {
      const found = entry(name);
      const isOther = owner !== null && found?.owner !== owner;
      if (isOther || !(clock() - found?.at <= OLDEST)) keep(storage, name, null);
    }
  };
  clean();

  return {
    /**
     * Notes who is signed in. What others have left is removed, and what is too old.
     * @param {string} person
     * @returns {boolean} true if that was not known before.
     */
    signedIn: (person) => {
      const isNew = owner !== person;
      owner = person;
      if (isNew) clean();
      return isNew;
    },
    /** @param {string} id @returns {string} the draft of a session. */
    get: (id) => String(own(DRAFT + id) ?? ""),
    /** @param {string} id @param {string} text */
    set: (id, text) => write(DRAFT + id, text === "" ? null : text),
    /** Notes a prompt that is on its way. @param {string} id @param {Sending} sending */
    sent: (id, sending) => {
      const { key, at, blocks, after } = sending;
      begun.add(nameOf(id, sending));
      open.set(nameOf(id, sending), { id, sending: { ...sending, error: null } });
      keepAll(id, [...others(id, sending), { key, at, blocks, after }]);
    },
    /** Notes why one was not confirmed. @param {string} id @param {Sending} sending */
    failed: (id, sending) => {
      if (open.has(nameOf(id, sending))) open.set(nameOf(id, sending), { id, sending });
    },
    /** Forgets one: the gateway has it, or it is not wanted. @param {string} id @param {Sending} sending */
    settled: (id, sending) => {
      open.delete(nameOf(id, sending));
      keepAll(id, others(id, sending));
    },
    /** Sessions of the prompts of this load of the page that are neither confirmed nor kept, one for each. */
    unkept: () => {
      const isKept = (/** @type {any} */ { id, sending }) => unsent(id).some((one) => nameOf(id, one) === nameOf(id, sending));
      return [...open.values()].filter((one) => !isKept(one)).map(({ id }) => id);
    },
    /**
     * The prompts of a session that an earlier load of the page has left, then those that have failed in this one.
     * @param {string} id
     * @returns {Sending[]}
     */
    left: (id) => {
      const before = unsent(id).filter((one) => !begun.has(nameOf(id, one)));
      const failed = [...open.values()].filter((one) => one.id === id && one.sending.error !== null);
      return [...before.map((one) => ({ ...one, error: NOT_CONFIRMED, unsure: true })), ...failed.map(({ sending }) => sending)];
    },
    /** Counts what is kept: of who is signed in, or of all while that is not known. @returns {Left[]} */
    all: () => {
      /** @type {Map<string, Left>} */
      const found = new Map();
      for (const name of names()) {
        const kept = entry(name);
        if (kept === null || (owner !== null && kept.owner !== owner) || !(clock() - kept.at <= OLDEST)) continue;
        const id = name.slice((name.startsWith(DRAFT) ? DRAFT : UNSENT).length);
        const { prompts, typed } = found.get(id) ?? { prompts: 0, typed: 0 };
        if (name.startsWith(DRAFT)) found.set(id, { id, prompts, typed: 1 });
        else found.set(id, { id, prompts: Array.isArray(kept.value) ? kept.value.length : 0, typed });
      }
      return [...found.values()];
    },
    /** Keeps nothing from now on: another identity is signed in. */
    end: () => {
      isOver = true;
    },
    /** Removes all of them, and keeps nothing from now on. */
    forget: () => {
      isOver = true;
      open.clear();
      for (const name of names()) keep(storage, name, null);
    },
  };
}
