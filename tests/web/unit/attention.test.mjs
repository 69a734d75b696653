import assert from "node:assert/strict";
import { test } from "node:test";
import { createAttention, tabTitle } from "../../../acp_gateway/web/app/attention.js";

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

test("a new question is notified once, with what it is about, and a click opens it", () => {
  const { window, shown } = fakeWindow();
  const attention = createAttention(window);
  attention.update([session("a", 1)], null);
  assert.equal(shown.length, 0, "what waited before the page was opened");
  attention.update([session("a", 1, 2), session("b")], null);
  attention.update([session("a", 1, 2), session("b")], null);
  assert.deepEqual(shown.map(({ title, body }) => [title, body]), [["Title a needs you", "question 2"]]);
  shown[0].onclick();
  assert.deepEqual([window.location.hash, window.focused, shown[0].closed], ["#/s/a/r/2", true, true]);
});

test("nothing is notified while the page is seen, without permission, or for an observer", () => {
  for (const options of [{ hidden: false }, { permission: "denied" }, {}]) {
    const { window, shown } = fakeWindow(options);
    const attention = createAttention(window);
    attention.update([], null);
    const mayControl = Object.keys(options).length > 0;
    attention.update([{ ...session("a", 1), mayControl }], null);
    assert.deepEqual(shown, []);
  }
});

test("a browser that forbids the constructor is left alone", () => {
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
  assert.equal(window.document.title, "(1) acp-gateway");
});

test("without notifications, or without a secure connection, there is no permission to ask for", () => {
  const { window } = fakeWindow({ permission: "default" });
  assert.equal(createAttention(window).permission, "default");
  assert.equal(createAttention({ ...window, isSecureContext: false }).permission, "unavailable");
  const { Notification: _, ...bare } = window;
  assert.equal(createAttention(bare).permission, "unavailable");
});
