/**
 * Folds the updates of a session into a transcript.
 *
 * A transcript is used up by `fold` and `prepend`: they take over its arrays and maps and return a new transcript
 * object. A block that changed is a new object, every other block keeps its identity, and `version` grows. So a batch
 * costs as much as it holds, whatever the length of the transcript. The result depends on the updates, not on their
 * batches.
 *
 * Updates are numbered without gaps. What is known already is passed over. At a gap folding stops, and `missing`
 * names it.
 *
 * Each sub-agent has a lane of its own: a chunk continues the last block of its lane, also if blocks of other lanes
 * came in between.
 */
import { isObject, locationsOf, ownMeta, partOf, planOf, terminalTextsOf, toolContentOf, toolItemOf } from "./content.js";
import { plain, recordOf, timeOf } from "../text/format.js";
import { endText, nextEnd, TURN_END } from "./turn_ends.js";

/**
 * @typedef {import("./content.js").Part} Part
 * @typedef {{seq: number, payload: any, updateType?: string, createdAt?: string|number|null, sub?: string|null}} Update
 *   `sub` is the session of the sub-agent that an update belongs to.
 * @typedef {{seq: number, at: number|null, sub: string|null}} Base
 */

/**
 * @typedef {object} Block
 * @property {string} key - unique and stable, for lists of vnodes.
 * @property {"user"|"agent"|"thought"|"tool"|"plan"|"note"|"end"} kind
 * @property {number} seq - number of its first update.
 * @property {number|null} at - time of its first update, ms since 1970.
 * @property {number|null} until - time of its last update.
 * @property {string|null} sub - the sub-agent: its session, or the id of the tool call that runs it.
 * @property {number} pos - its index.
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
 * @property {number} [given] - the members that updates of this block have set.
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
 * @property {Map<string, number>} places - positions of the blocks that later updates change.
 * @property {Map<string, Set<string>>} plans - ids of the plans of this turn by lane.
 * @property {Map<string, number>} lanes - positions of the last block of each lane.
 * @property {Set<string>} seen - state members that an update has set.
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
const STATE = /** @type {const} */ (["plan", "commands", "modeId", "configOptions", "usage", "title", "background"]);

const PLACE = "_acp-gateway/original"; // It keeps the place of a message, and shows nothing.
/** Payloads of unknown updates that a note keeps. */
const MOST_PAYLOADS = 20;

/**
 * Adds updates at the end.
 * @param {Transcript} transcript - used up.
 * @param {Update[]} updates - in order.
 * @returns {Transcript} the same object if nothing changed.
 */
export function fold(transcript, updates) {
  const folding = new Folding(transcript);
  for (const update of updates) if (!folding.take(update)) break;
  return folding.result();
}

/**
 * Adds older updates in front, as if they had been folded first.
 * @param {Transcript} transcript - used up.
 * @param {Update[]} updates - in order, up to the first that is known.
 * @returns {Transcript} the same object if they do not reach up to it.
 */
export function prepend(transcript, updates) {
  if (transcript.firstSeq === 0) return fold(transcript, updates);
  const older = fold(emptyTranscript(), updates.filter(({ seq }) => seq < transcript.firstSeq));
  if (older.lastSeq === 0 || older.lastSeq !== transcript.firstSeq - 1 || older.missing !== null) return transcript;
  const folding = new Folding(older);
  folding.absorb(transcript);
  return folding.result();
}

/**
 * Sets the state in which a transcript begins, if what lies before its first update is not known.
 * @param {Transcript} transcript - used up.
 * @param {any[]} payloads - state updates and plans.
 * @returns {Transcript}
 */
export function begin(transcript, payloads) {
  const folding = new Folding(transcript);
  for (const payload of payloads.filter(isObject)) {
    if (payload.sessionUpdate === "plan") folding.state(null, "plan", plansNow(payload, null));
    else folding.stateOf(null, payload);
  }
  folding.changed = true;
  return folding.result();
}

/** Changes of one batch. */
class Folding {
  constructor(/** @type {Transcript} */ transcript) {
    this.before = transcript;
    this.t = { ...transcript, missing: /** @type {Transcript["missing"]} */ (null) };
    this.changed = false;
    /** Blocks of this batch, which may be changed in place. @type {Set<Block>} */
    this.fresh = new Set();
  }

