import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { registerWorker } from "../../../acp_gateway/web/app/net/service_worker.js";

const WEB = resolve(dirname(fileURLToPath(import.meta.url)), "../../../acp_gateway/web");

const read = (folder) =>
  readdirSync(join(WEB, folder), { recursive: true })
    .filter((name) => name.endsWith(".js"))
    .map((name) => [join(folder, name), readFileSync(join(WEB, folder, name), "utf8")]);

const APP = read("app");
const WORKER = readFileSync(join(WEB, "worker.js"), "utf8");
const VENDOR = read("vendor");

/** Whatever turns a string into markup or into a program. */
const SINKS =
  /innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\b|new\s+Function|\bFunction\(|javascript:|importScripts|setHTML|trustedTypes|createPolicy|(?:setTimeout|setInterval)\(\s*["'`]/g;

test("no module of the page parses a string as HTML or as a program", () => {
  assert.ok(APP.length > 10);
  for (const [name, source] of [...APP, ["worker.js", WORKER]]) {
    const policy = /app\/(?:net\/service_worker|code\/code_reader)\.js/.test(name) ? ["trustedTypes", "createPolicy"] : [];
    const allowed = name === "app/net/service_worker.js" ? ["trustedTypes", ...policy] : policy;
    assert.deepEqual(source.match(SINKS) ?? [], allowed, name);
  }
});

test("the one policy of the page trusts the address of its service worker, whatever it is given", async () => {
  const registered = [];
  const serviceWorker = { register: async (url) => void registered.push(url), ready: "registration" };
  const trustedTypes = { createPolicy: (_, rules) => ({ createScriptURL: () => rules.createScriptURL("https://evil.example/") }) };
  const document = { baseURI: "https://gpu.example/gateway/" };
  assert.equal(await registerWorker({ navigator: { serviceWorker }, document, trustedTypes }), "registration");
  assert.deepEqual(registered, ["https://gpu.example/gateway/worker.js"]);
  assert.equal(await registerWorker({ navigator: {}, document }), null);
});

test("the libraries do so nowhere but in one property of Preact and one function of Highlight.js that the page never uses", () => {
  for (const [name, source] of VENDOR) {
    if (name === "vendor/preact.js") continue;
    // Grammars name what a language has.
    const found = (source.match(SINKS) ?? []).filter((word) => word !== "eval" || !name.includes("/languages/"));
    assert.deepEqual(found, name.endsWith("highlight/core.js") ? ["innerHTML", "innerHTML"] : [], name);
  }
  const [, preact] = VENDOR.find(([name]) => name === "vendor/preact.js");
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

/** Modules of a folder: a person takes in as many at one look. */
const MOST_MODULES = 16;

test("every module says what it is for", () => {
  for (const [name, source] of APP) assert.match(source, /^\/\*\*/, name);
});

test("no folder has more modules than a person takes in", () => {
  const modules = new Map();
  for (const [name] of APP) modules.set(dirname(name), [...(modules.get(dirname(name)) ?? []), basename(name)]);
  for (const [folder, found] of modules) assert.ok(found.length <= MOST_MODULES, `${folder} has ${found.length} modules`);
});

test("the style imports each file of its folder, once", () => {
  const imported = [...readFileSync(join(WEB, "style.css"), "utf8").matchAll(/@import "styles\/(.*)";/g)].map(([, name]) => name);
  assert.deepEqual([...imported].sort(), readdirSync(join(WEB, "styles")).sort());
});

test("what decides has no DOM", () => {
  const pure = APP.filter(([name]) => /^app\/(?:(?:state|text|updates)\/|net\/(?:fleet|link|reach|rpc)|route\/(?:panes|route))/.test(name));
  assert.ok(pure.length > 30);
  for (const [name, source] of pure) {
    const code = source.replace(/\/\*[^]*?\*\/|\/\/.*/g, "");
    assert.doesNotMatch(code, /\b(?:document|window|location|navigator)\s*[.[]/, name);
  }
});
