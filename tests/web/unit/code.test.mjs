import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { test } from "node:test";

import { createReader } from "../../../acp_gateway/web/app/code/code_reader.js";
import { Collector, coloursOf, keepColours, piecesOf, piecesOfText, spansOfLine } from "../../../acp_gateway/web/app/code/colours.js";
import { diffRows, shownTexts } from "../../../acp_gateway/web/app/text/diff.js";
import { EDITORS, editorLink } from "../../../acp_gateway/web/app/text/editors.js";
import { filesOf, languageOfFile, languageOfWord } from "../../../acp_gateway/web/app/code/languages.js";
import highlighter from "../../../acp_gateway/web/vendor/highlight/core.js";
import { forSeeds, manualTimers, settle } from "./helpers.mjs";

const LANGUAGES = new URL("../../../acp_gateway/web/vendor/highlight/languages/", import.meta.url);

const known = new Set();

/** Registers a language with all that it needs, as the worker does. */
async function load(language) {
  highlighter.configure({ __emitter: Collector });
  for (const name of filesOf(language)) {
    if (known.has(name)) continue;
    known.add(name);
    highlighter.registerLanguage(name, (await import(new URL(`${name}.js`, LANGUAGES))).default);
  }
}

const spansOf = (text, language) => highlighter.highlight(text, { language, ignoreIllegals: true })._emitter.spans;

test("the language of a file follows from its name or its ending", () => {
  const cases = {
    "/a/b.py": "python",
    "x.TSX": "typescript",
    Dockerfile: "dockerfile",
    "Dockerfile.dev": "dockerfile",
    "/a/Makefile": "makefile",
    "C:\\a\\b.cs": "csharp",
    ".editorconfig": "ini",
    "a.b.yml": "yaml",
  };
  for (const [path, language] of Object.entries(cases)) assert.equal(languageOfFile(path), language, path);
  for (const path of ["", "/", "README", "a.unknown", "py/a", "constructor", "a.__proto__"])
    assert.equal(languageOfFile(path), null, path);
  assert.equal(languageOfWord("C++"), "cpp");
  assert.equal(languageOfWord("toString"), null);
});

test("each language has its file, each file its language, and each grammar can be used", async () => {
  const files = readdirSync(LANGUAGES).map((name) => name.replace(".js", ""));
  for (const name of files) {
    assert.equal(languageOfWord(name) ?? languageOfWord({ csharp: "cs" }[name] ?? ""), name);
    await load(name);
    assert.deepEqual(spansOf("", name), []);
  }
  for (const name of files) for (const file of filesOf(name)) assert.ok(files.includes(file), file);
});

test("words have the colours of their kinds, also where one language is inside another", async () => {
  await load("python");
  const kinds = (text, language) =>
    piecesOfText(text, coloursOf(text, spansOf(text, language)))
      .filter(({ kind }) => kind)
      .map(({ text: piece, kind }) => `${kind} ${piece}`);
  assert.deepEqual(kinds('def f(x):\n  return f"a{x}b"  # why\n', "python"), [
    "keyword def",
    "title f",
    "keyword return",
    'string f"a',
    'string b"',
    "comment # why",
  ]);
  await load("xml");
  const page = kinds("<a href='x'><script>var a = 1;</script></a>", "xml");
  for (const wanted of ["keyword a", "name href", "string 'x'", "keyword var", "number 1"]) assert.ok(page.includes(wanted), wanted);
});

test("the pieces of a text are the text, whatever is coloured and marked", async () => {
  await load("python");
  forSeeds(50, (random) => {
    const text = Array.from({ length: 40 }, () => random.pick(["def ", "x", '"', "\n", "#", " ", "'''", "1", "\\", "\u{1f600}", "("])).join("");
    const colours = coloursOf(text, spansOf(text, "python"));
    assert.equal(piecesOfText(text, colours).map((piece) => piece.text).join(""), text);
    text.split("\n").forEach((line, i) => {
      const words = line.split(/(?<=x)/).map((part) => ({ text: part, changed: random.maybe(0.5) }));
      const pieces = piecesOf(line, spansOfLine(colours, i, line.length), words);
      assert.equal(pieces.map((piece) => piece.text).join(""), line);
      const changed = (list) => list.flatMap((piece) => [...piece.text].map(() => piece.changed));
      assert.deepEqual(changed(pieces), changed(words));
    });
  });
});

