/** Shapes of a transcript and of its blocks, and the rules by which blocks join. */
import { isObject, locationsOf, ownMeta, planOf, terminalTextsOf, toolContentOf } from "./content.js";
import { plain, recordOf } from "./format.js";

/**
 * @typedef {import("./content.js").Part} Part
 * @typedef {object} Block
 * @property {string} key - unique and stable, for lists of vnodes.
 * @property {"user"|"agent"|"thought"|"tool"|"plan"|"note"|"end"} kind
 * @property {number} seq - number of its first update.
 * @property {number|null} at - time of its first update, ms since 1970.
 * @property {number|null} until - time of its last update.
 * @property {string|null} sub - the sub-agent: its session, or the id of the tool call that runs it.
 * @property {number} pos - its index, for fold.js.
 * @property {Part[]} [parts] - user, agent, thought.
 * @property {string|null} [messageId]
 * @property {boolean} [begins] - a message that the end of a turn stands before: it continues none.
 * @property {string} [id] - tool: its toolCallId; note "subagent": its session.
 * @property {string} [title]
 * @property {string} [toolKind]
 * @property {string} [status] - tool: pending, in_progress, completed, failed, or another word of the agent.
 * @property {import("./content.js").Location[]} [locations]
 * @property {import("./content.js").ToolContent[]} [content]
 * @property {any} [rawInput]
 * @property {any} [rawOutput]
 * @property {Record<string, TerminalState>} [terminals] - by terminalId.
 * @property {number} [given] - the members that updates of this block have set, for fold.js.
 * @property {number[]} [updates] - tool: numbers of its updates but the first; others may lie between.
 * @property {import("./content.js").PlanEntry[]} [entries] - plan.
 * @property {string} [name] - plan: beside other ones, else empty.
 * @property {boolean} [removed] - plan.
 * @property {"subagent"|"notice"|"unknown"} [note]
 * @property {string} [severity] - note "notice": info, warning, error, or another word of the agent.
 * @property {string} [updateType] - note "unknown".
 * @property {any[]} [payloads] - note "unknown": the last of them.
 * @property {number} [count] - note "unknown": how many there were.
 * @property {string} [description] - notes "subagent" and "notice".
 * @property {any} [state] - note "subagent".
 * @property {import("./turn_ends.js").End} [end] - end.
 * @typedef {object} TerminalState
 * @property {string} output
 * @property {number|null} exitCode
 * @property {string|null} signal
 * @property {boolean} [whole] - the updates of this block told all output, also what came before them.
 * @typedef {{id: string, entries: import("./content.js").PlanEntry[]|null}} PlanNow - without entries that are unknown.
 * @typedef {object} Transcript
 * @property {number} version - grows with each change.
 * @property {number} firstSeq - 0 while empty.
 * @property {number} lastSeq - 0 while empty.
 * @property {Block[]} blocks
 * @property {{since: number, next: number}|null} missing - updates between these numbers have not come.
 * @property {import("./turn_ends.js").End|null} end - how the last turn that is told to have ended did so.
 * @property {PlanNow[]|null} plan - the plans of the session itself; the last one changed last.
 * @property {string[]} background - ids of the tool calls and terminals at work in the background; kinds of other work.
 * @property {any[]|null} commands
 * @property {string|null} modeId
 * @property {any[]|null} configOptions
 * @property {{used: number, size: number, cost: any}|null} usage
 * @property {string|null} title
 * @property {Map<string, Block>} byTool - by toolKey.
 * @property {Map<string, number>} places - positions of the blocks that later updates change, for fold.js.
 * @property {Map<string, Set<string>>} plans - ids of the plans of this turn by lane, for fold.js.
 * @property {Map<string, number>} lanes - positions of the last block of each lane, for fold.js.
 * @property {Set<string>} seen - state members that an update has set, for fold.js.
 */

