/** Keeps what is typed but not sent, and prompts that the gateway has not confirmed, for the next load of the page. */
import { keep, read } from "./kept.js";

/** Longest draft, and prompt as JSON, that is kept, in characters. */
const LONGEST = 100_000;
const DRAFT = "draft ";
const UNSENT = "unsent ";
const NOT_CONFIRMED = "The page was closed before the gateway had confirmed it.";

/** @typedef {import("./sending.js").Sending} Sending */

/**
 * Creates the keeper. No method throws: where the browser keeps nothing, or no more, nothing is kept.
 * @param {any} storage - of the browser, or null.
 */
export function createDrafts(storage) {
  const write = (/** @type {string} */ name, /** @type {string|null} */ text) => {
    if (text === null || text.length <= LONGEST) keep(storage, name, text);
  };
  const unsent = (/** @type {string} */ id) => {
    try {
      const found = JSON.parse(read(storage, UNSENT + id) ?? "[]");
      return Array.isArray(found) ? found : [];
    } catch {
      return [];
    }
  };
  const keepAll = (/** @type {string} */ id, /** @type {any[]} */ all) =>
    write(UNSENT + id, all.length === 0 ? null : JSON.stringify(all));
  const others = (/** @type {string} */ id, /** @type {{key: number, at: number}} */ { key, at }) =>
    unsent(id).filter((one) => one.key !== key || one.at !== at);

  return {
    /** @param {string} id @returns {string} the draft of a session. */
    get: (id) => read(storage, DRAFT + id) ?? "",
    /** @param {string} id @param {string} text */
    set: (id, text) => write(DRAFT + id, text === "" ? null : text),
    /** Notes a prompt that is on its way. @param {string} id @param {Sending} sending */
    sent: (id, { key, at, blocks, after }) => keepAll(id, [...others(id, { key, at }), { key, at, blocks, after }]),
    /** Forgets one: the gateway has it, or it is not wanted. @param {string} id @param {Sending} sending */
    settled: (id, sending) => keepAll(id, others(id, sending)),
    /** The prompts of a session that an earlier load of the page has left. @param {string} id @returns {Sending[]} */
    left: (id) => unsent(id).map((one) => ({ ...one, error: NOT_CONFIRMED, unsure: true })),
    /** Forgets all of them. */
    forget: () => {
      try {
        for (const name of Object.keys(storage ?? {})) {
          if (name.startsWith(DRAFT) || name.startsWith(UNSENT)) storage.removeItem(name);
        }
      } catch {
        // The browser keeps nothing.
      }
    },
  };
}
