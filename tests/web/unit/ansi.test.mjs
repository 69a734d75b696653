import assert from "node:assert/strict";
import { test } from "node:test";

import { ansiSpans } from "../../../acp_gateway/web/app/text/ansi.js";
import { forSeeds } from "./helpers.mjs";

const ESC = "\u001b";
const shown = (text) =>
  ansiSpans(text)
    .map((span) => span.text)
    .join("");
const classes = (text) => ansiSpans(text).map(({ text: part, className }) => [part, className]);

test("plain text is one span without a class", () => {
  assert.deepEqual(classes("a\tb\nc"), [["a\tb\nc", ""]]);
  assert.deepEqual(ansiSpans(""), []);
});

test("colours and styles become classes until they end", () => {
  assert.deepEqual(classes(`a${ESC}[1;31mb${ESC}[22mc${ESC}[44;97md${ESC}[me`), [
    ["a", ""],
    ["b", "bold fg-1"],
    ["c", "fg-1"],
    ["d", "bg-4 fg-15"],
    ["e", ""],
  ]);
  assert.deepEqual(classes(`${ESC}[2;3;4;7;9mx${ESC}[23;24;27;29my`), [
    ["x", "dim inverse italic strike underline"],
    ["y", "dim"],
  ]);
});

test("other colours are reduced to the sixteen", () => {
  const fg = (codes) => ansiSpans(`${ESC}[${codes}mx`)[0].className;
  assert.deepEqual(["38;5;9", "38;5;196", "38;5;232", "38;5;255", "38;2;0;0;230", "38:2:0:205:0"].map(fg), [
    "fg-9",
    "fg-9",
    "fg-0",
    "fg-7",
    "fg-4",
    "fg-2",
  ]);
  assert.deepEqual(["38;5", "38;5;999", "38;2;1;2", "38", "48;5;1", "999", "1;;31"].map(fg), [
    "",
    "",
    "",
    "",
    "bg-1",
    "",
    "fg-1",
  ]);
});

test("every other control sequence is dropped", () => {
  const sequences = [
    "[2J",
    "[H",
    "[10;20H",
    "[?25l",
    "[?1049h",
    "[6n",
    "[>c",
    "[1 q",
    "c",
    "7",
    "(B",
    "M",
    "#8",
    "]0;title\u0007",
    "]52;c;ZXZpbA==\u001b\\",
  ];
  for (const sequence of [
    ...sequences,
    "]8;;https://evil.example\u0007",
    "Pq#0;2;0;0;0\u001b\\",
    "_apc\u001b\\",
    "^pm\u001b\\",
    "Xsos\u001b\\",
  ]) {
    assert.equal(shown(`a${ESC}${sequence}b`), "ab", JSON.stringify(sequence));
  }
  assert.equal(shown("a\u009b31mb\u009d0;t\u009cc"), "abc");
  assert.equal(shown("a\u0007\u0008\u000e\u0085\u007fb\u0000"), "ab");
});

test("a sequence without its end hides nothing", () => {
  assert.equal(shown(`a${ESC}]0;rm -rf /\nb`), "a0;rm -rf /\nb");
  assert.equal(shown(`a${ESC}Prm -rf /`), "arm -rf /");
  assert.equal(shown(`a${ESC}[12`), "a12");
  assert.equal(shown(`a${ESC}`), "a");
  assert.equal(shown(`a${ESC}[12\u00e9b`), "a12éb");
});

test("a carriage return discards its line, if anything follows on it", () => {
  assert.equal(shown("10%\r50%\r100%\ndone\r\nnext\r"), "100%\ndone\nnext");
  assert.deepEqual(classes(`one\ntwo ${ESC}[31mred${ESC}[0m\rthree`), [["one\nthree", ""]]);
  assert.deepEqual(classes(`${ESC}[31mone\ntwo${ESC}[32m three\rfour`), [
    ["one\n", "fg-1"],
    ["four", "fg-2"],
  ]);
  assert.equal(shown("a\r\r\r\nb"), "a\nb");
});

test("hidden characters are visible", () => {
  assert.equal(shown("a\u202eb\u2066c\u200b"), "a⟨U+202E⟩b⟨U+2066⟩c⟨U+200B⟩");
});

test("any bytes give only known classes and no control character", () => {
  const pieces = [
    ESC,
    "[",
    "]",
    "P",
    "m",
    "31",
    ";",
    ":",
    "38;5;",
    "\u0007",
    "\\",
    "\n",
    "\r",
    "x",
    "\u009b",
    "\u009c",
    "\u009d",
    "\u202e",
    "?",
    " ",
    "\u{1f600}",
  ];
  forSeeds(2000, (random) => {
    let text = "";
    for (let n = random.below(30); n > 0; n -= 1) text += random.pick(pieces);
    for (const { text: part, className } of ansiSpans(text)) {
      assert.ok(part.length > 0);
      // eslint-disable-next-line no-control-regex
      assert.doesNotMatch(part, /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202e]/);
      assert.match(className, /^(?:(?:(?:[fb]g-(?:\d|1[0-5])|bold|dim|italic|underline|strike|inverse)(?: |$))*)$/);
    }
  });
});

test("text without sequences comes out whole", () => {
  forSeeds(200, (random) => {
    let text = "";
    for (let n = random.below(30); n > 0; n -= 1) text += random.pick(["a", "é", "\n", "\t", " ", "[31m", "\u{1f600}"]);
    assert.equal(shown(text), text);
  });
});

test("the number of sequences that are read is bounded, and their text is shown", () => {
  assert.deepEqual(classes(`${`${ESC}[31m`.repeat(40_000)}${ESC}[0mx`), [["x", "fg-1"]]);
});

test("text between sequences that change nothing is one span", () => {
  assert.deepEqual(classes(`${ESC}[31ma${ESC}[31m${ESC}[31mb${ESC}[2Jc`), [["abc", "fg-1"]]);
});

test("the number of spans is bounded", () => {
  const spans = ansiSpans(`${ESC}[31ma${ESC}[32mb`.repeat(30_000));
  assert.equal(spans.length, 2_000);
  assert.equal(
    spans.reduce((sum, span) => sum + span.text.length, 0),
    60_000,
  );
});
