/** One of the sessions that stand side by side in the store, and what is done with it beyond its transcript. */
import { createCurrent } from "./current.js";

/**
 * Creates it; no session is open at first.
 * @param {Parameters<typeof createCurrent>[0] & {changed: () => Promise<unknown>}} options - `changed` waits for the next
 *   change of the store.
 */
export function createOpenSession({ changed, ...options }) {
  const { rpc, get, setSession } = options;
  const opened = createCurrent(options);
  const id = () => get().current?.id ?? null;

  return {
    ...opened,
    id,
    actions: {
      ...opened.actions,

      /**
       * Starts a session and opens it in place of this one.
       * @param {{agentType?: string, cwd?: string, title?: string}} what
       * @returns {Promise<string>} its id.
       */
      async newSession(what) {
        const { sessionId } = await rpc.request("session/new", what, { timeout: 60_000 });
        opened.open(sessionId);
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
          const { older, transcript } = /** @type {import("./current.js").Current} */ (get().current);
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
       * Has the gateway write the session as a file.
       * @param {{format: string, redact: boolean}} how
       * @returns {Promise<{name: string, mimeType: string, text: string}>}
       */
      exportSession: ({ format, redact }) =>
        rpc.request("session/export", { sessionId: id(), format, redact }, { timeout: 120_000 }),

      /**
       * Makes a link for a guest to the session.
       * @param {{observe?: boolean}} [how]
       * @returns {Promise<{link: string, expires: string|null}>}
       */
      share: ({ observe = true } = {}) => rpc.request("session/share", { sessionId: id(), observe }),
    },
  };
}