/** Pause, in ms, after which a chunk of the user begins another message. */
const PAUSE = 1000;
/** Members of a tool call, as bits of `given`. */
const GIVEN = { title: 1, toolKind: 2, status: 4, locations: 8, content: 16, rawInput: 32, rawOutput: 64 };
/** @type {TerminalState} */
const NO_TERMINAL = { output: "", exitCode: null, signal: null };
/** Characters of a terminal's output that the gateway tells, the last ones. */
const TERMINAL_SIZE = 64 * 1024;
/** Members of a transcript that state updates set. */
export const STATE = /** @type {const} */ (["plan", "commands", "modeId", "configOptions", "usage", "title", "background"]);

/** @returns {Transcript} */
export function emptyTranscript() {
  return {
    version: 0,
    firstSeq: 0,
    lastSeq: 0,
    blocks: [],
    missing: null,
    end: null,
    plan: null,
    commands: null,
    modeId: null,
    configOptions: null,
    usage: null,
    title: null,
    background: [],
    byTool: new Map(),
    places: new Map(),
    plans: new Map(),
    lanes: new Map(),
    seen: new Set(),
  };
}

/**
 * Returns the key of a tool call in `byTool`.
 * @param {string} toolCallId
 * @param {string|null} [sub] - the session of the sub-agent, if it is one's.
 */
export function toolKey(toolCallId, sub = null) {
  return sub === null ? toolCallId : `${sub}\n${toolCallId}`;
}

/**
 * Copies a block, so that it can be changed.
 * @param {Block} block
 * @returns {Block}
 */
export function copyOf(block) {
  const { parts, updates } = block;
  return { ...block, ...(parts && { parts: [...parts] }), ...(updates && { updates: [...updates] }) };
}

/**
 * Makes a tool call that nothing is known about yet.
 * @param {Block} block
 * @param {string} id
 * @returns {Block}
 */
export function emptyTool({ key, kind, seq, at, until, sub, pos }, id) {
  const common = { key, kind, seq, at, until, sub, pos, id, title: "", toolKind: "other", status: "pending" };
  return { ...common, locations: [], content: [], rawInput: null, rawOutput: null, terminals: recordOf(), given: 0, updates: [] };
}

/**
 * Sets the members of a tool call that an update gives.
 * @param {Block} block
 * @param {Record<string, any>} payload
 * @returns {number} their bits.
 */
export function setMembers(block, payload) {
  const { title, kind, status, locations, content, rawInput, rawOutput } = payload;
  let given = 0;
  if (isGiven(title)) {
    block.title = plain(title);
    given |= GIVEN.title;
  }
  if (isGiven(kind)) {
    block.toolKind = plain(kind);
    given |= GIVEN.toolKind;
  }
  if (isGiven(status)) {
    block.status = plain(status);
    given |= GIVEN.status;
  }
  if (isGiven(locations)) {
    block.locations = locationsOf(locations);
    given |= GIVEN.locations;
  }
  if (isGiven(content)) {
    block.content = toolContentOf(content);
    given |= GIVEN.content;
  }
  if (isGiven(rawInput)) {
    block.rawInput = rawInput;
    given |= GIVEN.rawInput;
  }
  if (isGiven(rawOutput)) {
    block.rawOutput = rawOutput;
    given |= GIVEN.rawOutput;
  }
  return given;
}

/**
 * Reads a notice; one of an agent of version 2 may come as a message, with itself in `_meta`.
 * @param {Record<string, any>} payload
 * @returns {{note: "notice", title: string, description: string, severity: string}|null}
 */
export function noticeOf(payload) {
  const notice = payload.sessionUpdate === "notice" ? payload : ownMeta(payload).notice;
  if (!isObject(notice)) return null;
  const { title, description, severity } = notice;
  return { note: "notice", title: plain(title), description: plain(description), severity: plain(severity) || "info" };
}

/**
 * Sets what an update says of a sub-agent: null clears a member, an absent one stays.
 * @param {Block} block
 * @param {Record<string, any>} payload
 * @returns {number} the bits of these members.
 */
export function setSubagent(block, { title, description, state }) {
  if (title !== undefined) block.title = plain(title);
  if (description !== undefined) block.description = plain(description);
  if (state !== undefined) block.state = isObject(state) ? state : null;
  return [title, description, state].reduce((bits, value, i) => bits | (value === undefined ? 0 : 1 << i), 0);
}

