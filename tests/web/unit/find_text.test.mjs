import assert from "node:assert/strict";
import { test } from "node:test";

import { blocksWith, comparable, placesIn, wantedOf } from "../../../acp_gateway/web/app/updates/find_text.js";
import { emptyTranscript, fold } from "../../../acp_gateway/web/app/updates/fold.js";

const said = (kind, text) => ({ sessionUpdate: `${kind}_chunk`, content: { type: "text", text } });
const blocksOf = (...payloads) =>
  fold(emptyTranscript(), payloads.map((payload, i) => ({ seq: i + 1, payload }))).blocks;

test("each place of a text is found, also within a word and in other letters of a case", () => {
  const text = comparable("parseRateLimit, RATE\nlimit, rate");
  assert.deepEqual(placesIn(text, wantedOf(" Rate ")), [5, 16, 28]);
  assert.deepEqual(placesIn(text, wantedOf("rate  limit")), [16]);
  assert.deepEqual(placesIn("aaa", "aa"), [0]);
  assert.equal(wantedOf("x".repeat(1000)).length, 200);
});

test("a text keeps its length where a letter has another one in lower case", () => {
  for (const text of ["İstanbul", "A\u2028B\tC"]) assert.equal(comparable(text).length, text.length);
});

test("blocks with a text are found from the last one to the first, with how often they have it", () => {
  const blocks = blocksOf(
    said("user_message", "Find the needle, needles"),
    said("agent_message", "hay"),
    { sessionUpdate: "plan", entries: [{ content: "a needle", priority: "low", status: "pending" }] },
    said("agent_thought", "NEEDLE"),
  );
  assert.deepEqual(blocksWith(blocks, "needle"), [
    { key: "b4", count: 1 },
    { key: "b3", count: 1 },
    { key: "b1", count: 2 },
  ]);
  assert.deepEqual(blocksWith(blocks, ""), []);
});

test("all that a tool call shows is searched", () => {
  const content = (text) => ({ type: "content", content: { type: "text", text } });
  const shown = [
    { title: "needle" },
    { rawInput: { command: "grep needle" } },
    { content: [content("a needle")] },
    { content: [{ type: "diff", path: "a/needle.py", oldText: "needle", newText: "needles" }] },
    { rawOutput: { stdout: "needle" } },
  ];
  const counts = shown.map((members) => {
    const tool = { sessionUpdate: "tool_call", toolCallId: "t", title: "", kind: "other", ...members };
    return blocksWith(blocksOf(tool), "needle").map(({ count }) => count);
  });
  assert.deepEqual(counts, [[1], [1], [1], [3], [1]]);
});

test("a block that has changed is searched again", () => {
  let transcript = fold(emptyTranscript(), [{ seq: 1, payload: said("agent_message", "nee") }]);
  assert.deepEqual(blocksWith(transcript.blocks, "needle"), []);
  transcript = fold(transcript, [{ seq: 2, payload: said("agent_message", "dle") }]);
  assert.deepEqual(blocksWith(transcript.blocks, "needle"), [{ key: "b1", count: 1 }]);
});

test("a text that was counted in a block is not looked for there again", (t) => {
  const blocks = blocksOf(said("user_message", "A needle"), said("agent_message", "hay"));
  const before = blocksWith(blocks, "needle");
  const search = t.mock.method(String.prototype, "indexOf");
  assert.deepEqual(blocksWith(blocks, "needle"), before);
  assert.equal(search.mock.callCount(), 0);
});

test("how a turn has ended is searched", () => {
  const entry = { seq: 1, updateType: "turn_end", payload: { error: { code: 1, message: "a needle" } } };
  const { blocks } = fold(emptyTranscript(), [{ seq: 1, payload: said("agent_message", "hay") }, entry]);
  assert.deepEqual(blocksWith(blocks, "needle"), [{ key: "e1.1", count: 1 }]);
});
