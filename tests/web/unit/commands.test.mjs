import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { COMMANDS, commandOf, isKeyOf, keyText } from "../../../acp_gateway/web/app/state/commands.js";
import { itemsFor, MOST } from "../../../acp_gateway/web/app/state/palette_items.js";
import { createTheme } from "../../../acp_gateway/web/app/views/page/theme.js";
import { neighbourOf, nextWaiting } from "../../../acp_gateway/web/app/text/words.js";

const APP = new URL("../../../acp_gateway/web/app/", import.meta.url);

const event = (key, pressed = {}) => ({ key, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...pressed });
const is = (name, pressed, isApple = false) => isKeyOf(pressed, commandOf(name), isApple);

test("every command of the table is carried out by some module, and none is that the table does not have", () => {
  const used = new Set();
  for (const name of readdirSync(APP, { recursive: true }).filter((name) => name.endsWith(".js"))) {
    const source = readFileSync(new URL(name, APP), "utf8");
    for (const [, command] of source.matchAll(/\b(?:useCommand\(|isKey\(event, )"(\w+)"/g)) used.add(command);
  }
  assert.deepEqual([...used].sort(), COMMANDS.map(({ name }) => name).sort());
});

test("no key belongs to two commands of one place", () => {
  for (const at of ["page", "field", "link"]) {
    const keys = COMMANDS.filter((command) => command.at === at).flatMap((command) => command.keys);
    assert.deepEqual(keys, [...new Set(keys)]);
  }
});

test("a key without Ctrl is not a command with it, and the other way round", () => {
  assert.ok(is("next", event("n")));
  for (const pressed of ["ctrlKey", "metaKey", "altKey", "shiftKey"]) assert.ok(!is("next", event("n", { [pressed]: true })), pressed);
  assert.ok(is("palette", event("k", { ctrlKey: true })));
  assert.ok(!is("palette", event("k")));
  assert.ok(!is("palette", event("k", { metaKey: true })));
  assert.ok(!is("palette", event("k", { ctrlKey: true, altKey: true })));
});

test("on Apple's machines it is Cmd: Ctrl-K cuts a line there", () => {
  assert.ok(is("palette", event("k", { metaKey: true }), true));
  assert.ok(!is("palette", event("k", { ctrlKey: true }), true));
  for (const pressed of ["ctrlKey", "metaKey"]) assert.ok(is("send", event("Enter", { [pressed]: true }), true), pressed);
});

test("signs count with Shift, where keyboards need it, and Shift-Enter is a new line", () => {
  assert.ok(is("keys", event("?", { shiftKey: true })));
  assert.ok(is("find", event("/", { shiftKey: true })));
  assert.ok(is("send", event("Enter")));
  assert.ok(!is("send", event("Enter", { shiftKey: true })));
});

test("the digits from 1 on choose an option", () => {
  assert.ok(is("decide", event("1")));
  assert.ok(is("decide", event("9")));
  // On French keyboards digits need Shift.
  assert.ok(is("decide", event("2", { shiftKey: true })));
  for (const key of ["0", "12", "a"]) assert.ok(!is("decide", event(key)), key);
});

test("Alt with a click, or with Enter, opens a session beside another; no other key with it does", () => {
  for (const pressed of [event(undefined, { type: "click", altKey: true }), event("Enter", { altKey: true })]) {
    assert.ok(is("aside", pressed));
    for (const key of ["ctrlKey", "metaKey", "shiftKey"]) assert.ok(!is("aside", { ...pressed, [key]: true }), key);
    assert.ok(!is("aside", { ...pressed, altKey: false }));
  }
  assert.ok(!is("aside", event("a", { altKey: true })));
});

test("keys are written as on the keyboard", () => {
  assert.equal(keyText("Alt+click", false), "Alt click");
  assert.equal(keyText("Alt+Enter", true), "⌥ Enter");
  assert.equal(keyText("Mod+k", false), "Ctrl K");
  assert.equal(keyText("Mod+k", true), "⌘ K");
  assert.equal(keyText("Escape", false), "Esc");
  assert.equal(keyText("n", false), "n");
});

const session = (id, members = {}) => ({ id, title: `Session ${id}`, agentType: "claude", cwd: "/home/ann/shop", status: "completed", waiting: [], live: true, ...members });

test("the palette finds sessions by title, state, agent and workspace, and commands by their words", () => {
  const commands = [commandOf("find"), commandOf("new")];
  const sessions = [session("a"), session("b", { status: "running", workspace: "site" }), session("c", { status: "waiting" })];
  const labels = (text) => itemsFor(text, commands, sessions, [{ name: "claude", title: "Claude Code" }]).map(({ label }) => label);
  assert.deepEqual(labels(""), ["Session c", "Find in this session", "New session", "Session a", "Session b"]);
  assert.deepEqual(labels("working"), ["Session b"]);
  assert.deepEqual(labels("needs"), ["Session c"]);
  assert.deepEqual(labels("SITE code"), ["Session b"]);
  assert.deepEqual(labels("new"), ["New session"]);
  assert.deepEqual(labels("session"), ["Session c", "Session a", "Session b", "Find in this session", "New session"]);
  assert.deepEqual(labels("nothing"), []);
});

test("the palette offers no more than a person reads", () => {
  const sessions = Array.from({ length: 1000 }, (_, i) => session(String(i)));
  assert.equal(itemsFor("", [], sessions, []).length, MOST);
  assert.deepEqual(itemsFor("session 999", [], sessions, []).map(({ sessionId }) => sessionId), ["999"]);
});

test("the next session that waits follows the open one, and the first follows the last", () => {
  const sessions = [session("a"), session("b", { status: "waiting" }), session("c", { status: "waiting" }), session("d", { status: "waiting", archived: true })];
  assert.equal(nextWaiting(sessions, "a").id, "b");
  assert.equal(nextWaiting(sessions, "b").id, "c");
  assert.equal(nextWaiting(sessions, "c").id, "b");
  assert.equal(nextWaiting(sessions, null).id, "b");
  assert.equal(nextWaiting(sessions.slice(0, 2), "b"), undefined);
  assert.equal(nextWaiting(sessions.slice(0, 1), null), undefined);
});

test("an observer, who decides nothing, is sent nowhere", () => {
  assert.equal(nextWaiting([session("a", { status: "waiting", mayControl: false })], null), undefined);
});

test("neighbours end at the ends of the list, and begin at its first session", () => {
  const sessions = [session("a"), session("b")];
  assert.equal(neighbourOf(sessions, "a", 1).id, "b");
  assert.equal(neighbourOf(sessions, "b", 1), undefined);
  assert.equal(neighbourOf(sessions, "a", -1), undefined);
  assert.equal(neighbourOf(sessions, "elsewhere", -1).id, "a");
  assert.equal(neighbourOf([], null, 1), undefined);
});

function fakeWindow() {
  const media = { mediaText: "(prefers-color-scheme: dark)" };
  const metas = [{ media: "(prefers-color-scheme: light)" }, { media: "(prefers-color-scheme: dark)" }];
  const document = {
    styleSheets: [{ cssRules: [{}, { media: { mediaText: "(hover: none)" } }, { media }] }],
    querySelectorAll: () => metas,
    documentElement: { style: {} },
  };
  return { window: { document, matchMedia: () => ({ matches: false }) }, media, metas };
}

test("colours that were chosen replace those of the system, also after a reload", () => {
  const kept = new Map();
  const storage = { getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => void kept.set(name, value) };
  const first = fakeWindow();
  const turn = createTheme(first.window, storage);
  assert.equal(first.media.mediaText, "(prefers-color-scheme: dark)");
  turn();
  assert.equal(first.media.mediaText, "all");
  assert.deepEqual(first.metas.map(({ media }) => media), ["not all", "all"]);
  assert.equal(first.window.document.documentElement.style.colorScheme, "dark");
  const second = fakeWindow();
  const again = createTheme(second.window, storage);
  assert.equal(second.media.mediaText, "all");
  again();
  assert.equal(second.media.mediaText, "not all");
  assert.deepEqual(second.metas.map(({ media }) => media), ["all", "not all"]);
});