test("a line has the colours of what began before it, and one behind the text has none", async () => {
  await load("python");
  const text = 'a = """one\ntwo\n"""\n';
  const colours = coloursOf(text, spansOf(text, "python"));
  assert.deepEqual(spansOfLine(colours, 1, 3), [{ from: 0, to: 3, kind: "string" }]);
  assert.deepEqual(spansOfLine(colours, 9, 3), []);
});

test("colours of few texts, and of short ones together, are kept: the oldest go", () => {
  const kept = keepColours({ mostTexts: 3, mostCharacters: 10 });
  const colours = coloursOf("", []);
  const has = () => ["a", "b", "c", "d", "seven..", "eleven....."].filter((text) => kept.get(text));
  for (const text of ["a", "b", "b", "c", "d"]) kept.set(text, colours);
  assert.deepEqual(has(), ["b", "c", "d"]);
  kept.set("seven..", colours);
  assert.deepEqual(has(), ["c", "d", "seven.."]);
  kept.set("b", colours);
  kept.set("a", colours);
  assert.deepEqual(has(), ["a", "b", "seven.."]);
  kept.set("eleven.....", colours);
  assert.deepEqual(has(), []);
  kept.set("a", colours);
  assert.deepEqual(has(), ["a"]);
});

test("a very long line has no colours, and a text has not more than some", () => {
  const spans = Array.from({ length: 30_000 }, (_, i) => [2 * i, 2 * i + 1, 1]).flat();
  const text = "a ".repeat(30_000);
  const colours = coloursOf(text, spans);
  assert.equal(spansOfLine(colours, 0, 2000).length, 1000);
  assert.deepEqual(spansOfLine(colours, 0, 2001), []);
  const pieces = piecesOfText(text, colours);
  assert.equal(pieces.filter(({ kind }) => kind).length, 20_000);
  assert.equal(pieces.map((piece) => piece.text).join(""), text);
});

test("the texts that are coloured are those of the rows, line by line", () => {
  for (const [before, after] of [
    ["a\r\nb\r\n", "a\r\nc\r\n"],
    ["a\rb\n", "\u202ea\nb"],
    [null, "x\n"],
    ["x", null],
  ]) {
    const [old, now] = shownTexts(before, after).map((text) => text.split("\n"));
    for (const { kind, left, right, text } of diffRows(before, after, { context: Infinity })) {
      assert.equal(kind === "del" ? old[left - 1] : now[right - 1], text);
    }
  }
});

/** A reader whose workers are objects of the test. */
function fakeReader() {
  const time = manualTimers();
  const workers = [];
  const create = () => {
    const worker = { asked: [], ended: false, postMessage: (message) => worker.asked.push(message) };
    worker.terminate = () => {
      worker.ended = true;
    };
    worker.say = (data) => worker.onmessage({ data });
    workers.push(worker);
    return worker;
  };
  return { reader: createReader({ create, timers: time.timers }), workers, time };
}

test("no worker is started before the first code, nor for code without a language or without end", async () => {
  const { reader, workers } = fakeReader();
  assert.equal(await reader.colour("x", null), null);
  assert.equal(await reader.colour("x".repeat(2_000_001), "python"), null);
  assert.equal(await reader.colourChange(null, "x".repeat(2_000_001), "python"), null);
  assert.equal(workers.length, 0);
});

test("one question is out at a time, and of those that wait the latest is the next", async () => {
  const { reader, workers } = fakeReader();
  const answers = ["a", "b", "c"].map((text) => reader.colour(text, "python"));
  const [worker] = workers;
  for (const wanted of ["a", "c", "b"]) {
    const { id, text } = worker.asked.at(-1);
    assert.equal(text, wanted);
    worker.say({ id, result: [`colours of ${text}`] });
    await settle();
  }
  assert.deepEqual(await Promise.all(answers), ["colours of a", "colours of b", "colours of c"]);
  assert.equal(worker.asked.length, 3);
});

