/** Paths that agents name, pictures of tool calls, tables and notebooks. */
import test from "node:test";
import assert from "node:assert/strict";
import { fileUrl, kindOfFile, pathIn, picturesOf, stepsTo, treeOf } from "../../../acp_gateway/web/app/text/file_paths.js";
import { MOST_COLUMNS, MOST_ROWS, readNotebook, readTable } from "../../../acp_gateway/web/app/text/file_content.js";
import { makeRoute, parseRoute } from "../../../acp_gateway/web/app/route/route.js";

test("a text that names a file is a path, perhaps with a line", () => {
  for (const [text, path, line] of [
    ["shop/basket.py", "shop/basket.py", null],
    ["shop/basket.py:12", "shop/basket.py", 12],
    ["shop/basket.py:12:3", "shop/basket.py", 12],
    ["shop/basket.py#L7-L9", "shop/basket.py", 7],
    ["/home/ann/a b/x.csv", "/home/ann/a b/x.csv", null],
    ["./loss.png", "./loss.png", null],
    ["../other/run.log", "../other/run.log", null],
    ["train.py", "train.py", null],
    ["plots/größe.svg", "plots/größe.svg", null],
    ["file:///srv/a.png", "/srv/a.png", null],
  ]) assert.deepEqual(pathIn(text), { path, line }, text);
});

test("other words are not paths", () => {
  for (const text of ["", "and/or", "1/2", "os.path", "console.log", "example.com", "https://example.com/a.png", "github.com/a/b.git", "3.11.2", "a.b.c()", "rm -rf /tmp/x.txt; ls", "x".repeat(600) + ".py", "/api/v1/users", null, "a\nb.py"]) {
    assert.equal(pathIn(text), null, String(text));
  }
});

test("pictures are those that a finished tool call has written or named, each once and a few", () => {
  const tool = (members) => ({ status: "completed", content: [], locations: [], ...members });
  assert.deepEqual(picturesOf(tool({ locations: [{ path: "/w/loss.png" }, { path: "/w/a.py" }] })), ["/w/loss.png"]);
  assert.deepEqual(picturesOf(tool({ rawInput: { file_path: "a.svg" } })), ["a.svg"]);
  const text = "saved plots/loss.png and 'plots/acc.JPG'; see https://x.org/y.png, plots/loss.png";
  assert.deepEqual(picturesOf(tool({ content: [{ type: "content", part: { type: "text", text } }] })), ["plots/loss.png", "plots/acc.JPG"]);
  assert.deepEqual(picturesOf(tool({ terminals: { t: { output: "wrote a.webp\n" } } })), ["a.webp"]);
  assert.deepEqual(picturesOf({ status: "in_progress", locations: [{ path: "/w/loss.png" }] }), []);
  assert.equal(picturesOf(tool({ locations: [..."abcdefgh"].map((name) => ({ path: `${name}.png` })) })).length, 4);
});

test("a file has its address at its machine", () => {
  assert.equal(fileUrl({ sessionId: "s 1", path: "a/b&c.png" }), "./files?session=s+1&path=a%2Fb%26c.png&as=view");
  assert.equal(fileUrl({ sessionId: "gpu2/s1", machine: "gpu2", path: "x", form: "zip" }), "./nodes/gpu2/files?session=s1&path=x&as=zip");
  // An id that an agent has chosen leads to no machine.
  assert.equal(fileUrl({ sessionId: "gpu2/s1", machine: null, path: "x" }), "./files?session=gpu2%2Fs1&path=x&as=view");
});

test("the way to a path begins at the session's folder, or at the root", () => {
  const names = (path, base) => stepsTo(path, base).map(({ name, path: to }) => `${name} ${to}`);
  assert.deepEqual(names("/w/p/a/b.py", "/w/p"), ["p /w/p", "a /w/p/a", "b.py /w/p/a/b.py"]);
  assert.deepEqual(names("/w/p", "/w/p"), ["p /w/p"]);
  assert.deepEqual(names("/w/pq/x", "/w/p"), ["/ /", "w /w", "pq /w/pq", "x /w/pq/x"]);
});