  result() {
    const before = this.before.missing;
    const now = this.t.missing;
    const same = before?.since === now?.since && before?.next === now?.next;
    if (!this.changed && (same || now === null)) return this.before;
    return { ...this.t, version: this.before.version + 1 };
  }

  /** Takes the next update; returns false at a gap. @param {Update} update */
  take(update) {
    const { t } = this;
    const { seq } = update;
    if (update.updateType === TURN_END) return this.end(nextEnd(update, t));
    if (!Number.isInteger(seq) || seq <= t.lastSeq) return true;
    if (t.lastSeq !== 0 && seq > t.lastSeq + 1) {
      t.missing = { since: t.lastSeq, next: seq };
      return false;
    }
    if (t.firstSeq === 0) t.firstSeq = seq;
    t.lastSeq = seq;
    this.changed = true;
    if (isObject(update.payload)) this.apply(update, update.payload);
    return true;
  }

  /** Takes the end of a turn, and returns true. @param {import("./turn_ends.js").End|null} end */
  end(end) {
    if (end === null) return true;
    this.changed = true;
    this.t.end = end;
    if (endText(end) !== "") this.add({ ...this.made("end", { ...end, sub: null }), key: `e${end.seq}.${end.nth}`, end });
    return true;
  }

  /** @param {Update} update @param {Record<string, any>} payload */
  apply(update, payload) {
    const child = update.sub ?? null;
    const base = { seq: update.seq, at: timeOf(update.createdAt), sub: child ?? parentTool(payload) };
    const { t } = this;
    const notice = noticeOf(payload);
    if (notice) return void this.add({ ...this.made("note", base), ...notice });
    switch (payload.sessionUpdate) {
      case "user_message_chunk":
        return this.text("user", base, payload);
      case "agent_message_chunk":
        return this.text("agent", base, payload);
      case "agent_thought_chunk":
        return this.text("thought", base, payload);
      case "tool_call":
      case "tool_call_update":
        return this.tool(base, child, payload);
      case "tool_call_content_chunk":
        return this.tool(base, child, { toolCallId: payload.toolCallId }, [toolItemOf(payload.content)]);
      case "plan":
        return this.plan(base, child, payload);
      case "subagent_update":
        return this.subagent(base, payload);
      default:
        if (payload.sessionUpdate === PLACE || this.stateOf(child, payload)) return undefined;
        return this.unknown(base, plain(payload.sessionUpdate) || plain(update.updateType), [payload], 1);
    }
  }

  /**
   * Sets what a state update sets; returns false for other updates.
   * @param {string|null} child
   * @param {Record<string, any>} payload
   */
  stateOf(child, payload) {
    const changes = stateChanges(payload);
    if (changes === null) return false;
    for (const [name, value] of Object.entries(changes)) this.state(child, /** @type {any} */ (name), value);
    return true;
  }

  /**
   * Sets a member of the session's state; a sub-agent's is not the session's.
   * @param {string|null} child
   * @param {typeof STATE[number]} name
   * @param {any} value
   */
  state(child, name, value) {
    if (child !== null) return;
    /** @type {any} */ (this.t)[name] = value;
    this.t.seen.add(name);
  }

  /**
   * @param {"user"|"agent"|"thought"} kind
   * @param {Base} base
   * @param {Record<string, any>} payload
   */
  text(kind, base, payload) {
    const part = partOf(payload.content);
    if (part.type === "text" && part.text === "") return;
    const messageId = typeof payload.messageId === "string" ? payload.messageId : null;
    this.message({ ...this.made(kind, base), parts: [part], messageId });
  }

  /** Adds a message, to the last one of its lane if it continues it. @param {Block} part */
  message(part) {
    const last = this.lastOf(part.sub);
    const message = this.t.end?.seq === part.seq - 1 ? { ...part, begins: true } : part;
    if (!last || message.begins || !continues(last, message)) {
      if (message.kind === "user") this.endPlans(message.sub ?? "");
      this.add(message);
      return;
    }
    const block = this.own(last);
    const parts = /** @type {Part[]} */ (block.parts);
    for (const part of message.parts ?? []) {
      const end = parts[parts.length - 1];
      if (end.type === "text" && part.type === "text")
        parts[parts.length - 1] = { type: "text", text: end.text + part.text };
      else parts.push(part);
    }
    block.until = message.until;
  }

