import assert from "node:assert/strict";
import { test } from "node:test";

import { backgroundOf, begin, emptyTranscript, fold, prepend, toolKey } from "../../../acp_gateway/web/app/updates/fold.js";
import { endText } from "../../../acp_gateway/web/app/updates/turn_ends.js";
import { blockAt } from "../../../acp_gateway/web/app/views/transcript/found_place.js";
import { valueOf } from "../../../acp_gateway/web/app/text/format.js";
import { asked, batches, forSeeds, numbered, randomUpdates, said, SHELL, text, thought } from "./helpers.mjs";

const folded = (payloads) => fold(emptyTranscript(), numbered(payloads));
const kinds = (transcript) => transcript.blocks.map(({ kind }) => kind);
const words = (block) => block.parts.map((part) => part.text);

/** Returns what a transcript says, without what counts its making. */
function substance({ version, ...rest }) {
  return structuredClone(rest);
}

test("a real conversation becomes its blocks and its state", () => {
  const transcript = folded(SHELL);
  assert.deepEqual(kinds(transcript), ["user", "tool", "agent"]);
  const [user, tool, agent] = transcript.blocks;
  assert.deepEqual(words(user), ["List the files, please"]);
  assert.deepEqual(words(agent), ["There is one file."]);
  assert.equal(tool.title, "ls; pwd");
  assert.equal(tool.toolKind, "execute");
  assert.equal(tool.status, "completed");
  assert.deepEqual(tool.locations, [{ path: "/home/ann/project", line: null }]);
  assert.deepEqual(tool.content, [{ type: "content", part: text("a.py\n/home/ann/project\n") }]);
  assert.equal(tool.rawInput.command, "ls; pwd");
  assert.equal(tool.rawOutput.metadata.exit, 0);
  assert.equal(transcript.byTool.get(toolKey("call_1")), tool);
  assert.deepEqual(transcript.commands, [{ name: "init", description: "guided setup" }]);
  assert.deepEqual(transcript.usage, { used: 1200, size: 32000, cost: { amount: 0, currency: "USD" } });
  assert.deepEqual([transcript.firstSeq, transcript.lastSeq, transcript.missing], [1, 10, null]);
});

test("times are those of the first and the last update of a block", () => {
  const [, , agent] = folded(SHELL).blocks;
  assert.deepEqual([agent.at, agent.until], [Date.UTC(2026, 0, 1) + 70, Date.UTC(2026, 0, 1) + 90]);
  const [untimed] = fold(emptyTranscript(), [{ seq: 1, payload: said("x"), createdAt: null }]).blocks;
  assert.equal(untimed.at, null);
});

test("chunks of another kind or another message begin another block", () => {
  const transcript = folded([
    thought("hm"),
    said("a"),
    said("b"),
    said("c", { messageId: "m2" }),
    said("d", { messageId: "m2" }),
    thought("e"),
    said("f", { messageId: "m2" }),
  ]);
  assert.deepEqual(kinds(transcript), ["thought", "agent", "agent", "thought", "agent"]);
  assert.deepEqual(transcript.blocks.map(words), [["hm"], ["ab"], ["cd"], ["e"], ["f"]]);
});

test("an empty chunk makes no block", () => {
  assert.deepEqual(kinds(folded([thought(""), said(""), said("x")])), ["agent"]);
});

test("parts that are not text stay between the texts", () => {
  const link = { type: "resource_link", uri: "file:///a.py", name: "a.py" };
  const image = { type: "image", mimeType: "image/png", data: "AAAA" };
  const chunks = [text("see "), link, text(" and "), text("this "), image].map((content) => ({
    sessionUpdate: "user_message_chunk",
    content,
  }));
  const [user] = folded(chunks).blocks;
  assert.deepEqual(
    user.parts.map(({ type }) => type),
    ["text", "link", "text", "image"],
  );
  assert.equal(user.parts[2].text, " and this ");
  assert.equal(user.parts[3].src, "data:image/png;base64,AAAA");
});

test("a chunk of the user after a pause begins another message", () => {
  const at = (ms) => new Date(ms).toISOString();
  const transcript = fold(emptyTranscript(), [
    { seq: 1, payload: asked("one "), createdAt: at(0) },
    { seq: 2, payload: asked("two"), createdAt: at(1000) },
    { seq: 3, payload: asked("three"), createdAt: at(2001) },
    { seq: 4, payload: asked("four"), createdAt: null },
  ]);
  assert.deepEqual(transcript.blocks.map(words), [["one two"], ["threefour"]]);
});

