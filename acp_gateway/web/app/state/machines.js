/** The machines that sessions and agents are on: this one, and the nodes of the gateway. Pure. */
import { durationText, oneLine, timeOf } from "../text/format.js";
import { keep, read } from "./kept.js";

/**
 * @typedef {{name: string, unreachableSince: string|null}} Machine - `name` is empty for this machine.
 */

/** The choice of all machines. */
export const ALL = "*";

/** Key of the choice in the browser's storage. */
const KEY = "machine";

/**
 * Lists the machines: the nodes by name, then this one if it has a session or an agent. Without nodes there is none.
 * @param {{machine?: string|null, unreachableSince?: string|null}[]} sessions
 * @param {{machine?: string|null, unreachableSince?: string|null}[]} agents
 * @returns {Machine[]}
 */
export function machinesOf(sessions, agents) {
  /** @type {Map<string, string|null>} */
  const found = new Map();
  // Sessions follow what happens, agents are as of the last look.
  for (const { machine, unreachableSince = null } of [...agents, ...sessions]) found.set(machine ?? "", unreachableSince);
  const nodes = [...found.keys()].filter((name) => name !== "").sort();
  if (nodes.length === 0) return [];
  return [...nodes, ...(found.has("") ? [""] : [])].map((name) => ({ name, unreachableSince: found.get(name) ?? null }));
}

/** The name of a machine for a person. @param {string|null|undefined} name */
export function machineText(name) {
  return name ? oneLine(name, 64) : "This machine";
}

/** The name of an agent on its machine. @param {{agentType: string, machine?: string|null}} session @param {any[]} agents */
export function agentText({ agentType, machine }, agents) {
  const title = agents.find(({ name }) => name === agentType)?.title ?? agentType;
  return machine && title.startsWith(`${machine}/`) ? title.slice(machine.length + 1) : title;
}

/**
 * Says for how long a machine is away; null if it is not.
 * @param {string|null|undefined} since
 * @param {number} now
 */
export function awayText(since, now) {
  const at = timeOf(since ?? null);
  // The time that is shown is looked at twice a minute: it may be from before the machine was away.
  if (at === null || now <= at) return since ? "away" : null;
  return `away for ${durationText(now - at)}`;
}

/**
 * Returns the sessions of the chosen machine.
 * @template {{machine?: string|null}} T
 * @param {T[]} sessions
 * @param {string} choice - a name of a machine, or ALL.
 * @param {Machine[]} machines
 * @returns {T[]} all of them if the choice is not one of the machines.
 */
export function onMachine(sessions, choice, machines) {
  if (!machines.some(({ name }) => name === choice)) return sessions;
  return sessions.filter((session) => (session.machine ?? "") === choice);
}

/**
 * Returns the choice that this browser has kept.
 * @param {Pick<Storage, "getItem">|null} storage
 */
export function keptChoice(storage) {
  return read(storage, KEY) ?? ALL;
}

/** Keeps a choice. @param {Pick<Storage, "setItem">|null} storage @param {string} choice */
export function keepChoice(storage, choice) {
  keep(storage, KEY, choice);
}