test("the kind of a file follows from its name", () => {
  assert.deepEqual(["a.PNG", "b.mp4", "c.ipynb", "d", "e.tsv", "f.html", ".env", "g.tar.gz"].map(kindOfFile), ["picture", "video", "notebook", "text", "table", "page", "text", "text"]);
});

test("a file and its line are in the address", () => {
  for (const file of ["", "a/b c.py", "/srv/ü&?#.md"]) {
    for (const line of file === "" ? [null] : [null, 7]) {
      const route = parseRoute(makeRoute({ sessionId: "s", file, line }));
      assert.deepEqual([route.sessionId, route.file, route.line], ["s", file, line]);
    }
  }
  assert.equal(parseRoute("#/s/x").file, undefined);
  assert.equal(parseRoute("#/s/x/files/a/0").line, null);
});

test("a table has quotes, separators and line ends of all kinds, and ends where it is long", () => {
  assert.deepEqual(readTable('a,"b ""c"", d"\r\n1,"two\nlines"\n', ",").rows, [["a", 'b "c", d'], ["1", "two\nlines"]]);
  assert.deepEqual(readTable("a\tb\n\nc", "\t").rows, [["a", "b"], [""], ["c"]]);
  assert.deepEqual(readTable("", ",").rows, []);
  const long = readTable("x\n".repeat(MOST_ROWS + 5), ",");
  assert.deepEqual([long.rows.length, long.more], [MOST_ROWS, true]);
  const wide = readTable(",".repeat(MOST_COLUMNS + 5), ",");
  assert.deepEqual([wide.rows[0].length, wide.more], [MOST_COLUMNS, true]);
});

test("a notebook is read as text and pictures, whatever it is", () => {
  const notebook = {
    metadata: { language_info: { name: "python" } },
    cells: [
      { cell_type: "markdown", source: ["# Title\n", "text"] },
      {
        cell_type: "code",
        source: "plot()",
        outputs: [
          { output_type: "stream", text: ["1\n", "2\n"] },
          { output_type: "display_data", data: { "image/png": "iVBORw0KGgo=\n", "text/plain": "<Figure>" } },
          { output_type: "display_data", data: { "text/html": "<script>alert(1)</script>", "text/plain": ["a"] } },
          { output_type: "error", ename: "ValueError", evalue: "no", traceback: ["\u001b[31mValueError\u001b[0m"] },
          { output_type: "display_data", data: { "image/png": "\" onerror=x" } },
        ],
      },
    ],
  };
  const { cells, language, more } = readNotebook(JSON.stringify(notebook));
  assert.deepEqual(cells.map(({ kind, text }) => [kind, text]), [
    ["markdown", "# Title\ntext"],
    ["code", "plot()"],
    ["output", "1\n2\n"],
    ["picture", "data:image/png;base64,iVBORw0KGgo="],
    ["output", "a"],
    ["output", "\u001b[31mValueError\u001b[0m"],
  ]);
  assert.deepEqual([language, more], ["python", false]);
  for (const text of ["", "{", "[]", '{"cells": 1}', "null"]) assert.equal(readNotebook(text), null);
  assert.deepEqual(readNotebook('{"cells": [null, 1, {"source": [1]}]}').cells, []);
});

test("a directory in a worktree of its own tells which one", () => {
  for (const [path, tree] of [
    ["/srv/shop/.worktrees/fix", "/srv/shop/.worktrees/fix"],
    ["/srv/shop/.worktrees/fix/sub/x", "/srv/shop/.worktrees/fix"],
    ["/a/.worktrees/b/.worktrees/c", "/a/.worktrees/b/.worktrees/c"],
    ["/srv/shop/.worktrees", null],
    ["/srv/shop", null],
    ["", null],
  ]) {
    assert.equal(treeOf(/** @type {string} */ (path)), tree);
  }
});
