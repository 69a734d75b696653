import assert from "node:assert/strict";
import { test } from "node:test";

import { diffCounts, diffRows, splitRows } from "../../../acp_gateway/web/app/text/diff.js";
import { forSeeds } from "./helpers.mjs";

const brief = (rows) =>
  rows.map(({ kind, text, count }) =>
    kind === "skip" ? `…${count}` : `${{ same: " ", add: "+", del: "-" }[kind]}${text}`,
  );
const lines = (...texts) => texts.map((text) => `${text}\n`).join("");

test("equal texts have no rows beyond what is left out", () => {
  assert.deepEqual(diffRows("", ""), []);
  assert.deepEqual(brief(diffRows(lines("a", "b"), lines("a", "b"))), ["…2"]);
});

test("a new file is all added, a deleted one all deleted", () => {
  assert.deepEqual(brief(diffRows(null, lines("a", "b"))), ["+a", "+b"]);
  assert.deepEqual(brief(diffRows(lines("a", "b"), null)), ["-a", "-b"]);
});

test("changed lines stand between their neighbours, with the numbers of both sides", () => {
  const rows = diffRows(
    lines("1", "2", "3", "4", "5", "6", "7", "8"),
    lines("1", "2", "3", "4", "x", "6", "7", "8", "9"),
    { context: 1 },
  );
  assert.deepEqual(brief(rows), ["…3", " 4", "-5", "+x", " 6", " 7", " 8", "+9"]);
  assert.deepEqual(
    rows.map(({ left, right }) => [left, right]),
    [
      [1, 1],
      [4, 4],
      [5, null],
      [null, 5],
      [6, 6],
      [7, 7],
      [8, 8],
      [null, 9],
    ],
  );
});

test("all lines are there without a limit on context", () => {
  assert.deepEqual(brief(diffRows(lines("a", "b", "c"), lines("a", "b", "d"), { context: Infinity })), [
    " a",
    " b",
    "-c",
    "+d",
  ]);
  assert.deepEqual(brief(diffRows(lines("a", "b", "c", "d"), lines("a", "b", "c", "x"), { context: 0 })), [
    "…3",
    "-d",
    "+x",
  ]);
});

test("the words that differ are marked", () => {
  const [, before, after] = diffRows(lines("x", "let count = one;"), lines("x", "let total = one;"));
  const marked = (words) => words.map(({ text, changed }) => (changed ? `[${text}]` : text)).join("");
  assert.equal(marked(before.words), "let [count] = one;");
  assert.equal(marked(after.words), "let [total] = one;");
});

test("lines that share no words, and lines that are too long, are not compared word by word", () => {
  assert.deepEqual(
    diffRows("alpha\n", "beta\n").map(({ words }) => words),
    [null, null],
  );
  const long = `${"word ".repeat(300)}\n`;
  assert.deepEqual(
    diffRows(`a ${long}`, `b ${long}`).map(({ words }) => words),
    [null, null],
  );
});

const numbered = (count, name) => Array.from({ length: count }, (_, i) => name(i)).join("\n");

test("a change of thousands of lines is as exact as one of a few", () => {
  for (const [count, step] of [[1002, 2], [20_000, 4]]) {
    const rows = diffRows(
      numbered(count, (i) => `line ${i}`),
      numbered(count, (i) => (i % step === 1 ? `changed ${i}` : `line ${i}`)),
    );
    assert.deepEqual(diffCounts(rows), { added: count / step, deleted: count / step });
    assert.ok(!rows.some(({ rough }) => rough));
  }
});

test("lines that both texts have many times stand between those that they have once", () => {
  const text = (name) => numbered(2000, (i) => `function ${name(i)}() {\n  return 1;\n}\n`);
  const rows = diffRows(
    text((i) => `f${i}`),
    text((i) => (i % 2 ? `f${i}` : `g${i}`)),
  );
  assert.deepEqual(diffCounts(rows), { added: 1000, deleted: 1000 });
});

