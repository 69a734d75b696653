/** Texts in a storage of the browser. It may keep nothing for this page, or no more: neither is an error. */

/** Age in ms at which what the browser keeps is of no use any more. */
export const OLDEST = 30 * 24 * 3600 * 1000;

/**
 * Returns a storage; null if the browser keeps nothing for this page.
 * @param {() => Storage} find
 * @returns {Storage|null}
 */
export function storageOf(find) {
  try {
    const storage = find();
    storage.getItem("");
    return storage;
  } catch {
    return null;
  }
}

/**
 * Returns a text; null if there is none.
 * @param {Pick<Storage, "getItem">|null} storage
 * @param {string} name
 */
export function read(storage, name) {
  try {
    return storage?.getItem(name) ?? null;
  } catch {
    return null;
  }
}

/**
 * Keeps a text, or removes it where `text` is null.
 * @param {Pick<Storage, "setItem">|null} storage
 * @param {string} name
 * @param {string|null} text
 */
export function keep(storage, name, text) {
  try {
    if (text === null) /** @type {Storage|null} */ (storage)?.removeItem(name);
    else storage?.setItem(name, text);
  } catch {
    // There is no room: it holds until the page is closed.
  }
}
