import assert from "node:assert/strict";
import { test } from "node:test";

import {
  changesOf,
  isLine,
  lineOf,
  linesBetween,
  placeText,
  remarksOf,
  reviewPrompt,
  rowOfRemark,
} from "../../../acp_gateway/web/app/updates/changes.js";
import { diffRows } from "../../../acp_gateway/web/app/text/diff.js";
import { emptyTranscript, fold } from "../../../acp_gateway/web/app/updates/fold.js";
import { asked, numbered, said } from "./helpers.mjs";

const diff = (path, oldText, newText, change = undefined) => ({
  type: "diff",
  path,
  oldText,
  newText,
  ...(change && { _meta: { "acp-gateway": { change } } }),
});
const edit = (id, content, more = {}) => ({
  sessionUpdate: "tool_call",
  toolCallId: id,
  kind: "edit",
  status: "completed",
  content,
  ...more,
});
const blocksOf = (...payloads) => fold(emptyTranscript(), numbered(payloads)).blocks;
const brief = (files) =>
  files.map(({ path, edits }) => [path, ...edits.map(({ content }) => [content.oldText, content.newText])]);

test("changed files come in the order of their first change, whatever else was said", () => {
  const blocks = blocksOf(
    asked("go"),
    edit("t1", [diff("/b", null, "1\n"), { type: "content", content: { type: "text", text: "wrote" } }]),
    said("then"),
    edit("t2", [diff("/a", "x\n", "y\n")]),
  );
  assert.deepEqual(brief(changesOf(blocks)), [
    ["/b", [null, "1\n"]],
    ["/a", ["x\n", "y\n"]],
  ]);
});

test("the deletion of a file is not joined with what was changed before, nor with what comes after it", () => {
  const deletion = { operation: "delete", path: "/a", fileType: "text" };
  const [file] = changesOf(
    blocksOf(
      edit("t1", [diff("/a", null, "1\n")]),
      edit("t2", [diff("/a", "1\n", "", deletion)]),
      edit("t3", [diff("/a", "", "2\n")]),
    ),
  );
  assert.deepEqual(
    file.edits.map(({ content }) => [content.change?.operation, content.oldText, content.newText]),
    [
      [undefined, null, "1\n"],
      ["delete", "1\n", ""],
      [undefined, "", "2\n"],
    ],
  );
});

test("changes of a file that continue each other are one, and others stay apart in their order", () => {
  const blocks = blocksOf(
    edit("t1", [diff("/a", "1", "2")]),
    edit("t2", [diff("/b", "1", "2")]),
    edit("t3", [diff("/a", "2", "3")]),
    edit("t4", [diff("/a", "other", "part")]),
  );
  assert.deepEqual(brief(changesOf(blocks)), [
    ["/a", ["1", "3"], ["other", "part"]],
    ["/b", ["1", "2"]],
  ]);
});

test("a joined change is the same object until another one comes, so that it is compared once", () => {
  const blocks = blocksOf(edit("t1", [diff("/a", "1", "2")]), edit("t2", [diff("/a", "2", "3")]));
  const [one, other] = [changesOf(blocks), changesOf(blocks)];
  assert.equal(one[0].edits[0].content, other[0].edits[0].content);
  assert.equal(one[0].edits[0].key, other[0].edits[0].key);
});

test("a tool call that failed has changed nothing, and one that waits is not done", () => {
  const blocks = blocksOf(
    edit("t1", [diff("/a", "1", "2")], { status: "failed" }),
    edit("t2", [diff("/b", "1", "2")], { status: "completed" }),
    edit("t3", [diff("/b", "2", "3")], { status: "pending" }),
  );
  const files = changesOf(blocks);
  assert.deepEqual(brief(files), [["/b", ["1", "2"], ["2", "3"]]]);
  assert.deepEqual(
    files[0].edits.map(({ done }) => done),
    [true, false],
  );
});

test("of the last turn only what came after the last prompt is shown", () => {
  const blocks = blocksOf(
    asked("one"),
    edit("t1", [diff("/a", "1", "2")]),
    asked("two"),
    edit("t2", [diff("/b", "1", "2")]),
  );
  assert.deepEqual(brief(changesOf(blocks, { lastTurn: true })), [["/b", ["1", "2"]]]);
  assert.equal(changesOf(blocksOf(edit("t1", [diff("/a", "1", "2")])), { lastTurn: true }).length, 1);
});

