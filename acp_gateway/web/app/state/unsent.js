/** What is said of prompts, drafts and remarks that were not sent. Pure. */
import { remarksOf } from "../updates/changes.js";
import { counted, titleOf } from "../text/format.js";

/** Sessions that are named. */
const MOST_NAMED = 3;

/**
 * @typedef {import("./drafts.js").Left} Left
 * @typedef {Map<string, import("./sessions.js").Session>} Sessions
 */

/**
 * Says what the browser keeps once it is signed out. Without the titles of sessions that the page does not show.
 * @param {Left[]} kept
 * @param {string[]} lost - sessions of the prompts that could not be kept, one for each.
 * @param {number} remarks - on changes, which were removed.
 * @param {Sessions} sessions
 * @returns {string|null} null if there is nothing.
 */
export function leftText(kept, lost, remarks, sessions) {
  const prompts = sum(kept, "prompts");
  const typed = sum(kept, "typed");
  const what = [...(prompts ? [counted(prompts, "unconfirmed prompt")] : []), ...(typed ? [counted(typed, "unsent draft")] : [])].join(" and ");
  const texts = [];
  if (what) {
    const [verb, it] = prompts + typed === 1 ? ["is", "it"] : ["are", "them"];
    texts.push(`${what} ${verb} kept in this browser for 30 days${where(kept.map(({ id }) => id), sessions)}, and shown when the same identity signs in. Another one that signs in removes ${it}.`);
  }
  if (lost.length > 0) {
    texts.push(`${counted(lost.length, "prompt")} could be neither confirmed nor kept${where(lost, sessions)}.`);
  }
  if (remarks > 0) texts.push(`${counted(remarks, "remark")} on changes ${remarks === 1 ? "was" : "were"} removed.`);
  return texts.length === 0 ? null : texts.join(" ");
}

/**
 * Counts the remarks on changes that are kept in a storage.
 * @param {any} storage - of the tab, or null.
 */
export function remarksIn(storage) {
  try {
    const names = Object.keys(storage ?? {}).filter((name) => name.startsWith("remarks "));
    return names.reduce((all, name) => all + remarksOf(storage.getItem(name)).filter(({ text }) => text.trim() !== "").length, 0);
  } catch {
    return 0; // The browser keeps nothing.
  }
}

/**
 * Says which sessions have prompts of an earlier load of the page.
 * @param {Left[]} left
 * @param {Sessions} sessions
 * @returns {string|null} null if there are none.
 */
export function unsentText(left, sessions) {
  const unsent = left.filter(({ id, prompts }) => prompts > 0 && sessions.has(id));
  const prompts = sum(unsent, "prompts");
  if (prompts === 0) return null;
  return `${counted(prompts, "prompt")} ${prompts === 1 ? "was" : "were"} not sent${where(unsent.map(({ id }) => id), sessions)}: see above the input there.`;
}

/**
 * Says that prompts were removed by signing out.
 * @param {number} count
 * @returns {string|null} null if there were none.
 */
export function removedText(count) {
  if (!(count > 0)) return null;
  return count === 1 ? "1 prompt that was not sent was removed." : `${count} prompts that were not sent were removed.`;
}

/** @param {Left[]} left @param {"prompts"|"typed"} name */
const sum = (left, name) => left.reduce((all, one) => all + one[name], 0);

/** @param {string[]} ids @param {Sessions} sessions */
function where(ids, sessions) {
  const titles = [];
  for (const id of new Set(ids)) {
    const session = sessions.get(id);
    if (session) titles.push(`“${titleOf(session)}”`);
  }
  if (titles.length === 0) return "";
  const named = titles.slice(0, MOST_NAMED);
  const more = titles.length - named.length;
  if (more > 0) named.push(counted(more, "other session"));
  return `, in ${named.length === 1 ? named[0] : `${named.slice(0, -1).join(", ")} and ${named.at(-1)}`}`;
}
