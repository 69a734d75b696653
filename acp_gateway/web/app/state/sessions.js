/** The list of sessions: its order, and which of them need a person. Pure. */
import { timeOf } from "../text/format.js";

/**
 * @typedef {object} Session - as the gateway describes it.
 * @property {string} id
 * @property {string} agentType
 * @property {string|null} cwd
 * @property {string|null} title
 * @property {"initializing"|"running"|"waiting"|"completed"|"error"|"exited"} status
 * @property {string|null} exitReason
 * @property {string|null} createdAt
 * @property {string|null} updatedAt
 * @property {string|null} [workspace]
 * @property {boolean} [archived]
 * @property {boolean} [live]
 * @property {boolean} [turn]
 * @property {number} [queued]
 * @property {boolean} [canSteer] - the agent takes prompts into a turn that runs.
 * @property {string|null} [limitedUntil] - the end of the usage limit that the agent has named.
 * @property {{requestId?: string|number, method: string, title: string|null, since: string|number|null}[]} [waiting]
 * @property {{identity: string, role: string, presence: string, since: string|null, via: string, you: boolean}[]} [clients]
 * @property {boolean} [mayControl]
 * @property {null|"cut"|"removed"} [history]
 * @property {null|{costs: Record<string, number>, tokens: number}} [usage]
 * @property {string|null} [machine] - the node that it is on, null for this machine.
 * @property {string} [unreachableSince] - only while that node is away.
 */

/**
 * Tells whether a session waits for a person's decision, and can get one.
 * @param {Session} session
 */
export function needsYou(session) {
  if (session.unreachableSince) return false;
  return session.status === "waiting" || (session.waiting ?? []).length > 0;
}

/**
 * Orders sessions: those that wait for a person, those with a running turn, the rest; the newest first.
 * @param {Map<string, Session>} sessions
 * @returns {string[]} ids.
 */
export function orderOf(sessions) {
  const rank = (/** @type {Session} */ session) => {
    if (needsYou(session)) return 0;
    return session.turn || session.status === "running" || session.status === "initializing" ? 1 : 2;
  };
  const keys = [...sessions.values()].map((session) => ({
    id: session.id,
    rank: rank(session),
    at: timeOf(session.updatedAt) ?? timeOf(session.createdAt) ?? 0,
  }));
  keys.sort((a, b) => a.rank - b.rank || b.at - a.at || (a.id < b.id ? -1 : 1));
  return keys.map(({ id }) => id);
}

/**
 * Counts the sessions that wait for a person.
 * @param {Map<string, Session>} sessions
 */
export function waitingCount(sessions) {
  let count = 0;
  for (const session of sessions.values()) if (!session.archived && needsYou(session)) count += 1;
  return count;
}