test("members that a tool call update gives replace the former ones, null and absent ones do not", () => {
  const call = (sessionUpdate, more) => ({ sessionUpdate, toolCallId: "x", ...more });
  const content = (word) => [{ type: "content", content: text(word) }];
  const [tool] = folded([
    call("tool_call", { title: "Edit", kind: "edit", content: content("1"), locations: [{ path: "/a", line: 3 }] }),
    call("tool_call_update", { status: "in_progress", title: null, content: null }),
    call("tool_call_update", { content: content("2"), locations: [] }),
  ]).blocks;
  assert.deepEqual([tool.title, tool.toolKind, tool.status, tool.locations], ["Edit", "edit", "in_progress", []]);
  assert.deepEqual(tool.content, [{ type: "content", part: text("2") }]);
});

test("a tool call that is only updated, and one announced twice, have one block each", () => {
  const transcript = folded([
    { sessionUpdate: "tool_call_update", toolCallId: "a", status: "completed" },
    { sessionUpdate: "tool_call", toolCallId: "b", title: "B" },
    { sessionUpdate: "tool_call", toolCallId: "b", title: "B2", status: "in_progress" },
  ]);
  assert.deepEqual(
    transcript.blocks.map(({ id, title, status }) => [id, title, status]),
    [
      ["a", "", "completed"],
      ["b", "B2", "in_progress"],
    ],
  );
});

test("content chunks and terminal output are appended", () => {
  const [tool] = folded([
    { sessionUpdate: "tool_call", toolCallId: "a", title: "x", _meta: { terminal_info: { terminal_id: "T" } } },
    { sessionUpdate: "tool_call_content_chunk", toolCallId: "a", content: { type: "terminal", terminalId: "T" } },
    {
      sessionUpdate: "tool_call_update",
      toolCallId: "a",
      _meta: { terminal_output: { terminal_id: "T", data: "one " } },
    },
    {
      sessionUpdate: "tool_call_update",
      toolCallId: "a",
      _meta: { terminal_output: { terminal_id: "T", data: "two" } },
    },
    {
      sessionUpdate: "tool_call_update",
      toolCallId: "a",
      _meta: { terminal_exit: { terminal_id: "T", exit_code: 2 } },
    },
  ]).blocks;
  assert.deepEqual(tool.content, [{ type: "terminal", terminalId: "T" }]);
  assert.deepEqual({ ...tool.terminals }, { T: { output: "one two", exitCode: 2, signal: null } });
});

for (const id of ["__proto__", "constructor", "toString"]) {
  test(`a terminal named ${id} has its own output, and nothing else`, () => {
    const before = folded([{ sessionUpdate: "tool_call", toolCallId: "a", title: "x" }]);
    assert.equal(valueOf(before.blocks[0].terminals, id), undefined);
    const output = (data) => ({
      sessionUpdate: "tool_call_update",
      toolCallId: "a",
      _meta: { terminal_output: { terminal_id: id, data } },
    });
    const both = folded([{ sessionUpdate: "tool_call", toolCallId: "a", title: "x" }, output("one "), output("two")]);
    assert.deepEqual(valueOf(both.blocks[0].terminals, id), { output: "one two", exitCode: null, signal: null });
    assert.equal({}.output, undefined);
    const [call, ...rest] = numbered([{ sessionUpdate: "tool_call", toolCallId: "a" }, output("one "), output("two")]);
    const joined = prepend(fold(emptyTranscript(), rest.slice(1)), [call, rest[0]]);
    assert.equal(valueOf(joined.blocks[0].terminals, id)?.output, "one two");
  });
}

/** An update of a tool call with a terminal of an agent of version 2, as the gateway tells it. */
const own = (told) => ({ _meta: { "acp-gateway": told } });
const output = (words, told) => ({ type: "content", content: { type: "text", text: words }, ...own(told) });
const call = (members) => ({ sessionUpdate: "tool_call_update", toolCallId: "a", ...members });

