import assert from "node:assert/strict";
import { test } from "node:test";
import { createAttention, tabTitle } from "../../../acp_gateway/web/app/views/page/attention.js";

const session = (id, ...requestIds) => ({
  id,
  title: `Title ${id}`,
  status: requestIds.length > 0 ? "waiting" : "completed",
  waiting: requestIds.map((requestId) => ({ requestId, title: `question ${requestId}` })),
  mayControl: true,
});

/** A window with one icon, in which notifications are collected. */
function fakeWindow({ permission = "granted", hidden = true } = {}) {
  const link = { href: "" };
  const shown = [];
  class Notification {
    static permission = permission;
    static requestPermission = async () => permission;
    constructor(title, options) {
      Object.assign(this, { title, ...options, closed: false });
      shown.push(this);
    }
    close() {
      this.closed = true;
    }
  }
  const window = {
    Notification,
    isSecureContext: true,
    document: { title: "", hidden, querySelector: () => link },
    location: { hash: "" },
    focused: false,
    focus() {
      this.focused = true;
    },
  };
  return { window, link, shown };
}

test("the title counts the sessions that need the user before the name of the open one", () => {
  assert.equal(tabTitle(0, null), "acp-gateway");
  assert.equal(tabTitle(2, null), "(2) acp-gateway");
  assert.equal(tabTitle(1, session("a")), "(1) Title a – acp-gateway");
});

test("the icon has a mark while a session needs the user", () => {
  const { window, link } = fakeWindow();
  const attention = createAttention(window);
  attention.update([session("a", 1)], null);
  assert.match(link.href, /icon-waiting\.svg$/);
  attention.update([session("a")], null);
  assert.match(link.href, /icon\.svg$/);
});

/** Let the promises that are settled go on. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a new question is notified once, with what it is about, and a click opens it", async () => {
  const { window, shown } = fakeWindow();
  const attention = createAttention(window);
  attention.update([session("a", 1)], null);
  assert.equal(shown.length, 0, "what waited before the page was opened");
  attention.update([session("a", 1, 2), session("b")], null);
  attention.update([session("a", 1, 2), session("b")], null);
  await settled();
  assert.deepEqual(shown.map(({ title, body }) => [title, body]), [["Title a needs you", "question 2"]]);
  shown[0].onclick();
  assert.deepEqual([window.location.hash, window.focused, shown[0].closed], ["#/s/a/r/2", true, true]);
});

test("nothing is notified while the page is seen, without permission, or for an observer", async () => {
  for (const options of [{ hidden: false }, { permission: "denied" }, {}]) {
    const { window, shown } = fakeWindow(options);
    const attention = createAttention(window);
    attention.update([], null);
    const mayControl = Object.keys(options).length > 0;
    attention.update([{ ...session("a", 1), mayControl }], null);
    await settled();
    assert.deepEqual(shown, []);
  }
});

test("a browser that forbids the constructor is left alone", async () => {
  const { window } = fakeWindow();
  window.Notification = class {
    static permission = "granted";
    constructor() {
      throw new TypeError("Illegal constructor");
    }
  };
  const attention = createAttention(window);
  attention.update([], null);
  attention.update([session("a", 1)], null);
  await settled();
  assert.equal(window.document.title, "(1) acp-gateway");
});

test("the notification of a question that was decided elsewhere is taken away", async () => {
  const { window, shown } = fakeWindow();
  const attention = createAttention(window);
  attention.update([], null);
  attention.update([session("a", 1, 2)], null);
  attention.update([session("a", 2)], null);
  await settled();
  assert.deepEqual(shown.map(({ body, closed }) => [body, closed]), [["question 1", true], ["question 2", false]]);
});

test("a service worker shows notifications where there is one, and its clicks open the question", async () => {
  const { window, shown } = fakeWindow();
  const inWorker = [];
  const registration = {
    showNotification: async (title, options) => void inWorker.push({ title, ...options, close: () => inWorker.splice(0) }),
    getNotifications: async ({ tag }) => inWorker.filter((one) => one.tag === tag),
  };
  let listener = null;
  const serviceWorker = {
    register: async () => {},
    ready: Promise.resolve(registration),
    addEventListener: (_, listen) => (listener = listen),
  };
  const attention = createAttention({ ...window, navigator: { serviceWorker }, document: { ...window.document, baseURI: "https://gpu.example/" } });
  attention.update([], null);
  attention.update([session("a", 1)], null);
  await settled();
  assert.deepEqual([shown.length, inWorker.map(({ title, body, data }) => [title, body, data.hash])], [0, [["Title a needs you", "question 1", "#/s/a/r/1"]]]);
  listener({ data: { hash: "#/s/a/r/1" } });
  assert.equal(window.location.hash, "#/s/a/r/1");
  attention.update([session("a")], null);
  await settled();
  assert.deepEqual(inWorker, []);
});

test("without notifications, or without a secure connection, there is no permission to ask for", () => {
  const { window } = fakeWindow({ permission: "default" });
  assert.equal(createAttention(window).permission, "default");
  assert.equal(createAttention({ ...window, isSecureContext: false }).permission, "unavailable");
  const { Notification: _, ...bare } = window;
  assert.equal(createAttention(bare).permission, "unavailable");
});

test("the end of a turn is notified for chosen sessions and long turns, once, and goes when the next one begins", async () => {
  const { window, shown } = fakeWindow();
  const attention = createAttention(window);
  const ended = (id, at, members = {}) => ({ ...session(id), lastTurn: { stopReason: "end_turn", seconds: 400, at, ...members } });
  const done = { after: 5, sessions: ["b"] };
  // What has ended before the page came, or is new in the list, tells nothing.
  attention.update([ended("a", "1"), { ...session("b"), lastTurn: null }], null, done);
  attention.update([ended("a", "1"), { ...session("b"), lastTurn: null }, ended("c", "1")], null, done);
  await settled();
  assert.deepEqual(shown, []);
  const failed = ended("b", "2", { stopReason: undefined, error: { code: 429, message: "try again in 32 s" }, seconds: 1 });
  attention.update([ended("a", "2"), failed, ended("c", "2", { seconds: 10 })], null, done);
  attention.update([ended("a", "2"), failed, ended("c", "2", { seconds: 10 })], null, done);
  await settled();
  assert.deepEqual(shown.map(({ title, body }) => [title, body]), [["Title a is done", ""], ["Title b has failed", "Try again in 32 s"]]);
  attention.update([{ ...ended("a", "2"), turn: true }, failed], null, done);
  await settled();
  assert.deepEqual(shown.map(({ closed }) => closed), [true, false]);
});

test("the end of a turn is not notified while the page is seen, nor to one who only looks on", async () => {
  const { window, shown } = fakeWindow();
  const attention = createAttention(window);
  const at = (time) => [{ ...session("a"), mayControl: false, lastTurn: { stopReason: "end_turn", seconds: 1, at: time } }];
  const done = { after: 0, sessions: ["a"] };
  attention.update(at("1"), null, done);
  attention.update(at("2"), null, done);
  window.document.hidden = false;
  attention.update(at("3").map((one) => ({ ...one, mayControl: true })), null, done);
  await settled();
  assert.deepEqual(shown, []);
});