/**
 * Reads an update with a plan. The gateway tells the ids of all plans, the shown one last, and how many entries are its
 * own; an update without that has the only plan.
 * @param {Record<string, any>} payload
 * @param {Iterable<string>} [open] - ids of the plans that are known.
 * @returns {{id: string, entries: import("./content.js").PlanEntry[], name: string, removed: boolean}[]} those that
 *   were removed first.
 */
export function plansOf(payload, open = []) {
  const { plans, entries: count } = ownMeta(payload);
  const ids = Array.isArray(plans) ? plans.map(plain) : [""];
  const gone = [...open].filter((id) => id !== "" && !ids.includes(id));
  const found = gone.map((id) => ({ id, entries: planOf([]), name: "", removed: true }));
  const entries = planOf(payload.entries).slice(0, Number.isInteger(count) ? count : undefined);
  const shown = ids.slice(-1).map((id) => ({ id, entries, name: ids.length > 1 ? id : "", removed: false }));
  return [...found, ...shown];
}

/**
 * Returns the plans that there are after an update.
 * @param {Record<string, any>} payload
 * @param {PlanNow[]|null} before
 * @returns {PlanNow[]}
 */
export function plansNow(payload, before) {
  const { plans } = ownMeta(payload);
  const ids = Array.isArray(plans) ? plans.map(plain) : [""];
  const shown = plansOf(payload).map(({ id, entries }) => ({ id, entries }));
  return withKnown([...ids.slice(0, -1).map((id) => ({ id, entries: null })), ...shown], before);
}

/**
 * Returns plans with the entries that are known from before.
 * @param {PlanNow[]} plans
 * @param {PlanNow[]|null} before
 */
export function withKnown(plans, before) {
  const known = new Map((before ?? []).map(({ id, entries }) => [id, entries]));
  return plans.map(({ id, entries }) => ({ id, entries: entries ?? known.get(id) ?? null }));
}

/**
 * Returns the names of what the agent does in the background.
 * @param {Transcript} transcript
 * @returns {string[]}
 */
export function backgroundOf({ background, byTool }) {
  const titles = background.map((id) => {
    const tool = byTool.get(id) ?? [...byTool.values()].find(({ terminals }) => terminals && id in terminals);
    return tool?.title || id;
  });
  return [...new Set(titles)];
}

/** @param {any} value */
function isGiven(value) {
  return value !== undefined && value !== null;
}

/**
 * Reads a state update.
 * @param {Record<string, any>} payload
 * @returns {Partial<Transcript>|null} the members that it sets; null for other updates.
 */
export function stateChanges(payload) {
  const list = (/** @type {any} */ value) => (Array.isArray(value) ? value : []);
  switch (payload.sessionUpdate) {
    case "available_commands_update":
      return { commands: list(payload.availableCommands) };
    case "current_mode_update":
      return { modeId: plain(payload.currentModeId) || null };
    case "config_option_update":
      return { configOptions: list(payload.configOptions) };
    case "usage_update": {
      const { used, size, cost = null } = payload;
      return { usage: { used: Number(used) || 0, size: Number(size) || 0, cost } };
    }
    case "session_info_update": {
      const { background } = ownMeta(payload);
      const idOf = (/** @type {any} */ work) =>
        plain(work.toolCallId) || plain(work.terminalId) || plain(work.type) || "work";
      return {
        ...(payload.title !== undefined && { title: plain(payload.title) || null }),
        ...(Array.isArray(background) && { background: background.filter(isObject).map(idOf) }),
      };
    }
    default:
      return null;
  }
}

/**
 * Tells whether a message continues the last one of its lane.
 * @param {Block} last
 * @param {Block} message
 */
export function continues(last, message) {
  if (last.kind !== message.kind || last.messageId !== message.messageId) return false;
  return message.kind !== "user" || message.at === null || last.until === null || message.at - last.until <= PAUSE;
}

