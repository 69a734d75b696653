/** States of sessions, connections and clients in words. Pure. */
import { counted, countText, durationText, oneLine, sentence, shortPath, timeOf, titleOf, visible } from "./format.js";
import { needsYou as waits } from "../state/sessions.js";

/**
 * @typedef {import("../state/sessions.js").Session} Session
 * @typedef {import("../state/store.js").State["connection"]} Connection
 */

/** Words for operations on files. */
const DONE = new Map([["add", "added"], ["modify", "modified"], ["delete", "deleted"], ["move", "moved"], ["copy", "copied"]]);

/** Time in ms for which a lost connection is not worth a word. */
const SHORT = 2000;

/**
 * How long the connection has been lost, in ms, or null while there is nothing to say.
 * @param {Connection} connection @param {number} now
 */
export function outageOf(connection, now) {
  const since = connection.phase === "away" ? timeOf(connection.since) : null;
  return since !== null && now - since >= SHORT ? now - since : null;
}

/**
 * What the connection does, or null while there is nothing to say.
 * @param {Connection} connection @param {number} now
 */
export function connectionText(connection, now) {
  const waiting = connection.waiting > 0 ? ` ${counted(connection.waiting, "message")} ${connection.waiting === 1 ? "waits" : "wait"}.` : "";
  if (connection.phase === "connected") return null;
  const read = connection.readAt ? ` What is here was read ${readText(connection.readAt, now)}.` : "";
  // What was read before is there at once, and seldom for long.
  if (connection.phase === "connecting") return read && now - (timeOf(connection.since) ?? now) < SHORT ? null : `Connecting…${waiting}${read}`;
  if (connection.phase === "away") {
    const outage = outageOf(connection, now);
    return outage === null ? null : `No connection for ${durationText(outage)}, trying again.${waiting}${read}`;
  }
  const reason = oneLine(connection.reason, 300);
  return reason || "The connection has ended.";
}

/** When something was read, such as "at 12:04" or "on 3 Mar, 12:04". @type {(at: number, now: number) => string} */
const readText = (at, now) => `${new Date(at).toDateString() === new Date(now).toDateString() ? "at" : "on"} ${saidText(at, now)}`;

/** Whether a session needs a decision of the user. @param {Session} session */
export function needsYou(session) {
  return waits(session) && session.mayControl !== false;
}

/** The state of a session in a word or two, and its name for the style sheet. @param {Session} session */
export function statusOf(session) {
  const count = session.waiting?.length ?? 0;
  if (session.unreachableSince) return { name: "away", text: "Away" };
  if (needsYou(session)) return { name: "waiting", text: count > 1 ? `${count} questions` : "Needs you" };
  if (waits(session)) return { name: "running", text: "Waits for a decision" };
  if (session.turn || session.status === "running") return { name: "running", text: "Working" };
  if (session.status === "initializing") return { name: "running", text: "Starting" };
  if (session.status === "error") return { name: "error", text: "Error" };
  if (session.status === "exited") {
    return session.exitReason === "process_exit" ? { name: "ended", text: "Agent ended" } : { name: "past", text: "Past" };
  }
  return { name: "ready", text: "Ready" };
}

/** The other clients of a session: "ann, phone; bob looks on". @param {Session["clients"]} clients */
export function presenceText(clients = []) {
  const others = new Map();
  for (const client of clients) {
    if (client.you) continue;
    const name = oneLine(client.identity, 40) || "a guest";
    const via = client.via ? `, ${oneLine(client.via, 20)}` : "";
    const away = client.presence === "away" ? " (away)" : "";
    const text = client.role === "observer" ? `${name} looks on${away}` : `${name}${via}${away}`;
    others.set(text, (others.get(text) ?? 0) + 1);
  }
  return [...others].map(([text, count]) => (count > 1 ? `${text} ×${count}` : text)).join("; ");
}

/**
 * What a screen reader says when the state of the shown session changes; null for nothing.
 * @param {Session|null} before @param {Session|null} after
 */
export function changeText(before, after) {
  if (!before || !after || before.id !== after.id) return null;
  if (!before.turn && after.turn) return "The agent works.";
  if (before.turn && !after.turn) return after.status === "error" ? "The turn was stopped by an error." : "The agent is done.";
  return null;
}

/**
 * Sessions in groups for the list, each in the order given; groups without sessions are left out.
 * @param {Session[]} sessions
 */
export function grouped(sessions) {
  const groups = [
    { name: "Needs you", sessions: sessions.filter((session) => !session.archived && needsYou(session)) },
    { name: "Live", sessions: sessions.filter((session) => !session.archived && session.live && !needsYou(session)) },
    { name: "Earlier", sessions: sessions.filter((session) => !session.archived && !session.live && !needsYou(session)) },
    { name: "Archived", sessions: sessions.filter((session) => session.archived) },
  ];
  return groups.filter((group) => group.sessions.length > 0);
}

/**
 * The session that needs a decision, the next one after the open one; undefined for none.
 * @param {Session[]} sessions @param {string|null} currentId
 */