test("a terminal of an agent of version 2 has its last whole output, what was added since, and its end", () => {
  const updates = [
    call({ content: [output("one\n", { terminal: { terminalId: "T" } })] }),
    call(own({ terminal: { terminalId: "T", data: "two\n" } })),
    call({ content: [output("one\ntwo\n", { terminal: { terminalId: "T" } })] }),
    call(own({ terminal: { terminalId: "T", data: "three" } })),
  ];
  const growing = folded(updates).blocks[0];
  assert.deepEqual(growing.content, [{ type: "terminal", terminalId: "T" }]);
  assert.deepEqual(growing.terminals.T, { output: "one\ntwo\nthree", exitCode: null, signal: null, whole: true });
  const about = { terminalId: "T", exitStatus: { exitCode: 2 } };
  const ended = call({ content: [output("all", { terminal: about }), output("[exit code 2]", { terminalEnd: about })] });
  const tool = folded([...updates, ended]).blocks[0];
  assert.deepEqual(tool.content, [{ type: "terminal", terminalId: "T" }]);
  assert.deepEqual(tool.terminals.T, { output: "all", exitCode: 2, signal: null, whole: true });
});

test("output that was replaced or is older than the transcript is not added to what came before", () => {
  const told = [
    call(own({ terminal: { terminalId: "T", data: "old" } })),
    call(own({ terminal: { terminalId: "T", output: "new" } })),
    call(own({ terminal: { terminalId: "T", data: "er" } })),
  ];
  assert.equal(folded(told).blocks[0].terminals.T.output, "newer");
  const all = numbered(told);
  for (const at of [1, 2]) {
    const joined = prepend(fold(emptyTranscript(), all.slice(at)), all.slice(0, at));
    assert.equal(joined.blocks[0].terminals.T.output, "newer");
  }
  const long = folded([call(own({ terminal: { terminalId: "T", data: "x".repeat(70_000) } }))]);
  assert.equal(long.blocks[0].terminals.T.output.length, 65_536);
});

test("a notice is a note, also if it comes as a message", () => {
  const notice = { severity: "warning", title: "Slow", description: "" };
  const { blocks } = folded([{ sessionUpdate: "notice", ...notice }, said("[warning: Slow]", own({ notice })), said("a")]);
  assert.deepEqual(kinds({ blocks }), ["note", "note", "agent"]);
  const read = blocks.slice(0, 2).map(({ note, severity, title }) => [note, severity, title]);
  assert.deepEqual(read, Array(2).fill(["notice", "warning", "Slow"]));
});

test("each of several plans has its block, until it is removed", () => {
  const plan = (plans, ...contents) => ({
    sessionUpdate: "plan",
    // The last entry names the other plans.
    entries: [...contents, "others"].map((content) => ({ content, status: "pending", priority: "low" })),
    ...own({ plans, entries: contents.length }),
  });
  const shown = ({ blocks }) =>
    blocks
      .filter(({ kind }) => kind === "plan")
      .map(({ name, entries, removed }) => [name, entries.map(({ content }) => content).join(), removed]);
  const updates = [asked("go"), plan(["p"], "a"), plan(["p", "q"], "b"), said("."), plan(["q", "p"], "a", "c")];
  const transcript = folded(updates);
  assert.deepEqual(shown(transcript), [["p", "a,c", false], ["q", "b", false]]);
  const now = ({ plan }) => plan.map(({ id, entries }) => [id, entries?.map(({ content }) => content).join() ?? null]);
  assert.deepEqual(now(transcript), [["q", "b"], ["p", "a,c"]]);
  assert.deepEqual(now(folded(updates.slice(-1))), [["q", null], ["p", "a,c"]]);
  assert.deepEqual(shown(folded([...updates, plan(["q"], "b")])), [["p", "a,c", true], ["q", "b", false]]);
  const none = folded([...updates, plan([])]);
  assert.deepEqual(shown(none), [["p", "a,c", true], ["q", "b", true]]);
  assert.deepEqual(none.plan, []);
  assert.deepEqual(shown(folded([...updates, asked("on"), plan(["p"], "z")])).at(-1), ["", "z", false]);
  const all = numbered(updates);
  for (let at = 1; at < all.length; at += 1) {
    const joined = prepend(fold(emptyTranscript(), all.slice(at)), all.slice(0, at));
    assert.deepEqual(substance(joined), substance(fold(emptyTranscript(), numbered(updates))));
  }
});

