/** The columns of the board: sessions by state. Pure. */
import { needsYou, statusOf } from "../text/words.js";

/**
 * Returns the columns, each with its sessions in the order given.
 * @param {import("./sessions.js").Session[]} sessions - archived ones are left out.
 * @returns {{name: "waiting"|"running"|"ready"|"past", title: string, sessions: import("./sessions.js").Session[]}[]}
 */
export function columnsOf(sessions) {
  /** @type {Record<string, import("./sessions.js").Session[]>} */
  const by = { waiting: [], running: [], ready: [], past: [] };
  for (const session of sessions) if (!session.archived) by[columnOf(session)].push(session);
  return [
    { name: "waiting", title: "Needs you", sessions: by.waiting },
    { name: "running", title: "Working", sessions: by.running },
    { name: "ready", title: "Ready", sessions: by.ready },
    { name: "past", title: "Ended", sessions: by.past },
  ];
}

/** @param {import("./sessions.js").Session} session */
function columnOf(session) {
  if (needsYou(session)) return "waiting";
  if (statusOf(session).name === "running") return "running";
  return session.live ? "ready" : "past";
}
