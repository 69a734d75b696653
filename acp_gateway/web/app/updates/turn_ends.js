/** Ends of turns: entries of a history that stand behind the update of their number. */
import { isObject } from "./content.js";
import { oneLine, plain, sentence, timeOf } from "../text/format.js";

/** The type of these entries. */
export const TURN_END = "turn_end";

/** Reasons for which a turn ends that people should know. */
const STOPS = new Map([
  ["max_tokens", "The agent stopped: it has used all its tokens."],
  ["max_turn_requests", "The agent stopped: it has made as many requests as a turn may have."],
  ["refusal", "The agent refused to go on."],
  ["cancelled", "Stopped."],
]);

/**
 * @typedef {{seq: number, nth: number, at: number|null, stopReason: string|null, error: string|null}} End - `nth` counts
 *   the ends behind one update, `error` is the message of a failure.
 */

/**
 * Reads an entry; null if it is known already, or behind an update that is not.
 * @param {any} entry
 * @param {{lastSeq: number, end: End|null}} transcript
 * @returns {End|null}
 */
export function nextEnd({ seq, nth = 1, payload, createdAt }, { lastSeq, end }) {
  if (seq !== lastSeq || (end !== null && end.seq === seq && nth <= end.nth) || !isObject(payload)) return null;
  const error = isObject(payload.error) ? plain(payload.error.message) || "an error without a message" : null;
  return { seq, nth, at: timeOf(createdAt), stopReason: plain(payload.stopReason) || null, error };
}

/**
 * What people are told of an end; empty for a turn that was done.
 * @param {{stopReason: string|null, error: string|null}} end
 */
export function endText({ stopReason, error }) {
  if (error !== null) return sentence(error);
  if (stopReason === null || stopReason === "end_turn") return "";
  return STOPS.get(stopReason) ?? `The turn has ended: ${oneLine(stopReason, 60)}.`;
}
