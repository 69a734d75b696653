/** What the palette offers for what was typed: commands and sessions. Pure. */
import { titleOf, visible } from "../text/format.js";
import { agentText } from "./machines.js";
import { needsYou, statusOf } from "../text/words.js";

/** Items that are offered at most: a person types rather than read more. */
export const MOST = 50;

/**
 * @typedef {{key: string, label: string, hint: string, icon: string, state: string, command?: string, sessionId?: string}} Item
 */

/**
 * Returns the items that have every word of a text; those whose label begins with it first, then in the order in which
 * they come: what needs the user, commands, sessions.
 * @param {string} text
 * @param {import("./commands.js").Command[]} commands
 * @param {import("./sessions.js").Session[]} sessions
 * @param {any[]} agents
 * @returns {Item[]}
 */
export function itemsFor(text, commands, sessions, agents) {
  const known = sessions.map((session) => itemOfSession(session, agents));
  const first = known.filter((_, i) => needsYou(sessions[i]));
  const rest = known.filter((_, i) => !needsYou(sessions[i]));
  const all = [...first, ...commands.map(itemOfCommand), ...rest];
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter((item) => {
    const whole = `${item.label} ${item.hint} ${item.state} ${item.sessionId ?? ""}`.toLowerCase();
    return words.every((word) => whole.includes(word));
  });
  const typed = words.join(" ");
  const begins = (/** @type {Item} */ item) => typed !== "" && item.label.toLowerCase().startsWith(typed);
  return [...found.filter(begins), ...found.filter((item) => !begins(item))].slice(0, MOST);
}

/** @param {import("./commands.js").Command} command @returns {Item} */
function itemOfCommand({ name, label, icon = "other" }) {
  return { key: `command ${name}`, label, hint: "", icon, state: "", command: name };
}

/** @param {import("./sessions.js").Session} session @param {any[]} agents @returns {Item} */
function itemOfSession(session, agents) {
  const facts = [agentText(session, agents), session.workspace ?? session.cwd ?? "", session.machine ?? ""];
  return {
    key: `session ${session.id}`,
    label: titleOf(session),
    hint: facts.map(visible).filter(Boolean).join(" · "),
    icon: "",
    state: statusOf(session).text,
    sessionId: session.id,
  };
}