/**
 * Changes a block as the updates of a newer block of the same place did.
 * @param {Block} block
 * @param {Block} newer
 */
export function merge(block, newer) {
  const given = newer.given ?? 0;
  block.until = newer.until;
  block.given = (block.given ?? 0) | given;
  if (block.kind === "plan") {
    // One that was removed keeps its entries.
    if (!newer.removed) block.entries = newer.entries;
    block.name = newer.name || block.name;
    block.removed = newer.removed;
    return;
  }
  if (block.kind === "note") {
    if (given & 1) block.title = newer.title;
    if (given & 2) block.description = newer.description;
    if (given & 4) block.state = newer.state;
    return;
  }
  const content = given & GIVEN.content ? newer.content : [...(block.content ?? []), ...(newer.content ?? [])];
  for (const [name, bit] of Object.entries(GIVEN)) {
    if (given & bit) /** @type {any} */ (block)[name] = /** @type {any} */ (newer)[name];
  }
  block.content = content;
  for (const seq of [newer.seq, ...(newer.updates ?? [])]) block.updates?.push(seq);
  const terminals = recordOf(block.terminals);
  for (const [id, terminal] of Object.entries(newer.terminals ?? {})) {
    const { output, exitCode, signal, whole } = terminal;
    const old = terminals[id] ?? NO_TERMINAL;
    terminals[id] = whole
      ? terminal
      : { ...old, output: old.output + output, exitCode: exitCode ?? old.exitCode, signal: signal ?? old.signal };
  }
  block.terminals = terminals;
}

/**
 * Adds what an update tells of terminals: in texts and in the gateway's own member, or as `withTerminal` has it.
 * @param {NonNullable<Block["terminals"]>} terminals
 * @param {Record<string, any>} payload
 */
export function withTerminals(terminals, payload) {
  let result = withTerminal(terminals, payload._meta);
  const { terminal } = ownMeta(payload);
  const texts = terminalTextsOf(payload.content);
  if (!isObject(terminal) && texts.length === 0) return result;
  result = recordOf(result);
  for (const { terminalId, output, exitStatus } of texts) {
    const { exitCode = null, signal = null } = isObject(exitStatus) ? exitStatus : {};
    const ended = { exitCode: Number.isInteger(exitCode) ? exitCode : null, signal: plain(signal) || null };
    result[terminalId] = { output: output ?? result[terminalId]?.output ?? "", ...ended, whole: true };
  }
  if (isObject(terminal)) {
    const id = plain(terminal.terminalId);
    const old = result[id] ?? NO_TERMINAL;
    const isWhole = terminal.output !== undefined;
    const output = isWhole ? plain(terminal.output) : (old.output + plain(terminal.data)).slice(-TERMINAL_SIZE);
    result[id] = { ...old, output, ...(isWhole ? { whole: true } : {}) };
  }
  return result;
}

/**
 * Adds the output of a terminal that an agent runs itself, as some agents report it in `_meta`.
 * @param {NonNullable<Block["terminals"]>} terminals
 * @param {any} meta
 */
function withTerminal(terminals, meta) {
  if (!isObject(meta)) return terminals;
  let result = terminals;
  for (const name of ["terminal_info", "terminal_output", "terminal_exit"]) {
    const about = meta[name];
    if (!isObject(about)) continue;
    const id = plain(about.terminal_id);
    result = recordOf(result);
    const old = result[id] ?? NO_TERMINAL;
    result[id] = {
      ...old,
      output: old.output + (name === "terminal_output" ? plain(about.data) : ""),
      exitCode: typeof about.exit_code === "number" ? about.exit_code : old.exitCode,
      signal: typeof about.signal === "string" ? about.signal : old.signal,
    };
  }
  return result;
}

/**
 * Returns the tool call that runs the sub-agent of an update, as some agents report it in `_meta`.
 * @param {Record<string, any>} payload
 */
export function parentTool(payload) {
  const about = payload._meta?.claudeCode?.parentToolUseId;
  return typeof about === "string" ? about : null;
}