test("lines that could not be compared are told, those without anything in common are compared", () => {
  const rows = diffRows(
    numbered(9000, (i) => `line ${i % 7}`),
    numbered(9000, (i) => `line ${i % 5}`),
  );
  assert.equal(rows.filter(({ rough }) => rough).length, 2);
  const others = diffRows(
    numbered(9000, (i) => `old ${i}`),
    numbered(9000, (i) => `new ${i}`),
  );
  assert.deepEqual([diffCounts(others), others.some(({ rough }) => rough)], [{ added: 9000, deleted: 9000 }, false]);
});

test("the rows of large changes that are divided make both texts", () => {
  forSeeds(20, (random) => {
    const line = () => `line ${random.below(random.pick([3, 3000]))}`;
    const old = Array.from({ length: 1500 }, line);
    const now = old.flatMap((one) => (random.maybe(0.5) ? [line()] : random.maybe(0.1) ? [] : [one]));
    const rows = diffRows(old.join("\n"), now.join("\n"), { context: Infinity });
    const side = (other) => rows.filter(({ kind }) => kind !== other).map(({ text }) => text);
    assert.deepEqual([side("add"), side("del")], [old, now]);
  });
});

test("a line feed missing at the end is a change", () => {
  const rows = diffRows("a\nb", "a\nb\n");
  assert.deepEqual(
    rows.map(({ kind, text, noNewline }) => [kind, text, noNewline]),
    [
      ["same", "a", false],
      ["del", "b", true],
      ["add", "b", false],
    ],
  );
});

test("carriage returns are shown only where some lines have none", () => {
  assert.deepEqual(brief(diffRows("a\r\nb\r\n", "a\r\nc\r\n")), [" a", "-b", "+c"]);
  assert.deepEqual(brief(diffRows("a\nb\n", "a\r\nb\n")), ["-a", "+a␍", " b"]);
});

test("hidden characters are visible", () => {
  assert.deepEqual(brief(diffRows("", "a\u202eb\u200b\n")), ["+a⟨U+202E⟩b⟨U+200B⟩"]);
});

test("two columns put deleted lines beside the added ones", () => {
  const rows = diffRows(lines("a", "b", "c", "d"), lines("a", "x", "d"));
  const pairs = splitRows(rows).map(({ left, right }) => [left?.text ?? null, right?.text ?? null]);
  assert.deepEqual(pairs, [
    ["a", "a"],
    ["b", "x"],
    ["c", null],
    ["d", "d"],
  ]);
  assert.deepEqual(diffCounts(rows), { added: 1, deleted: 2 });
});

test("texts that differ in everything are one replacement, in steps that the limit bounds", () => {
  const numbered = (word) => Array.from({ length: 20_000 }, (_, i) => `${word} ${i}\n`).join("");
  const rows = diffRows(`head\n${numbered("old")}`, `head\n${numbered("new")}`, { context: Infinity });
  assert.deepEqual(diffCounts(rows), { added: 20_000, deleted: 20_000 });
  assert.deepEqual([rows[0].kind, rows[1].kind, rows[20_001].kind], ["same", "del", "add"]);
  assert.equal(rows.filter(({ words }) => words !== null).length, 1000);
});

test("the rows of any two texts give back both", () => {
  forSeeds(500, (random) => {
    const text = () => {
      let made = "";
      for (let n = random.below(12); n > 0; n -= 1) made += random.pick(["a\n", "b\n", "c d\n", "c e\n", "\n", "x"]);
      return made;
    };
    const [before, after] = [text(), text()];
    const rows = diffRows(before, after, { context: Infinity });
    const side = (other) =>
      rows
        .filter(({ kind }) => kind !== other)
        .map((row) => row.text + (row.noNewline ? "" : "\n"))
        .join("");
    assert.equal(side("add"), before);
    assert.equal(side("del"), after);
    for (const { words, text: line } of rows) if (words) assert.equal(words.map((word) => word.text).join(""), line);
    const folded = diffRows(before, after, { context: 1 });
    assert.equal(
      folded.reduce((sum, { count }) => sum + count, 0),
      rows.length,
    );
    assert.deepEqual(diffCounts(folded), diffCounts(rows));
  });
});
