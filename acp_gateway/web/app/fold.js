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
import { isObject, partOf, toolItemOf } from "./content.js";
import {
  continues,
  copyOf,
  emptyTool,
  emptyTranscript,
  merge,
  noticeOf,
  parentTool,
  plansNow,
  plansOf,
  setMembers,
  setSubagent,
  stateChanges,
  toolKey,
  STATE,
  withKnown,
  withTerminals,
} from "./fold_blocks.js";
import { plain, recordOf, timeOf } from "./format.js";
import { endText, nextEnd, TURN_END } from "./turn_ends.js";

export { emptyTranscript, toolKey };

/**
 * @typedef {import("./content.js").Part} Part
 * @typedef {import("./fold_blocks.js").Block} Block
 * @typedef {import("./fold_blocks.js").Transcript} Transcript
 * @typedef {{seq: number, payload: any, updateType?: string, createdAt?: string|number|null, sub?: string|null}} Update
 *   `sub` is the session of the sub-agent that an update belongs to.
 * @typedef {{seq: number, at: number|null, sub: string|null}} Base
 */

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