export function nextWaiting(sessions, currentId) {
  const waiting = sessions.filter((session) => !session.archived && needsYou(session));
  const next = waiting[(waiting.findIndex((session) => session.id === currentId) + 1) % waiting.length];
  return next?.id === currentId ? undefined : next;
}

/**
 * The session before or after the open one; the first one where none of them is open.
 * @param {Session[]} sessions @param {string|null} currentId @param {number} step
 */
export function neighbourOf(sessions, currentId, step) {
  const at = sessions.findIndex((session) => session.id === currentId);
  return at === -1 ? sessions[0] : sessions[at + step];
}

/**
 * Whether a session has every word of a filter in its id, title, agent or folder.
 * @param {Session} session @param {string} filter
 */
export function matches(session, filter) {
  const text = [session.id, session.title, session.agentType, session.cwd, session.workspace].filter(Boolean).join(" ").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/**
 * A message of the page about a session, by its name; one about none as it is.
 * @param {import("../state/store.js").Toast} toast @param {Map<string, Session>} sessions
 */
export function toastText({ kind, text, sessionId }, sessions) {
  const session = sessions.get(sessionId ?? "");
  const words = kind === "error" ? sentence(text) : visible(text);
  return session ? `In “${titleOf(session)}”: ${words}` : words;
}

/**
 * How long a tool call ran, once it is over; null if that was short, or is not known.
 * @param {Pick<import("../updates/fold.js").Block, "status"|"at"|"until">} block
 */
export function tookText({ status, at, until }) {
  const isOver = status === "completed" || status === "failed";
  return isOver && at !== null && until !== null && until - at >= 1000 ? durationText(until - at) : null;
}

/** Time in ms without an update from which on a working agent's silence is worth a word. */
const SILENCE = 60_000;

/** For how long a working agent has said nothing; null if that is not long. @param {number} since @param {number} now */
export function silenceText(since, now) {
  return now - since < SILENCE ? null : `No word from the agent for ${durationText(now - since)}`;
}

/**
 * When something was said: its time, with the day unless that is today. Null without a time.
 * @param {number|null} at @param {number} now @param {string} [locale]
 */
export function saidText(at, now, locale = undefined) {
  if (at === null) return null;
  const date = new Date(at);
  const time = date.toLocaleTimeString(locale, { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === new Date(now).toDateString()) return time;
  const year = date.getFullYear() === new Date(now).getFullYear() ? undefined : "numeric";
  return `${date.toLocaleDateString(locale, { day: "numeric", month: "short", year })}, ${time}`;
}

/**
 * How much of its context the agent has used, and what that has cost; null without a size.
 * @param {import("../updates/fold.js").Transcript["usage"]|undefined} usage
 */
export function usageText(usage) {
  if (!usage?.size) return null;
  const cost = costText(usage);
  return `${countText(usage.used)} of ${countText(usage.size)} tokens used${cost && `, ${cost}`}`;
}

/**
 * What the agent has cost so far, such as "0.42 USD"; empty if that is nothing, or not known.
 * @param {import("../updates/fold.js").Transcript["usage"]} usage
 */
export function costText(usage) {
  const { amount, currency } = usage?.cost ?? {};
  return typeof amount === "number" && amount > 0 ? `${amount.toFixed(2)} ${oneLine(currency, 10)}`.trim() : "";
}

/**
 * The operation on a file in words, where its texts do not say it; empty for nothing.
 * @param {import("../updates/content.js").Change|undefined} change @param {string|null} [cwd]
 */
export function changeWords(change, cwd) {
  if (!change) return "";
  const { operation, oldPath, fileType } = change;
  const from = operation === "move" || operation === "copy" ? ` from ${shortPath(oldPath, cwd)}` : "";
  const kind = fileType && fileType !== "text" ? `, ${oneLine(fileType, 30)}` : "";
  return `${DONE.get(operation) ?? oneLine(operation, 30)}${from}${kind}`;
}

/**
 * How a terminal has ended, or null while it runs.
 * @param {Pick<import("../updates/fold.js").TerminalState, "exitCode"|"signal">} terminal
 */
export function exitWords({ exitCode, signal }) {
  if (signal) return `ended by ${oneLine(signal, 30)}`;
  return exitCode === null ? null : `exit code ${exitCode}`;
}

/**
 * Says why an open session is loaded again.
 * @param {string} [movedTo] - the name of the session that was open, if its id stands for another one now.
 */
export function resetText(movedTo) {
  if (movedTo === undefined) return "This page was too far behind, or the history was replaced: it is loaded again.";
  return `The agent has given the id of this session to another one. What was open here can be read as ${movedTo}.`;
}

/** How a question of the agent has ended. @param {{by: string|null, outcome: string|null}} params */
export function resolvedText({ by, outcome }) {
  if (by === null) return outcome === null ? "The question is closed." : `The question is closed: ${outcome}.`;
  return outcome === null ? `${by} has decided.` : `${by} has decided: ${outcome}.`;
}
