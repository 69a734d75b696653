import assert from "node:assert/strict";
import { test } from "node:test";
import { diffRows } from "../../../acp_gateway/web/app/text/diff.js";
import { filesOf, hunksOf, notesOf, readTold, turnsOf } from "../../../acp_gateway/web/app/updates/disk_changes.js";

const file = (members) => ({ path: "a.py", status: "modified", old: "1".repeat(40), new: "2".repeat(40), executable: null, oldText: "1\n", newText: "2\n", why: null, ...members });

/** The new text with the old lines at a place, as the gateway has it. */
function undone(oldText, newText, [first, count, at, length]) {
  const [old, now] = [oldText.split("\n"), newText.split("\n")];
  return [...now.slice(0, at), ...old.slice(first, first + count), ...now.slice(at + length)].join("\n");
}

function hunks(oldText, newText) {
  return hunksOf(diffRows(oldText, newText), file({ oldText, newText }));
}

test("each place that has changed has the lines that are put back there", () => {
  const old = Array.from({ length: 40 }, (_, i) => `line ${i}\n`).join("");
  const now = old.replace("line 2\n", "two\nand more\n").replace("line 20\n", "").replace("line 30\n", "line 30\nnew\n");
  const found = hunks(old, now);
  assert.deepEqual(found.map(({ lines }) => lines), [[2, 1, 2, 2], [20, 1, 21, 0], [31, 0, 31, 1]]);
  assert.equal(undone(old, now, found[0].lines), now.replace("two\nand more\n", "line 2\n"));
  assert.equal(undone(old, now, found[1].lines), now.replace("line 21\n", "line 20\nline 21\n"));
  assert.equal(undone(old, now, found[2].lines), now.replace("new\n", ""));
});

test("putting every place back, from the last one on, gives the old text", () => {
  const words = ["a", "b", "c", "", "d"];
  let seed = 7;
  const random = (most) => (seed = (seed * 16807) % 2147483647) % most;
  for (let i = 0; i < 200; i += 1) {
    const old = Array.from({ length: random(30) + 1 }, () => `${words[random(5)]}\n`);
    const now = old.flatMap((line) => (random(4) ? [line] : random(2) ? [] : [line, `${words[random(5)]}\n`]));
    const [before, after] = [old.join(""), now.join("")];
    if (after === "") continue;
    let text = after;
    for (const { lines } of hunks(before, after).reverse()) text = undone(before, text, lines);
    assert.equal(text, before);
  }
});

test("what is about the end of the file, or not drawn whole, is put back with the whole file only", () => {
  assert.deepEqual(hunks("a\nb", "a\nb\n"), []);
  const old = "a\n".repeat(3);
  const rows = diffRows(old, `${old}1\n2\n3\n`);
  assert.deepEqual(hunksOf(rows.slice(0, -1), file({ oldText: old, newText: `${old}1\n2\n3\n` })), []);
  assert.deepEqual(hunksOf([], file({ oldText: null, newText: "1\n" })), []);
});

test("files have the shape of those that the agent tells, by their whole path", () => {
  const told = { root: "/srv", files: [file(), file({ path: "b", status: "deleted", newText: null }), file({ path: "c", status: "added", oldText: null, newText: null, why: "large" }), file({ path: "d", newText: "1\n", executable: true })] };
  const found = filesOf(told);
  assert.deepEqual(found.map(({ path }) => path), ["/srv/a.py", "/srv/b", "/srv/c", "/srv/d"]);
  const [text, deleted, large, mode] = found.map(({ edits: [{ content }] }) => content);
  assert.deepEqual([text.type, text.oldText, text.newText, text.change], ["diff", "1\n", "2\n", undefined]);
  assert.deepEqual([deleted.newText, deleted.change.operation], ["", "delete"]);
  assert.deepEqual([large.type, large.change.fileType, mode.change.fileType], ["change", "large", "executable now"]);
  assert.equal(filesOf({ root: "/", files: [file()] })[0].path, "/a.py");
});

test("the session, the last turn and earlier ones can be chosen", () => {
  const marks = Array.from({ length: 30 }, (_, i) => ({ number: i + 1, at: 1e12 + i * 6e4 }));
  const turns = turnsOf(marks);
  assert.deepEqual(turns.slice(0, 2), [{ mark: null, text: "Whole session" }, { mark: 30, text: "Since the last prompt" }]);
  assert.deepEqual([turns[2].mark, turns.length], [29, 22]);
  assert.deepEqual(turnsOf([]).length, 1);
});

test("commits and new worktrees are lines", () => {
  const told = { commits: [{ id: "a".repeat(40), at: 1, subject: "Fix\u202e it" }], worktrees: [{ path: "/w", branch: "try", isNew: true }, { path: "/o", branch: "main", isNew: false }] };
  const notes = notesOf(told);
  assert.equal(notes.length, 2);
  assert.ok(notes[0].startsWith("Commit aaaaaaaa: Fix") && !notes[0].includes("\u202e"));
  assert.equal(notes[1], "New worktree /w, try");
});

test("an answer without a comparison is left out", () => {
  assert.equal(readTold({ success: true }), null);
  assert.equal(readTold({ git: false, why: "no" }), null);
  assert.equal(readTold(null), null);
});