test("what goes on in the background is named by its tool calls", () => {
  const tells = (background) => ({ sessionUpdate: "session_info_update", ...own({ background }) });
  const works = [{ type: "tool_call", toolCallId: "t" }, { type: "terminal", terminalId: "y" }, { type: "_odd" }, 1];
  const call = { sessionUpdate: "tool_call", toolCallId: "t", title: "serve" };
  const transcript = folded([call, tells(works), { sessionUpdate: "session_info_update", title: "T" }]);
  assert.deepEqual([backgroundOf(transcript), transcript.title], [["serve", "y", "_odd"], "T"]);
  assert.deepEqual(backgroundOf(folded([call, tells(works), tells([])])), []);
  assert.deepEqual(kinds(transcript), ["tool"]);
});

test("a plan replaces the plan of its turn, and the next turn has its own", () => {
  const plan = (...contents) => ({
    sessionUpdate: "plan",
    entries: contents.map((content) => ({ content, status: "pending" })),
  });
  const transcript = folded([asked("go"), plan("a"), said("."), plan("a", "b"), asked("on"), plan("c")]);
  assert.deepEqual(kinds(transcript), ["user", "plan", "agent", "user", "plan"]);
  assert.deepEqual(
    transcript.blocks[1].entries.map(({ content }) => content),
    ["a", "b"],
  );
  const entries = [{ content: "c", priority: "medium", status: "pending" }];
  assert.deepEqual(transcript.plan, [{ id: "", entries }]);
});

test("the last of each state update holds", () => {
  const transcript = folded([
    { sessionUpdate: "current_mode_update", currentModeId: "plan" },
    { sessionUpdate: "current_mode_update", currentModeId: "build" },
    { sessionUpdate: "config_option_update", configOptions: [{ id: "model" }] },
    { sessionUpdate: "session_info_update", title: "One" },
    { sessionUpdate: "session_info_update", updatedAt: "2026-01-01T00:00:00Z" },
  ]);
  assert.deepEqual(
    [transcript.modeId, transcript.configOptions, transcript.title],
    ["build", [{ id: "model" }], "One"],
  );
  assert.equal(transcript.blocks.length, 0);
});

test("an update that only keeps the place of a message of version 2 has a number and is not shown", () => {
  const transcript = folded([said("a"), { sessionUpdate: "_acp-gateway/original" }, said("b")]);
  assert.equal(transcript.lastSeq, 3);
  assert.deepEqual(
    transcript.blocks.map(({ kind }) => kind),
    ["agent"],
  );
});

test("unknown updates are counted in one note that keeps the last of them", () => {
  const future = (n) => ({ sessionUpdate: "future_update", n });
  const transcript = folded([...Array(30).keys()].map(future).concat([{ sessionUpdate: "other_update" }, future(30)]));
  assert.deepEqual(
    transcript.blocks.map(({ updateType, count }) => [updateType, count]),
    [
      ["future_update", 30],
      ["other_update", 1],
      ["future_update", 1],
    ],
  );
  assert.deepEqual(
    transcript.blocks[0].payloads.map(({ n }) => n),
    [...Array(20).keys()].map((n) => n + 10),
  );
});

test("sub-agents have lanes of their own, and their state is not the session's", () => {
  const of = (sub, payload) => ({ payload, sub });
  const updates = [
    of(null, { sessionUpdate: "subagent_update", sessionId: "c", title: "Explorer", state: { state: "running" } }),
    of(null, said("I ")),
    of("c", said("look ")),
    of(null, said("wait")),
    of("c", said("around")),
    of("c", { sessionUpdate: "current_mode_update", currentModeId: "sub" }),
    of("c", { sessionUpdate: "tool_call", toolCallId: "t", title: "find" }),
    of(null, { sessionUpdate: "tool_call", toolCallId: "t", title: "task" }),
    of(null, { sessionUpdate: "subagent_update", sessionId: "c", state: { state: "idle" } }),
  ].map((update, i) => ({ seq: i + 1, ...update }));
  const transcript = fold(emptyTranscript(), updates);
  assert.deepEqual(
    transcript.blocks.map(({ kind, sub, parts, title }) => [kind, sub, title ?? parts[0].text]),
    [
      ["note", null, "Explorer"],
      ["agent", null, "I wait"],
      ["agent", "c", "look around"],
      ["tool", "c", "find"],
      ["tool", null, "task"],
    ],
  );
  assert.deepEqual(transcript.blocks[0].state, { state: "idle" });
  assert.equal(transcript.modeId, null);
  assert.equal(transcript.byTool.get(toolKey("t", "c")).title, "find");
});

