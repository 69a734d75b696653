import assert from "node:assert/strict";
import { test } from "node:test";

import {
  ageText,
  counted,
  countText,
  durationText,
  oneLine,
  plain,
  sentence,
  shortPath,
  sizeText,
  timeOf,
  titleOf,
  visible,
} from "../../../acp_gateway/web/app/text/format.js";

test("hidden characters become visible, all else stays", () => {
  assert.equal(visible("a\u202eb\u2067c\u200dd\ufeffe\u00adf"), "a⟨U+202E⟩b⟨U+2067⟩c⟨U+200D⟩d⟨U+FEFF⟩e⟨U+00AD⟩f");
  assert.equal(visible("\u0000\u001b\r\u007f\u0085"), "␀␛␍␡⟨U+0085⟩");
  assert.equal(visible("a\u{e0041}b"), "a⟨U+E0041⟩b");
  assert.equal(visible("a\tb\nc é \u05d0 \u{1f600} \u0301"), "a\tb\nc é \u05d0 \u{1f600} \u0301");
});

test("one line shows its line feeds and is cut between characters", () => {
  assert.equal(oneLine("  ls\n\trm -rf /\n"), "ls⏎ rm -rf /");
  assert.equal(oneLine("abcdef", 4), "abc…");
  assert.equal(oneLine("abcd", 4), "abcd");
  assert.equal(oneLine("ab\u{1f600}cd", 4), "ab…");
});

test("any value becomes a string", () => {
  const values = ["x", null, undefined, 0, true, { a: [1] }, ["b"]];
  assert.deepEqual(values.map(plain), ["x", "", "", "0", "true", '{"a":[1]}', '["b"]']);
});

test("times are read from ISO 8601 and from numbers", () => {
  assert.equal(timeOf("1970-01-01T00:00:01Z"), 1000);
  assert.deepEqual([5, "x", null, undefined, NaN, {}].map(timeOf), [5, null, null, null, null, null]);
});

test("ages and durations have one unit", () => {
  const second = 1000;
  const cases = [
    [0, "now"],
    [59, "now"],
    [60, "1 min"],
    [3599, "59 min"],
    [3600, "1 h"],
    [86399, "23 h"],
    [86400, "1 d"],
    [864000, "10 d"],
  ];
  for (const [seconds, text] of cases) assert.equal(ageText(1e12 - seconds * second, 1e12), text);
  assert.equal(ageText(null, 1e12), "");
  assert.equal(ageText(1e12 + 5000, 1e12), "now");
  assert.deepEqual([0, 12_999, 60_000].map(durationText), ["0 s", "12 s", "1 min"]);
});

test("sizes and counts are short", () => {
  assert.deepEqual([0, 1023, 1024, 1536, 20480, 5 * 2 ** 20, 2 ** 41].map(sizeText), [
    "0 B",
    "1023 B",
    "1.0 KiB",
    "1.5 KiB",
    "20 KiB",
    "5.0 MiB",
    "2.0 TiB",
  ]);
  assert.deepEqual([999, 1000, 32500, 1.25e6].map(countText), ["999", "1k", "32k", "1.3M"]);
  assert.deepEqual(
    [counted(1, "message"), counted(0, "message"), counted(2, "entry", "entries")],
    ["1 message", "0 messages", "2 entries"],
  );
});

test("a session is called by its title, its folder or its id", () => {
  assert.equal(titleOf({ id: "s", title: " Fix\nit ", cwd: "/a/b" }), "Fix⏎it");
  assert.equal(titleOf({ id: "s", title: null, cwd: "/a/b/" }), "b");
  assert.equal(titleOf({ id: "s\u202e", cwd: "/" }), "s⟨U+202E⟩");
});

test("a path is relative to its folder only below it", () => {
  assert.equal(shortPath("/a/b/c.py", "/a/b"), "c.py");
  assert.equal(shortPath("/a/b/c.py", "/a/b/"), "c.py");
  assert.equal(shortPath("/a/bc.py", "/a/b"), "/a/bc.py");
  assert.equal(shortPath("/a/c.py", "/"), "/a/c.py");
  assert.equal(shortPath("/a/\u202ec.py", null), "/a/⟨U+202E⟩c.py");
});

test("the text of an error is a sentence without backticks", () => {
  assert.equal(sentence("there is no agent `x`"), "There is no agent x");
  assert.equal(sentence("session_request_size (3) is the limit"), "session_request_size (3) is the limit");
  assert.equal(sentence("/a/b is not a folder"), "/a/b is not a folder");
  assert.equal(sentence("Ended\u202e"), "Ended⟨U+202E⟩");
  assert.equal(sentence(null), "");
});
