import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const WEB = resolve(dirname(fileURLToPath(import.meta.url)), "../../../acp_gateway/web");

const read = (folder) =>
  readdirSync(join(WEB, folder), { recursive: true })
    .filter((name) => name.endsWith(".js"))
    .map((name) => [join(folder, name), readFileSync(join(WEB, folder, name), "utf8")]);

const APP = read("app");
const VENDOR = read("vendor");

/** Whatever turns a string into markup or into a program. */
const SINKS =
  /innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\b|new\s+Function|\bFunction\(|javascript:|importScripts|setHTML|trustedTypes|createPolicy|(?:setTimeout|setInterval)\(\s*["'`]/g;

test("no module of the page parses a string as HTML or as a program", () => {
  assert.ok(APP.length > 10);
  for (const [name, source] of APP) assert.deepEqual(source.match(SINKS) ?? [], [], name);
});

test("the libraries do so nowhere but in the one property of Preact that the page never uses", () => {
  const found = VENDOR.filter(([name]) => !name.endsWith("standalone.module.js"));
  for (const [name, source] of found) assert.deepEqual(source.match(SINKS) ?? [], [], name);
  const [, preact] = VENDOR.find(([name]) => name.endsWith("standalone.module.js"));
  assert.deepEqual(preact.match(SINKS), ["innerHTML", "innerHTML"]);
  assert.match(preact, /dangerouslySetInnerHTML/);
});

test("modules import each other by relative paths to files that exist", () => {
  for (const [name, source] of [...APP, ...VENDOR]) {
    const imports = [
      ...source.matchAll(
        /(?:^|[\n;])\s*(?:import|export)\b[^"';]*?from\s*["']([^"']+)["']|import\(\s*["']([^"']+)["']\s*\)/g,
      ),
    ];
    for (const [, from, dynamic] of imports) {
      const target = from ?? dynamic;
      if (source.includes(`@typedef`) && dynamic !== undefined) continue; // Types in comments.
      assert.match(target, /^\.\.?\//, `${name} imports ${target}`);
      assert.doesNotThrow(() => readFileSync(join(WEB, dirname(name), target)), `${name} imports ${target}`);
    }
  }
});

test("every module says what it is for and has fewer than 400 lines", () => {
  for (const [name, source] of APP) {
    assert.match(source, /^\/\*\*/, name);
    assert.ok(source.split("\n").length <= 400, `${name} has ${source.split("\n").length} lines`);
  }
});

test("what decides has no DOM", () => {
  const pure = [
    "ansi",
    "content",
    "current",
    "diff",
    "fold",
    "fold_blocks",
    "format",
    "link",
    "markdown",
    "markdown_lexer",
    "route",
    "rpc",
    "sending",
    "sessions",
    "suspicion",
  ];
  for (const [name, source] of APP) {
    if (!pure.includes(relative("app", name).replace(/\.js$/, ""))) continue;
    const code = source.replace(/\/\*[^]*?\*\/|\/\/.*/g, "");
    assert.doesNotMatch(code, /\b(?:document|window|location|navigator)\s*[.[]/, name);
  }
});

test("the page loads every module at once, instead of one after the other as they import each other", () => {
  const page = readFileSync(join(WEB, "index.html"), "utf8");
  const loaded = [
    ...page.matchAll(/<(?:link rel="modulepreload" href|script type="module" src)="\{assets\}\/([^"]+)"/g),
  ];
  assert.deepEqual(loaded.map(([, name]) => name).sort(), [...APP, ...VENDOR].map(([name]) => name).sort());
});