test("an update in _meta of a parent tool call belongs to that sub-agent", () => {
  const meta = { _meta: { claudeCode: { parentToolUseId: "task" } } };
  const transcript = folded([said("a"), said("b", meta), said("c")]);
  assert.deepEqual(
    transcript.blocks.map((block) => [block.sub, words(block)]),
    [
      [null, ["ac"]],
      ["task", ["b"]],
    ],
  );
});

test("folding stops at a gap, says what is missing and goes on when it has come", () => {
  const updates = numbered([said("a"), said("b"), said("c"), said("d")]);
  const before = fold(emptyTranscript(), [updates[0], updates[2], updates[3]]);
  assert.deepEqual([before.lastSeq, before.missing, words(before.blocks[0])], [1, { since: 1, next: 3 }, ["a"]]);
  assert.equal(fold(before, [updates[3]]).missing.next, 4);
  const after = fold(before, updates.slice(1));
  assert.deepEqual([after.lastSeq, after.missing, words(after.blocks[0])], [4, null, ["abcd"]]);
});

test("a transcript may begin at any number", () => {
  const transcript = fold(emptyTranscript(), numbered([said("x")], 500));
  assert.deepEqual([transcript.firstSeq, transcript.lastSeq, transcript.missing], [500, 500, null]);
});

test("updates without a usable number or payload do no harm", () => {
  const odd = [
    {},
    { seq: "1" },
    { seq: 1.5 },
    { seq: NaN },
    { seq: 0, payload: said("x") },
    { seq: -1, payload: said("x") },
  ];
  assert.equal(fold(emptyTranscript(), odd).blocks.length, 0);
  const members = [null, 5, [], {}, { sessionUpdate: 3 }, { sessionUpdate: "tool_call" }, { sessionUpdate: "plan" }];
  const contents = [null, 5, [], {}, { type: "image" }, { type: "resource" }, { type: "text", text: { toString: 1 } }];
  const payloads = [...members, ...contents.map((content) => ({ sessionUpdate: "agent_message_chunk", content }))];
  assert.equal(folded(payloads).lastSeq, payloads.length);
});

test("any split into batches folds to the same", () => {
  forSeeds(200, (random) => {
    const updates = randomUpdates(random, 80);
    let transcript = emptyTranscript();
    for (const batch of batches(random, updates)) transcript = fold(transcript, batch);
    assert.deepEqual(substance(transcript), substance(fold(emptyTranscript(), updates)));
  });
});

test("updates that are known change nothing", () => {
  forSeeds(50, (random) => {
    const updates = randomUpdates(random, 40);
    const transcript = fold(emptyTranscript(), updates);
    const before = substance(transcript);
    const start = random.below(40);
    assert.equal(fold(transcript, updates.slice(start, start + random.below(20))), transcript);
    assert.deepEqual(substance(transcript), before);
  });
});

test("overlapping batches fold to the same", () => {
  forSeeds(50, (random) => {
    const updates = randomUpdates(random, 60);
    let transcript = emptyTranscript();
    while (transcript.lastSeq < 60) {
      const start = Math.max(0, transcript.lastSeq - random.below(10));
      transcript = fold(transcript, updates.slice(start, start + 1 + random.below(20)));
    }
    assert.deepEqual(substance(transcript), substance(fold(emptyTranscript(), updates)));
  });
});

test("a changed block is a new object, and no other is", () => {
  forSeeds(100, (random) => {
    const updates = randomUpdates(random, 80);
    let transcript = emptyTranscript();
    for (const batch of batches(random, updates)) {
      const before = [...transcript.blocks];
      const copies = structuredClone(before);
      const { version, blocks } = transcript;
      transcript = fold(transcript, batch);
      assert.equal(transcript.blocks, blocks);
      assert.equal(transcript.version > version, batch.length > 0);
      before.forEach((block, i) => {
        assert.deepEqual(structuredClone(block), copies[i], "an old block was changed in place");
        const kept = transcript.blocks[i] === block;
        const touched = batch.some(({ seq }) => seq > 0) && !kept;
        if (!touched) assert.deepEqual(structuredClone(transcript.blocks[i]), copies[i]);
      });
      const renewed = before.filter((block, i) => transcript.blocks[i] !== block).length;
      assert.ok(renewed <= batch.length, `${renewed} blocks renewed by ${batch.length} updates`);
    }
  });
});

