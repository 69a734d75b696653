/** Prompts on their way: what is known of one whose answer did not come. Pure. */
import { partOf } from "../updates/content.js";

/**
 * @typedef {object} Sending - a prompt without an answer yet, or one that failed.
 * @property {number} key
 * @property {any[]} blocks - ACP content blocks.
 * @property {boolean} [steers] - it is for the turn that runs, where the agent takes it.
 * @property {object} [queue] - when it is to be sent, as the gateway reads it.
 * @property {number} at - ms since 1970.
 * @property {string|null} error
 * @property {boolean} unsure - it may have arrived, although it failed.
 * @property {number} after - the last update that was known when it was sent.
 */

/**
 * Tells whether a prompt that may have arrived is in the transcript.
 * @param {import("../updates/fold.js").Transcript} transcript
 * @param {Sending} sending
 */
export function hasArrived({ blocks }, { blocks: prompt, unsure, after }) {
  const sent = textOf(prompt.map(partOf));
  if (!unsure || sent === "") return false;
  for (let i = blocks.length - 1; i >= 0 && blocks[i].seq > after; i -= 1) {
    const { kind, sub, parts = [] } = blocks[i];
    if (kind === "user" && sub === null && textOf(parts).includes(sent)) return true;
  }
  return false;
}

/** @param {import("../updates/content.js").Part[]} parts */
function textOf(parts) {
  return parts.map((part) => (part.type === "text" ? part.text : "")).join("");
}
