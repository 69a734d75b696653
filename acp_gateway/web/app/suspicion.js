/**
 * Decides when a connection that seems open is in doubt: its probes have had no answer for too long. Pure.
 *
 * A false alarm costs one handshake, at most one in `REST` ms; so the doubt may come early.
 */

/** Time in ms between two probes, and until the first one after a request was sent. */
export const PROBE_PAUSE = 1000;
export const FIRST_PROBE = 250;
/** Time in ms for the answer to the first of two probes, and to one after a sign that the network has changed. */
const PATIENCE = 1250;
const PATIENCE_AFTER_SIGN = 250;
/** Round trips that an answer may take. */
const ROUND_TRIPS = 3;
/** Time in ms for which no connection is in doubt after a false alarm. */
const REST = 10_000;
/** Characters that any connection transmits in a ms, from how many on that is considered, and the longest time for it. */
const SLOWEST = 10;
const LARGE = 16_384;
const LONGEST_UPLOAD = 60_000;
/**
 * How often the patience grows, fourfold each time, while connections that left everything unanswered replace each
 * other within `SHORT` ms: what a slow network takes long to bring must come at last.
 */
const MOST_ALARMS = 4;
const SHORT = 60_000;

/** The doubt about the present connection. Times are in ms since 1970. */
export class Suspicion {
  /** Times of probes without an answer. @type {number[]} */
  probes = [];
  /** Duration of the last round trip. */
  roundTrip = 0;
  /** True if something tells that the network has changed: then one probe is enough. */
  sign = false;
  /** Connections without an answer that were replaced in a row, the last of them at `replacedAt`. */
  alarms = 0;
  /** True if the present connection has brought what was asked over it: the answer to a probe, or all other ones. */
  moved = false;
  replacedAt = -Infinity;
  /** Time until which there is no doubt: after a false alarm, and while much is being sent. */
  restsUntil = 0;

  /** Notes a probe. @param {number} now */
  sent(now) {
    this.probes.push(now);
  }

  /** Notes a request that was sent. @param {number} now @param {number} size - in characters. */
  sentRequest(now, size) {
    if (size < LARGE) return;
    this.restsUntil = Math.max(this.restsUntil, now + Math.min(LONGEST_UPLOAD, size / SLOWEST));
  }

  /** Notes anything that has come: the connection lives. */
  heard() {
    this.probes = [];
    this.sign = false;
  }

  /** Notes the answer to a probe that was sent at a time. @param {number} now @param {number} at */
  answered(now, at) {
    this.roundTrip = Math.max(0, now - at);
    this.moved = true;
  }

  /** Notes that all requests are answered. */
  answeredAll() {
    this.moved = true;
  }

  /** Notes a false alarm: the connection has answered before the other one. @param {number} now */
  falseAlarm(now) {
    this.restsUntil = Math.max(this.restsUntil, now + REST);
  }

  /** Notes that another connection has taken over. @param {number} now */
  replaced(now) {
    const before = now - this.replacedAt > SHORT ? 0 : this.alarms;
    this.alarms = this.moved ? 0 : Math.min(MOST_ALARMS, before + 1);
    this.moved = false;
    this.replacedAt = now;
    this.restsUntil = 0;
    this.heard();
  }

  /**
   * Returns the ms until the connection is in doubt, 0 if it is, null if it is not going to be by these probes.
   * @param {number} now
   */
  dueIn(now) {
    if (this.probes.length < (this.sign ? 1 : 2)) return null;
    const alarms = now - this.replacedAt > SHORT ? 0 : this.alarms;
    const patience = (this.sign ? PATIENCE_AFTER_SIGN : PATIENCE) * 4 ** alarms;
    const due = this.probes[0] + Math.max(patience, ROUND_TRIPS * this.roundTrip);
    return Math.max(0, due - now, this.restsUntil - now);
  }
}
