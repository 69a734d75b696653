/** What several tests of the page's modules share: chance from a seed, timers by hand, a made-up conversation. */

/** Makes a generator of numbers from 0 to 1 (mulberry32), with choices on it. */
export function chance(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const below = (n) => Math.floor(next() * n);
  return { next, below, pick: (list) => list[below(list.length)], maybe: (p) => next() < p };
}

const SHARE = Number(process.env.SHARE_OF_SEEDS ?? 1);

/** Runs a test body for many seeds; a failure names its seed. */
export function forSeeds(count, body) {
  for (let seed = 1; seed <= count * SHARE; seed += 1) {
    try {
      body(chance(seed), seed);
    } catch (error) {
      error.message = `seed ${seed}: ${error.message}`;
      throw error;
    }
  }
}

/** Makes timers and a clock that only `pass` moves. */
export function manualTimers(start = 1_000_000) {
  let now = start;
  let last = 0;
  const waiting = new Map();
  return {
    clock: () => now,
    timers: {
      setTimeout: (action, ms) => {
        last += 1;
        waiting.set(last, { at: now + ms, action });
        return last;
      },
      clearTimeout: (timer) => waiting.delete(timer),
    },
    pending: () => [...waiting.values()].map(({ at }) => at - now),
    pass(ms) {
      const end = now + ms;
      for (;;) {
        const due = [...waiting].filter(([, { at }]) => at <= end).sort((a, b) => a[1].at - b[1].at)[0];
        if (!due) break;
        waiting.delete(due[0]);
        now = Math.max(now, due[1].at);
        due[1].action();
      }
      now = end;
    },
  };
}

/** Lets promises that are ready run. */
export async function settle() {
  for (let i = 0; i < 20; i += 1) await Promise.resolve();
}

/** Numbers payloads as updates of a session, a second apart. */
export function numbered(payloads, first = 1) {
  return payloads.map((payload, i) => ({
    seq: first + i,
    updateType: payload?.sessionUpdate,
    payload,
    createdAt: new Date(Date.UTC(2026, 0, 1) + (first + i) * 10).toISOString(),
  }));
}

export const text = (value) => ({ type: "text", text: value });
export const said = (value, more = {}) => ({ sessionUpdate: "agent_message_chunk", content: text(value), ...more });
export const thought = (value, more = {}) => ({ sessionUpdate: "agent_thought_chunk", content: text(value), ...more });
export const asked = (value, more = {}) => ({ sessionUpdate: "user_message_chunk", content: text(value), ...more });

/** A shell command that is announced, approved and run, as a real agent reports it. */
export const SHELL = [
  { sessionUpdate: "available_commands_update", availableCommands: [{ name: "init", description: "guided setup" }] },
  asked("List the files, please"),
  {
    sessionUpdate: "tool_call",
    toolCallId: "call_1",
    title: "bash",
    kind: "execute",
    status: "pending",
    locations: [{ path: "/home/ann/project" }],
    rawInput: { cwd: "/home/ann/project" },
  },
  {
    sessionUpdate: "tool_call_update",
    toolCallId: "call_1",
    status: "in_progress",
    kind: "execute",
    title: "ls; pwd",
    locations: [{ path: "/home/ann/project" }],
    rawInput: { command: "ls; pwd", description: "list", cwd: "/home/ann/project" },
  },
  {
    sessionUpdate: "tool_call_update",
    toolCallId: "call_1",
    status: "in_progress",
    content: [{ type: "content", content: text("a.py\n") }],
  },
  {
    sessionUpdate: "tool_call_update",
    toolCallId: "call_1",
    status: "completed",
    title: "ls; pwd",
    content: [{ type: "content", content: text("a.py\n/home/ann/project\n") }],
    rawOutput: { output: "a.py\n/home/ann/project\n", metadata: { exit: 0, truncated: false } },
  },
  said("There is ", { messageId: "msg_1" }),
  said("one ", { messageId: "msg_1" }),
  said("file.", { messageId: "msg_1" }),
  { sessionUpdate: "usage_update", used: 1200, size: 32000, cost: { amount: 0, currency: "USD" } },
];