test("older updates in front give what folding all of them gives", () => {
  forSeeds(400, (random) => {
    const updates = randomUpdates(random, 60);
    const cut = 1 + random.below(59);
    const again = random.below(cut);
    let transcript = fold(emptyTranscript(), updates.slice(cut));
    transcript = prepend(transcript, updates.slice(again, cut + random.below(5)));
    transcript = prepend(transcript, updates.slice(0, again));
    assert.deepEqual(substance(transcript), substance(fold(emptyTranscript(), updates)));
  });
});

test("a transcript may begin in a state, which its updates change and older ones do not", () => {
  const state = [
    { sessionUpdate: "current_mode_update", currentModeId: "plan" },
    { sessionUpdate: "usage_update", used: 5, size: 9 },
    { sessionUpdate: "plan", entries: [{ content: "a" }] },
    { sessionUpdate: "agent_message_chunk", content: text("x") },
    null,
  ];
  const old = numbered([{ sessionUpdate: "current_mode_update", currentModeId: "build" }, said("a")]);
  let transcript = begin(emptyTranscript(), state);
  transcript = fold(transcript, numbered([{ sessionUpdate: "usage_update", used: 6, size: 9 }], 3));
  transcript = prepend(transcript, old);
  assert.deepEqual([transcript.modeId, transcript.usage.used, transcript.plan[0].entries[0].content], ["plan", 6, "a"]);
  assert.deepEqual(kinds(transcript), ["agent"]);
});

test("notices are notes of their own", () => {
  const notice = (title) => ({ sessionUpdate: "notice", severity: "warning", title, description: null });
  const shown = folded([notice("a"), notice("b")]).blocks.map(({ note, severity, title, description }) => [
    note,
    severity,
    title,
    description,
  ]);
  assert.deepEqual(shown, [
    ["notice", "warning", "a", ""],
    ["notice", "warning", "b", ""],
  ]);
});

test("prepending does not change a block that is known outside in place", () => {
  forSeeds(100, (random) => {
    const updates = randomUpdates(random, 60);
    const transcript = fold(emptyTranscript(), updates.slice(30));
    const known = [...transcript.blocks];
    const copies = structuredClone(known);
    prepend(transcript, updates.slice(0, 30));
    const bare = ({ pos, ...block }) => block;
    assert.deepEqual(structuredClone(known).map(bare), copies.map(bare));
  });
});

test("older updates that do not reach up to the transcript are refused", () => {
  const updates = numbered([said("a"), said("b"), said("c"), said("d")]);
  const transcript = fold(emptyTranscript(), updates.slice(3));
  assert.equal(prepend(transcript, updates.slice(0, 2)), transcript);
  assert.equal(prepend(transcript, []), transcript);
  assert.deepEqual(words(prepend(transcript, updates.slice(0, 3)).blocks[0]), ["abcd"]);
});

test("a hundred thousand updates fold in batches without copying the transcript", () => {
  const payloads = [];
  for (let i = 0; i < 10_000; i += 1) {
    const toolCallId = `t${i}`;
    payloads.push(said("one "), said("two "), said("three"), { sessionUpdate: "tool_call", toolCallId, title: "x" });
    for (let n = 0; n < 6; n += 1)
      payloads.push({ sessionUpdate: "tool_call_update", toolCallId, status: "in_progress" });
  }
  const updates = numbered(payloads);
  let transcript = emptyTranscript();
  const { blocks, byTool } = transcript;
  for (let i = 0; i < updates.length; i += 50) transcript = fold(transcript, updates.slice(i, i + 50));
  assert.deepEqual([transcript.lastSeq, transcript.blocks.length, transcript.byTool.size], [100_000, 20_000, 10_000]);
  assert.equal(transcript.blocks, blocks);
  assert.equal(transcript.byTool, byTool);
});

test("an update is in the block that it changes, also where others lie between, and after older ones have come", () => {
  const call = (id) => ({ sessionUpdate: "tool_call", toolCallId: id, title: id });
  const done = (id) => ({ sessionUpdate: "tool_call_update", toolCallId: id, status: "completed" });
  const payloads = [said("a"), call("one"), call("two"), done("one"), said("b"), done("two"), done("one"), said("c")];
  const names = ({ blocks }) => payloads.map((_, i) => blockAt(blocks, i + 1).id ?? blockAt(blocks, i + 1).seq);
  const places = [1, "one", "two", "one", 5, "two", "one", 5];
  assert.deepEqual(names(folded(payloads)), places);
  const updates = numbered(payloads);
  for (let cut = 1; cut < updates.length; cut += 1) {
    const later = fold(emptyTranscript(), updates.slice(cut));
    assert.deepEqual(names(prepend(later, updates.slice(0, cut))), places, `cut at ${cut}`);
  }
});