  /**
   * Creates a tool call or changes it: members that are given replace the former ones.
   * @param {Base} base
   * @param {string|null} child
   * @param {Record<string, any>} payload
   * @param {import("./content.js").ToolContent[]} [more] - content to append.
   */
  tool(base, child, payload, more = []) {
    const id = plain(payload.toolCallId);
    const key = toolKey(id, child);
    const place = `tool ${key}`;
    const known = this.known(place);
    const block = known ? this.own(known) : this.add(emptyTool(this.made("tool", base), id), place);
    if (known) block.updates?.push(base.seq);
    block.given = (block.given ?? 0) | setMembers(block, payload);
    if (more.length > 0) block.content = [...(block.content ?? []), ...more];
    Object.assign(block, { terminals: withTerminals(block.terminals ?? recordOf(), payload), until: base.at });
    this.t.byTool.set(key, block);
  }

  /**
   * @param {Base} base
   * @param {string|null} child
   * @param {Record<string, any>} payload
   */
  plan(base, child, payload) {
    const plans = plansOf(payload, this.t.plans.get(base.sub ?? ""));
    this.state(child, "plan", plansNow(payload, this.t.plan));
    for (const plan of plans) this.planBlock({ ...this.made("plan", base), ...plan });
  }

  /**
   * Shows a plan in place of the one of the same id and turn.
   * @param {Block} plan
   */
  planBlock(plan) {
    const lane = plan.sub ?? "";
    const place = `plan ${lane}\n${plan.id}`;
    this.again(place, plan);
    const open = (this.t.plans.get(lane) ?? new Set()).add(plan.id ?? "");
    this.t.plans.set(lane, open);
    if (plan.removed && open.delete(plan.id ?? "")) this.t.places.delete(place);
  }

  /** Lets the next plans of a lane have blocks of their own. @param {string} lane */
  endPlans(lane) {
    for (const id of this.t.plans.get(lane) ?? []) this.t.places.delete(`plan ${lane}\n${id}`);
    this.t.plans.delete(lane);
  }

  /**
   * Announces a sub-agent, or changes what is said of it: null clears a member, an absent one stays.
   * @param {Base} base
   * @param {Record<string, any>} payload
   */
  subagent(base, payload) {
    const id = plain(payload.sessionId);
    const place = `subagent ${id}`;
    const empty = { ...this.made("note", base), note: /** @type {const} */ ("subagent"), id, given: 0 };
    const known = this.known(place);
    const block = known ? this.own(known) : this.add({ ...empty, title: "", description: "", state: null }, place);
    block.given = (block.given ?? 0) | setSubagent(block, payload);
    block.until = base.at;
  }

  /**
   * @param {Base} base
   * @param {string} updateType
   * @param {any[]} payloads
   * @param {number} count
   */
  unknown(base, updateType, payloads, count) {
    this.note({ ...this.made("note", base), note: "unknown", updateType, payloads, count });
  }

  /**
   * Adds a note of unknown updates, to the last one of its lane if that is of the same type.
   * @param {Block} note
   */
  note(note) {
    const last = this.lastOf(note.sub);
    if (last?.kind !== "note" || last.note !== "unknown" || last.updateType !== note.updateType) {
      this.add(note);
      return;
    }
    const block = this.own(last);
    block.payloads = [...(block.payloads ?? []), ...(note.payloads ?? [])].slice(-MOST_PAYLOADS);
    block.count = (block.count ?? 0) + (note.count ?? 0);
    block.until = note.until;
  }