/** Makes a random sequence of updates of every kind, of the session and of sub-agents. */
export function randomUpdates(random, count) {
  const tools = ["t1", "t2", "t3"];
  const updates = [];
  let at = Date.UTC(2026, 0, 1);
  for (let seq = 1; seq <= count; seq += 1) {
    at += random.pick([0, 5, 5, 5000]);
    const sub = random.maybe(0.2) ? random.pick(["child-1", "child-2"]) : undefined;
    const meta = random.maybe(0.1) ? { _meta: { claudeCode: { parentToolUseId: random.pick(tools) } } } : {};
    const messageId = random.maybe(0.2) ? { messageId: random.pick(["m1", "m2"]) } : {};
    const word = random.pick(["", "a", "b ", "c\n", "*d*"]);
    const part = random.maybe(0.1) ? { type: "resource_link", uri: "file:///x", name: "x" } : text(word);
    const chunk = (sessionUpdate) => ({ sessionUpdate, content: part, ...messageId, ...meta });
    const call = { toolCallId: random.pick(tools), ...meta };
    if (random.maybe(0.5)) call.title = random.pick(["ls", "cat x"]);
    if (random.maybe(0.5)) call.status = random.pick(["in_progress", "completed"]);
    if (random.maybe(0.3)) call.kind = "execute";
    if (random.maybe(0.3)) call.content = [{ type: "content", content: text(word) }];
    if (random.maybe(0.2)) call.rawInput = { n: seq };
    if (random.maybe(0.2)) call.locations = null;
    if (random.maybe(0.2)) call._meta = { ...call._meta, terminal_output: { terminal_id: "x", data: word } };
    const payload = random.pick([
      () => chunk("user_message_chunk"),
      () => chunk("agent_message_chunk"),
      () => chunk("agent_message_chunk"),
      () => chunk("agent_thought_chunk"),
      () => ({ sessionUpdate: "tool_call", ...call }),
      () => ({ sessionUpdate: "tool_call_update", ...call }),
      () => ({ sessionUpdate: "tool_call_update", ...call }),
      () => ({
        sessionUpdate: "tool_call_content_chunk",
        toolCallId: call.toolCallId,
        content: { type: "diff", path: "x" },
      }),
      () => ({ sessionUpdate: "plan", entries: [{ content: word, priority: "high", status: "pending" }] }),
      () => ({ sessionUpdate: "available_commands_update", availableCommands: [{ name: word }] }),
      () => ({ sessionUpdate: "current_mode_update", currentModeId: word }),
      () => ({ sessionUpdate: "config_option_update", configOptions: [{ id: word }] }),
      () => ({ sessionUpdate: "session_info_update", title: random.pick([word, null, undefined]) }),
      () => ({ sessionUpdate: "usage_update", used: seq, size: 100 }),
      () => ({
        sessionUpdate: "subagent_update",
        sessionId: random.pick(["child-1", "child-2"]),
        title: random.pick([word, null, undefined]),
        state: random.pick([{ state: "running" }, undefined]),
      }),
      () => ({ sessionUpdate: "notice", severity: "warning", title: word }),
      () => ({ sessionUpdate: random.pick(["future_update", "other_update"]), n: seq }),
      () => random.pick([null, 7, "x", [], {}]),
    ])();
    const createdAt = new Date(at).toISOString();
    updates.push({
      seq,
      updateType: payload?.sessionUpdate,
      payload,
      createdAt: random.maybe(0.1) ? null : createdAt,
      sub,
    });
  }
  return updates;
}

/** Cuts a list into random batches. */
export function batches(random, list) {
  const cut = [];
  for (let i = 0; i < list.length;) {
    const size = random.below(7);
    cut.push(list.slice(i, i + size));
    i += size;
  }
  return cut;
}

/** A storage of a browser: its names are its properties. */
export class Items {
  getItem(name) {
    return this[name] ?? null;
  }
  setItem(name, text) {
    this[name] = text;
  }
  removeItem(name) {
    delete this[name];
  }
}
