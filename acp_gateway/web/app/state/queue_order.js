/** Where prompts that wait may be moved. Pure. */

/**
 * @typedef {object} Queued - a prompt that waits, as `/ws` tells it.
 * @property {string} promptId
 * @property {string} identity
 * @property {string} text
 * @property {boolean} whole
 * @property {number} attached
 * @property {string|null} createdAt
 * @property {boolean} mayChange
 * @property {boolean} mayEdit
 */

/**
 * Returns where each prompt that may be moved goes by one place.
 * @param {Queued[]} queue
 * @returns {Map<string, {up: string|null, down: string|null}>} the prompt before which to move it; `down` is empty for
 *   the end. Null where it is the first or the last of those.
 */
export function placesOf(queue) {
  const ids = queue.filter(({ mayChange }) => mayChange).map(({ promptId }) => promptId);
  return new Map(
    ids.map((id, at) => [id, { up: ids[at - 1] ?? null, down: at + 1 < ids.length ? (ids[at + 2] ?? "") : null }]),
  );
}