  /** Adds a newer transcript at the end, block by block. @param {Transcript} newer - used up. */
  absorb(newer) {
    const { t } = this;
    const keys = new Map([...newer.byTool].map(([key, block]) => [block, key]));
    for (const block of newer.blocks) {
      if (block.kind === "tool") this.again(`tool ${keys.get(block)}`, block);
      else if (block.note === "subagent") this.again(`subagent ${block.id}`, block);
      else if (block.kind === "plan") this.planBlock(block);
      else if (block.note === "unknown") this.note(block);
      else if (block.note === "notice" || block.kind === "end") this.add(block);
      else this.message(block);
      this.fresh.delete(block); // Known outside.
    }
    for (const key of newer.byTool.keys()) t.byTool.set(key, /** @type {Block} */ (this.known(`tool ${key}`)));
    const plan = withKnown(newer.plan ?? [], t.plan);
    for (const name of STATE) if (newer.seen.has(name)) this.state(null, name, { ...newer, plan }[name]);
    t.lastSeq = newer.lastSeq;
    t.end = newer.end ?? t.end;
    t.missing = newer.missing;
    this.before = newer;
    this.changed = true;
  }

  /**
   * Adds a block, or merges it into the one that has its place.
   * @param {string} place
   * @param {Block} block
   */
  again(place, block) {
    const known = this.known(place);
    if (known) merge(this.own(known), block);
    else this.add(block, place);
  }

  /**
   * @param {Block["kind"]} kind
   * @param {Base} base
   * @returns {Block}
   */
  made(kind, { seq, at, sub }) {
    return { key: `b${seq}`, kind, seq, at, until: at, sub, pos: 0 };
  }

  /**
   * Appends a block.
   * @template {Block} B
   * @param {B} block - a new one.
   * @param {string|null} [place] - under which later updates find it.
   */
  add(block, place = null) {
    const { blocks, lanes, places } = this.t;
    block.pos = blocks.length;
    blocks.push(block);
    lanes.set(block.sub ?? "", block.pos);
    if (place !== null) places.set(place, block.pos);
    this.fresh.add(block);
    return block;
  }

  /**
   * Returns a block that may be changed, in place of one that may be known outside.
   * @param {Block} block
   */
  own(block) {
    if (this.fresh.has(block)) return block;
    const copy = copyOf(block);
    this.t.blocks[block.pos] = copy;
    this.fresh.add(copy);
    return copy;
  }

  /** @param {string} place */
  known(place) {
    const pos = this.t.places.get(place);
    return pos === undefined ? undefined : this.t.blocks[pos];
  }

  /** @param {string|null} lane */
  lastOf(lane) {
    const pos = this.t.lanes.get(lane ?? "");
    return pos === undefined ? undefined : this.t.blocks[pos];
  }
}

// Shapes of blocks, and the rules by which they join

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
function copyOf(block) {
  const { parts, updates } = block;
  return { ...block, ...(parts && { parts: [...parts] }), ...(updates && { updates: [...updates] }) };
}

/**
 * Makes a tool call that nothing is known about yet.
 * @param {Block} block
 * @param {string} id
 * @returns {Block}
 */
function emptyTool({ key, kind, seq, at, until, sub, pos }, id) {
  const common = { key, kind, seq, at, until, sub, pos, id, title: "", toolKind: "other", status: "pending" };
  return { ...common, locations: [], content: [], rawInput: null, rawOutput: null, terminals: recordOf(), given: 0, updates: [] };
}

/**
 * Sets the members of a tool call that an update gives.
 * @param {Block} block
 * @param {Record<string, any>} payload
 * @returns {number} their bits.
 */
function setMembers(block, payload) {
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
function noticeOf(payload) {
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
function setSubagent(block, { title, description, state }) {
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
function plansOf(payload, open = []) {
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
function plansNow(payload, before) {
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
function withKnown(plans, before) {
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
function stateChanges(payload) {
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
function continues(last, message) {
  if (last.kind !== message.kind || last.messageId !== message.messageId) return false;
  return message.kind !== "user" || message.at === null || last.until === null || message.at - last.until <= PAUSE;
}

/**
 * Changes a block as the updates of a newer block of the same place did.
 * @param {Block} block
 * @param {Block} newer
 */
function merge(block, newer) {
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
function withTerminals(terminals, payload) {
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
function parentTool(payload) {
  const about = payload._meta?.claudeCode?.parentToolUseId;
  return typeof about === "string" ? about : null;
}
