/**
 * Keeps the list and what was read of sessions in this browser, so that the page shows them without the gateway.
 *
 * All of it belongs to one identity: it is removed when that one is not signed in any more. What is oldest goes first
 * where there is too much.
 */
import { OLDEST } from "./kept.js";

/** Bytes that are kept at most, and of one entry. */
const MOST = 16 * 1024 * 1024;
const LONGEST = 4 * 1024 * 1024;

/** Name of the entry with the list. */
const LIST = "list";

/**
 * Creates the keeper. No method of it throws: where the browser keeps nothing, there is nothing.
 * @param {object} options
 * @param {any} options.caches - the browser's, undefined where it has none.
 * @param {string} options.base - an address below which no file of the gateway lies.
 * @param {() => number} [options.clock] - ms since 1970.
 */
export function createKeeper({ caches, base, clock = Date.now }) {
  /** What is done one after the other. @type {Promise<any>} */
  let last = Promise.resolve();
  /** The identity whose entries these are; null until it is known, and after `forget`: then nothing is kept. */
  let owner = /** @type {string|null} */ (null);

  /** True once this page may keep nothing any more. */
  let isOver = false;

  /** Name of the cache: gateways at other paths of the same host have others. */
  const cacheName = `read ${base}`;

  const addressOf = (/** @type {string} */ name) => new URL(encodeURIComponent(name), base).href;

  /** @template T @param {() => Promise<T>} work @returns {Promise<T|null>} */
  const next = (work) => {
    if (!caches) return Promise.resolve(null);
    last = last.then(work).catch(() => null);
    return last;
  };

  const read = async (/** @type {string} */ name) => {
    const found = await (await caches.open(cacheName)).match(addressOf(name));
    if (!found || clock() - Number(found.headers.get("kept-at")) > OLDEST) return null;
    return { at: Number(found.headers.get("kept-at")), ...(await found.json()) };
  };

  const write = async (/** @type {string} */ name, /** @type {string} */ text) => {
    const body = new Blob([text]);
    const cache = await caches.open(cacheName);
    const address = addressOf(name);
    if (body.size > LONGEST) {
      await cache.delete(address);
      return;
    }
    // The former entry stays until this one replaces it: the page may end in between.
    const entries = [];
    for (const request of await cache.keys()) {
      if (request.url === address) continue;
      const { headers } = await cache.match(request);
      entries.push({ request, at: Number(headers.get("kept-at")), size: Number(headers.get("kept-size")) });
    }
    let size = body.size + entries.reduce((sum, entry) => sum + entry.size, 0);
    for (const entry of entries.sort((a, b) => a.at - b.at)) {
      // Without the list, nothing is shown of the rest.
      if (entry.request.url === addressOf(LIST) || (size <= MOST && clock() - entry.at <= OLDEST)) continue;
      await cache.delete(entry.request);
      size -= entry.size;
    }
    const headers = { "kept-at": String(clock()), "kept-size": String(body.size) };
    await cache.put(address, new Response(body, { headers }));
  };

  /** Removes what has none of these names, such as sessions that were deleted. */
  const keepOnly = async (/** @type {string[]} */ names) => {
    const cache = await caches.open(cacheName);
    const known = new Set(names.map(addressOf));
    for (const request of await cache.keys()) if (!known.has(request.url)) await cache.delete(request);
  };

  const keep = (/** @type {string} */ name, /** @type {string} */ text) => {
    const mine = owner;
    return next(async () => (mine !== null && mine === owner ? write(name, text) : null));
  };

  return {
    /** The list as it was kept: `{at, info, agents, sessions, more}`, or null. */
    list: () => next(() => read(LIST)),

    /** The copy of a session's transcript, as copy.js has it, or null. @param {string} id */
    session: (id) => next(() => read(`s ${id}`)),

    /**
     * Keeps the list of who is signed in now. What another identity has left is removed first.
     * @param {{info: any, agents: any[], sessions: any[], more: number}} list
     */
    keepList: (list) => {
      if (isOver) return Promise.resolve(null);
      const mine = JSON.stringify([list.info.identity, list.info.role, list.info.session ?? null]);
      owner = mine;
      return next(async () => {
        const before = await read(LIST);
        if (before?.owner !== mine) await caches.delete(cacheName);
        if (owner !== mine) return;
        await write(LIST, JSON.stringify({ ...list, owner: mine }));
        if (list.more === 0) await keepOnly([LIST, ...list.sessions.map(({ id }) => `s ${id}`)]);
      });
    },

    /** Keeps the copy of a session. @param {string} id @param {string|null} text - JSON; null for none. */
    keepSession: async (id, text) => (text === null ? null : keep(`s ${id}`, text)),

    /**
     * Removes all, and keeps nothing until the next list.
     * @param {boolean} [forGood] - nor after it, in this page: it was signed out.
     */
    forget: (forGood = true) => {
      owner = null;
      isOver ||= forGood;
      return next(() => caches.delete(cacheName));
    },
  };
}