test("rows come in parts, and an answer to an earlier question is passed over", async () => {
  const { reader, workers } = fakeReader();
  const rows = reader.rows("a", "b", 3);
  const [{ id, context }] = workers[0].asked;
  assert.equal(context, 3);
  workers[0].say({ id: id - 1, result: [0] });
  workers[0].say({ id, part: [1, 2] });
  workers[0].say({ id, result: [3] });
  assert.deepEqual(await rows, [1, 2, 3]);
});

test("a question without an answer in time ends the worker, and the next one gets another", async () => {
  const { reader, workers, time } = fakeReader();
  const [slow, next] = [reader.colour("slow", "python"), reader.colour("next", "python")];
  time.pass(8000);
  assert.equal(await slow, null);
  assert.ok(workers[0].ended);
  const [{ id, text }] = workers[1].asked;
  assert.equal(text, "next");
  workers[1].say({ id, error: "no grammar" });
  assert.equal(await next, null);
  assert.deepEqual(time.pending(), [60_000]);
});

test("a worker that fails three times is left for a minute, and questions are answered with nothing", async () => {
  const { reader, workers, time } = fakeReader();
  for (let i = 0; i < 5; i += 1) {
    const answer = reader.rows("a", "b", 3);
    workers[i]?.onerror();
    assert.equal(await answer, null);
  }
  assert.equal(workers.length, 3);
  time.pass(60_000);
  const answer = reader.colour("x", "python");
  assert.equal(workers.length, 4);
  workers[3].say({ id: workers[3].asked[0].id, result: ["colours"] });
  assert.equal(await answer, "colours");
  const broken = createReader({
    create: () => {
      throw new Error("no workers here");
    },
    timers: manualTimers().timers,
  });
  assert.equal(await broken.rows("a", "b", 3), null);
});

test("questions that wait are bounded: the oldest one is given up", async () => {
  const { reader } = fakeReader();
  const answers = Array.from({ length: 202 }, (_, i) => reader.colour(`${i}`, "python"));
  assert.equal(await Promise.race([answers[1], settle().then(() => "waits")]), null);
  assert.equal(await Promise.race([answers[2], settle().then(() => "waits")]), "waits");
});

test("links to editors have the path, the line, and the host where it is another machine's", () => {
  const place = { path: "/w/a b/c#1.py", line: 7, host: "gpu.example" };
  const links = Object.fromEntries([...EDITORS.keys()].map((editor) => [editor, editorLink(editor, place)]));
  assert.deepEqual(links, {
    "": null,
    vscode: "vscode://file/w/a%20b/c%231.py:7",
    "vscode-ssh": "vscode://vscode-remote/ssh-remote+gpu.example/w/a%20b/c%231.py:7",
    cursor: "cursor://file/w/a%20b/c%231.py:7",
    "cursor-ssh": "cursor://vscode-remote/ssh-remote+gpu.example/w/a%20b/c%231.py:7",
    zed: "zed://file/w/a%20b/c%231.py:7",
    "zed-ssh": "zed://ssh/gpu.example/w/a%20b/c%231.py:7",
    idea: "idea://open?file=/w/a%20b/c%231.py&line=7",
  });
  assert.equal(editorLink("vscode", { ...place, path: "C:\\a\\b.cs", line: null }), "vscode://file/C:/a/b.cs");
});

test("no link is made of a relative or strange path, an unknown editor, or a strange host", () => {
  const place = { path: "/w/a", line: 1, host: "h" };
  for (const path of ["a", "", "../a", "//evil/a", "/a\nb", "/\ud800", `/${"a".repeat(1000)}`])
    assert.equal(editorLink("vscode", { ...place, path }), null, path);
  for (const editor of ["", "javascript", "__proto__"]) assert.equal(editorLink(editor, place), null);
  for (const host of ["", "-oProxyCommand=x", "a/b", "a b", "a?x"])
    assert.equal(editorLink("vscode-ssh", { ...place, host }), null, host);
  assert.equal(editorLink("vscode", { ...place, line: -1 }), "vscode://file/w/a");
});
