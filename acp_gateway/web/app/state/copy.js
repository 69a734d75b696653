/**
 * A copy of the open session's transcript for the next load of the page, so that a reload fetches only what is missing.
 *
 * It lies in the storage of the tab, which ends with the tab. There is none of a transcript that is too long: without
 * its beginning it would lack states, such as the commands.
 */

/** Longest copy in characters: browsers keep about five million for a page. */
const LONGEST = 2_000_000;

/**
 * @typedef {{sessionId: string, epoch: string, older: string, states: any[], updates: any[]}} Copy - `states` are the
 *   payloads that count before the first update.
 */

/**
 * Creates the keeper of the copy.
 * @param {{getItem: (key: string) => string|null, setItem: (key: string, value: string) => void,
 *   removeItem: (key: string) => void}|null} storage
 * @param {string} [name] - in the storage.
 */
export function createCopy(storage, name = "transcript") {
  /** Texts of the updates; null if there is no transcript, or too much of it. @type {string[]|null} */
  let texts = null;
  let length = 0;
  let head = { sessionId: "", epoch: "", older: "none", states: /** @type {any[]} */ ([]) };

  const forget = () => {
    texts = null;
    try {
      storage?.removeItem(name);
    } catch {
      // The browser keeps nothing.
    }
  };

  /** Adds updates behind those that are held. @param {any[]} updates @param {string} [epoch] - of all from now on. */
  const add = (updates, epoch = head.epoch) => {
    if (texts === null || storage === null) return;
    head.epoch = epoch;
    for (const update of updates) {
      const text = JSON.stringify(update);
      texts.push(text);
      length += text.length;
      if (length > LONGEST) {
        texts = null;
        return;
      }
    }
  };

  const text = () =>
    texts === null || head.epoch === "" ? null : `${JSON.stringify(head).slice(0, -1)},"updates":[${texts.join(",")}]}`;

  return {
    forget,
    add,

    /** Begins with another transcript. @param {Copy} copy */
    begin: ({ updates, ...rest }) => {
      head = { ...rest };
      texts = [];
      length = JSON.stringify(rest.states).length;
      add(updates);
    },

    /** Ends the copy: its session is closed, or its history was replaced. */
    end: () => {
      texts = null;
    },

    /** The copy as JSON; null if there is none. */
    text,

    /** Writes the copy, if there is one: the page is about to go. */
    save: () => {
      const whole = text();
      if (whole === null) return;
      try {
        storage?.setItem(name, whole);
      } catch {
        forget(); // There is no room for it.
      }
    },

    /**
     * Returns the copy that an earlier load of the page has left, once.
     * @param {string} sessionId
     * @returns {Copy|null} null if there is none of this session.
     */
    take: (sessionId) => {
      try {
        const copy = JSON.parse(storage?.getItem(name) ?? "null");
        storage?.removeItem(name);
        const fits = copy?.sessionId === sessionId && Array.isArray(copy.states) && Array.isArray(copy.updates);
        return fits ? copy : null;
      } catch {
        return null; // The browser keeps nothing, or another version has written it.
      }
    },
  };
}