test("a file that was moved keeps its earlier changes under its new path, and a deletion is named", () => {
  const change = (operation, path, oldPath = null) => ({
    type: "content",
    content: { type: "text", text: `${operation} ${path}` },
    _meta: { "acp-gateway": { change: { operation, path, oldPath, fileType: "text" } } },
  });
  const blocks = blocksOf(
    edit("t1", [diff("/old", "1", "2")]),
    edit("t2", [change("move", "/new", "/old")]),
    edit("t3", [change("delete", "/gone")]),
  );
  const files = changesOf(blocks);
  assert.deepEqual(
    files.map(({ path, edits }) => [path, edits.map(({ content }) => content.type)]),
    [
      ["/new", ["diff", "change"]],
      ["/gone", ["change"]],
    ],
  );
});

test("an edit names the line that its tool call names", () => {
  const [file] = changesOf(blocksOf(edit("t1", [diff("/a", "1", "2")], { locations: [{ path: "/a", line: 7 }] })));
  assert.equal(file.edits[0].line, 7);
});

const ROWS = diffRows("a\nb\nc\nd\n", "a\nB\nC\nd\n");
const row = (kind, number) => ROWS.find((one) => one.kind === kind && (one.right ?? one.left) === number);

test("lines between two rows are found in both directions, without rows that stand for others", () => {
  const texts = (from, to) => linesBetween(ROWS, from, to).map(({ kind, text }) => `${kind} ${text}`);
  const all = ["same a", "del b", "del c", "add B", "add C"];
  assert.deepEqual(texts(row("same", 1), row("add", 3)), all);
  assert.deepEqual(texts(row("add", 3), row("same", 1)), all);
  assert.deepEqual(texts(row("same", 1), { ...row("same", 1), text: "other" }), []);
  const folded = diffRows(`${"x\n".repeat(20)}1\n`, `0\n${"x\n".repeat(20)}2\n`, { context: 1 });
  assert.ok(folded.some(({ kind }) => kind === "skip"));
  assert.ok(linesBetween(folded, folded[0], folded.at(-1)).every(({ kind }) => kind !== "skip"));
});

test("a remark stands below its last line as long as that is there unchanged", () => {
  const remark = { id: 1, path: "/a", edit: "e", lines: [row("del", 2), row("add", 2)].map(lineOf), text: "why" };
  assert.equal(rowOfRemark(ROWS, remark), row("add", 2));
  assert.ok(isLine(row("add", 2), remark.lines[1]));
  assert.equal(rowOfRemark(diffRows("a\nb\nc\nd\n", "a\nB2\nC\nd\n"), remark), null);
});

test("places are told by the numbers of the new text, and of deleted lines by those of the old one", () => {
  assert.equal(placeText([row("add", 2)]), "line 2");
  assert.equal(placeText([row("same", 1), row("del", 2), row("add", 2)]), "lines 1 to 2");
  assert.equal(placeText([row("del", 2), row("del", 3)]), "deleted lines 2 to 3");
});

test("remarks become one prompt, by file and line, with what they are about", () => {
  const remarks = [
    { id: 1, path: "/w/b.py", edit: "e", lines: [row("add", 3)].map(lineOf), text: " last \n" },
    { id: 2, path: "/w/a.py", edit: "e", lines: [row("del", 2), row("add", 2)].map(lineOf), text: "why?" },
    { id: 3, path: "/w/b.py", edit: "e", lines: [row("same", 1)].map(lineOf), text: "first" },
  ];
  assert.equal(
    reviewPrompt(remarks, "/w"),
    [
      "Remarks on your changes.",
      "1. b.py, line 1:",
      "```diff\n a\n```",
      "first",
      "2. b.py, line 3:",
      "```diff\n+C\n```",
      "last",
      "3. a.py, line 2:",
      "```diff\n-b\n+B\n```",
      "why?",
    ].join("\n\n"),
  );
  assert.equal(
    reviewPrompt([remarks[0]], "/w"),
    "A remark on your changes.\n\nb.py, line 3:\n\n```diff\n+C\n```\n\nlast",
  );
});

test("a quotation is bounded, and its fence is longer than any in it", () => {
  const line = (text, right) => ({ left: null, right, text, kind: "add" });
  const lines = Array.from({ length: 60 }, (_, i) => line(i === 0 ? "````" : "x".repeat(1000), i + 1));
  const prompt = reviewPrompt([{ id: 1, path: "a", edit: "e", lines, text: "?" }]);
  assert.match(prompt, /\n`{5}diff\n\+````\n/);
  assert.match(prompt, /… 20 more\n`{5}\n/);
  assert.ok(prompt.length < 18_000);
});

test("remarks that another version has kept are left out", () => {
  const good = { id: 1, path: "/a", edit: "e", lines: [{ left: 1, right: 1, text: "a", kind: "same" }], text: "" };
  assert.deepEqual(remarksOf(JSON.stringify([good])), [good]);
  for (const bad of [null, "{", "7", "[7]", JSON.stringify([{ ...good, lines: [] }, { ...good, text: 1 }])])
    assert.deepEqual(remarksOf(bad), []);
});