// Ends of turns

const ended = (seq, payload, nth = 1) => ({ seq, nth, updateType: "turn_end", payload: { sessionUpdate: "turn_end", ...payload }, createdAt: "2026-01-01T00:00:00Z" });
const update = (seq, payload) => ({ seq, payload, createdAt: null });
const TURNS = [
  update(1, { sessionUpdate: "user_message_chunk", content: text("try") }),
  ended(1, { error: { code: 429, message: "try again in 32 s" } }),
  update(2, { sessionUpdate: "user_message_chunk", content: text("again") }),
  update(3, said("done")),
  ended(3, { stopReason: "end_turn" }),
  update(4, { sessionUpdate: "user_message_chunk", content: text("more") }),
  ended(4, { stopReason: "cancelled" }),
  ended(4, { stopReason: "cancelled" }, 2),
];

test("ends of turns have their place, and that of a turn that was done shows nothing", () => {
  const transcript = fold(emptyTranscript(), TURNS);
  assert.deepEqual(kinds(transcript), ["user", "end", "user", "agent", "user", "end", "end"]);
  assert.equal(transcript.blocks[1].end.error, "try again in 32 s");
  assert.equal(transcript.blocks[1].at, Date.UTC(2026, 0, 1));
  assert.equal(new Set(transcript.blocks.map(({ key }) => key)).size, transcript.blocks.length);
  assert.deepEqual([transcript.end.seq, transcript.end.nth, transcript.end.stopReason, transcript.lastSeq], [4, 2, "cancelled", 4]);
});

test("an end of a turn that is known is passed over, in whatever batches they come", () => {
  const whole = fold(emptyTranscript(), TURNS);
  for (let at = 0; at <= TURNS.length; at += 1) {
    const first = fold(emptyTranscript(), TURNS.slice(0, at));
    const since = TURNS.filter(({ seq, nth }) => seq > first.lastSeq || (seq === first.lastSeq && nth));
    assert.deepEqual(fold(first, since).blocks, whole.blocks);
  }
  assert.equal(fold(whole, TURNS), whole);
});

test("older updates in front bring the ends of their turns", () => {
  for (const at of [2, 5]) {
    const newer = fold(emptyTranscript(), TURNS.slice(at));
    const both = prepend(newer, TURNS.slice(0, at));
    assert.deepEqual(both.blocks.map(({ key }) => key), fold(emptyTranscript(), TURNS).blocks.map(({ key }) => key));
    assert.equal(both.end.nth, 2);
  }
});

test("an end of a turn is told in words unless the turn was done", () => {
  const words = (stopReason, error = null) => endText({ stopReason, error });
  assert.deepEqual([words("end_turn"), words(null), words("cancelled")], ["", "", "Stopped."]);
  assert.equal(words(null, "try again in 32 s"), "Try again in 32 s");
  assert.equal(words("something_new"), "The turn has ended: something_new.");
});

test("prompts without an answer between them are prompts of their own, in whatever parts they come", () => {
  const prompt = (seq, words) => ({ seq, payload: { sessionUpdate: "user_message_chunk", content: text(words) }, createdAt: "2026-01-01T00:00:00Z" });
  const updates = [prompt(1, "err"), ended(1, { stopReason: "end_turn" }), prompt(2, "er"), prompt(3, "r"), ended(3, { stopReason: "end_turn" }), prompt(4, "ok")];
  const prompts = ({ blocks }) => blocks.map(({ parts }) => parts.map((part) => part.text).join("|"));
  for (let at = 0; at <= updates.length; at += 1) {
    const [older, newer] = [updates.slice(0, at), updates.slice(at)];
    assert.deepEqual(prompts(fold(fold(emptyTranscript(), older), newer)), ["err", "err", "ok"]);
    if (newer[0]?.updateType === undefined) assert.deepEqual(prompts(prepend(fold(emptyTranscript(), newer), older)), ["err", "err", "ok"], `${at}`);
  }
});
