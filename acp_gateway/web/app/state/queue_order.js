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
 * @property {"queued"|"timed"|"held"|"lost"} [state] - waits for the end of the turn, for `due`, or for a person; or may
 *   have reached the agent.
 * @property {string|null} [due]
 * @property {string|null} [why] - why it waits for a person.
 */

/** Whether a prompt waits for the end of the turn. @param {Queued} prompt */
export const isQueued = ({ state = "queued" }) => state === "queued";

/**
 * Returns where each prompt that may be moved goes by one place.
 * @param {Queued[]} queue
 * @returns {Map<string, {up: string|null, down: string|null}>} the prompt before which to move it; `down` is empty for
 *   the end. Null where it is the first or the last of those.
 */
export function placesOf(queue) {
  const ids = queue.filter((prompt) => prompt.mayChange && isQueued(prompt)).map(({ promptId }) => promptId);
  return new Map(
    ids.map((id, at) => [id, { up: ids[at - 1] ?? null, down: at + 1 < ids.length ? (ids[at + 2] ?? "") : null }]),
  );
}
