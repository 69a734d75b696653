import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { runInNewContext } from "node:vm";

const SOURCE = readFileSync(new URL("../../../acp_gateway/web/worker.js", import.meta.url), "utf8");
const QUESTION = {
  tag: "s/1 x-1",
  title: "Fix the parser needs you",
  body: "Run make test",
  sessionId: "s/1",
  requestId: "x-1",
  options: [
    { optionId: "always", name: "Always", kind: "allow_always" },
    { optionId: "no", name: "No", kind: "reject_once" },
    { optionId: "yes", name: "Yes", kind: "allow_once" },
  ],
};

/** The worker in a browser; `answer` is what the gateway answers, null for a lost connection. */
function scene({ maxActions = 2, visible = null, answer = { id: 1, result: { success: true } }, answers = {} } = {}) {
  const listeners = {};
  const shown = [];
  const sent = [];
  const opened = [];
  const called = [];
  const subscribed = [];
  const page = { url: "https://box/gw/#/", visibilityState: visible ? "visible" : "hidden", told: [], focus: () => {}, postMessage: (message) => page.told.push(message) };
  class WebSocket {
    constructor(url) {
      called.push(url);
      setImmediate(() => (answer === null ? this.onclose() : this.onopen()));
    }
    send(text) {
      const call = JSON.parse(text);
      sent.push(call);
      this.onmessage({ data: JSON.stringify({ method: "session/changed" }) });
      this.onmessage({ data: JSON.stringify(answers[call.method] ?? answer) });
    }
    close() {}
  }
  const self = {
    addEventListener: (name, listener) => (listeners[name] = listener),
    Notification: { maxActions },
    clients: { matchAll: async () => (visible === null ? [] : [page]), openWindow: async (url) => void opened.push(url) },
    registration: {
      scope: "https://box/gw/",
      showNotification: async (title, options) => {
        const at = shown.findIndex((one) => one.tag === options.tag);
        if (at >= 0) shown.splice(at, 1);
        const one = { title, ...options, close: () => shown.splice(shown.indexOf(one), 1) };
        shown.push(one);
      },
      getNotifications: async ({ tag }) => shown.filter((one) => one.tag === tag),
      pushManager: { subscribe: async (options) => (subscribed.push(plain(options)), subscription("made")) },
    },
  };
  runInNewContext(SOURCE, { self, URL, WebSocket, setTimeout, clearTimeout, encodeURIComponent, JSON, btoa, Uint8Array });
  const fire = async (name, event) => {
    let work = null;
    listeners[name]({ ...event, waitUntil: (promise) => (work = promise) });
    await work;
  };
  return {
    shown,
    sent,
    opened,
    called,
    subscribed,
    page,
    change: (newSubscription) => fire("pushsubscriptionchange", { oldSubscription: null, newSubscription }),
    push: (message) => fire("push", { data: { json: () => message } }),
    click: (action = "") => fire("notificationclick", { action, notification: shown[0] }),
  };
}

/** A subscription of the browser. */
const subscription = (name) => ({
  endpoint: `https://push.example/${name}`,
  getKey: (key) => Uint8Array.from(Buffer.from({ p256dh: "BB-_", auth: "CC_-" }[key], "base64url")).buffer,
});

const plain = (value) => JSON.parse(JSON.stringify(value));

test("a question is shown with the options that decide only this one as buttons", async () => {
  const { shown, push } = scene();
  await push(QUESTION);
  const { title, body, tag, actions, data, silent } = plain(shown[0]);
  assert.deepEqual([title, body, tag, silent], ["Fix the parser needs you", "Run make test", "s/1 x-1", false]);
  assert.deepEqual(actions, [{ action: "yes", title: "Yes" }, { action: "no", title: "No" }]);
  assert.equal(data.hash, "#/s/s%2F1/r/x-1");
});

test("all options are buttons in the agent's order where the browser has room, and none where it has no buttons", async () => {
  for (const [maxActions, expected] of [[3, ["Always", "No", "Yes"]], [0, []]]) {
    const { shown, push } = scene({ maxActions });
    await push(QUESTION);
    assert.deepEqual(plain(shown[0].actions).map(({ title }) => title), expected);
  }
});

test("a message without content, or without ids, is shown and leads to its place", async () => {
  const { shown, push, click, opened } = scene();
  await push({ tag: "t", title: "opencode needs you" });
  assert.deepEqual([shown[0].body, plain(shown[0].actions)], ["", []]);
  await click();
  assert.deepEqual(opened, ["https://box/gw/#/"]);
});

test("a tap opens the question, in a page that is open if there is one", async () => {
  const closed = scene();
  await closed.push(QUESTION);
  await closed.click();
  assert.deepEqual([closed.opened, closed.shown], [["https://box/gw/#/s/s%2F1/r/x-1"], []]);
  const open = scene({ visible: false });
  await open.push(QUESTION);
  await open.click();
  assert.deepEqual([open.opened, plain(open.page.told)], [[], [{ hash: "#/s/s%2F1/r/x-1" }]]);
});

test("a button answers the question without a page", async () => {
  const { shown, sent, called, push, click, opened } = scene();
  await push(QUESTION);
  await click("yes");
  assert.deepEqual(called, ["wss://box/gw/ws"]);
  assert.deepEqual(sent, [
    {
      jsonrpc: "2.0",
      id: 1,
      method: "session/respond",
      params: { sessionId: "s/1", requestId: "x-1", response: { outcome: { outcome: "selected", optionId: "yes" } } },
    },
  ]);
  assert.deepEqual([shown, opened], [[], []]);
});

test("a button answers the question of another machine there, by the name that the session has there", async () => {
  const { shown, sent, called, push, click } = scene();
  await push({ ...QUESTION, sessionId: "gpu1/s/1", machine: "gpu1" });
  assert.equal(shown[0].data.hash, "#/s/gpu1%2Fs%2F1/r/x-1");
  await click("yes");
  assert.deepEqual(called, ["wss://box/gw/nodes/gpu1/ws"]);
  assert.deepEqual([sent[0].params.sessionId, sent[0].params.requestId], ["s/1", "x-1"]);
});

test("an answer that did not arrive is told in the place of the question", async () => {
  for (const [answer, body] of [
    [{ id: 1, error: { code: -32602, message: "this request is not open any more" } }, "Not answered: this request is not open any more"],
    [null, "Not answered: the gateway can't be reached, or this browser is not signed in any more."],
  ]) {
    const { shown, push, click } = scene({ answer });
    await push(QUESTION);
    await click("yes");
    assert.deepEqual([shown.length, shown[0].body, shown[0].data.hash], [1, body, "#/s/s%2F1/r/x-1"]);
  }
});

test("a decision elsewhere takes the notification away", async () => {
  const { shown, push } = scene();
  await push(QUESTION);
  await push({ ...QUESTION, tag: "other" });
  await push({ tag: QUESTION.tag, decided: true, replace: false });
  assert.deepEqual(shown.map(({ tag }) => tag), ["other"]);
});

test("where each message has to show something, a decision is shown silently in place of its question", async () => {
  const { shown, push } = scene();
  await push(QUESTION);
  await push({ tag: QUESTION.tag, decided: true, replace: true });
  assert.deepEqual([shown.length, shown[0].title, shown[0].body, shown[0].silent], [1, "Decided", "Run make test", true]);
  const seen = scene({ visible: true });
  await seen.push({ tag: QUESTION.tag, decided: true, replace: true });
  assert.deepEqual(seen.shown, []);
});

test("a notification makes no sound while the page is seen", async () => {
  const { shown, push } = scene({ visible: true });
  await push(QUESTION);
  assert.equal(shown[0].silent, true);
});

test("a subscription that the browser has replaced is told to the gateway, with the settings", async () => {
  const settings = { quiet: { start: 1, end: 2, offset: 60, zone: "Some/Where" }, session: "s1" };
  const answers = { "push/get": { id: 1, result: { key: "KEY", subscribed: true, ...settings } } };
  const members = (name) => ({ endpoint: `https://push.example/${name}`, p256dh: "BB-_", auth: "CC_-" });
  const { sent, subscribed, change } = scene({ answers });
  await change(subscription("new"));
  await change(null);
  const told = sent.filter(({ method }) => method === "push/subscribe").map(({ params }) => params);
  assert.deepEqual(told, [{ ...members("new"), ...settings }, { ...members("made"), ...settings }]);
  assert.deepEqual(subscribed, [{ userVisibleOnly: true, applicationServerKey: "KEY" }]);
  const without = scene({ answers: { "push/get": { id: 1, result: { key: "KEY", subscribed: false, quiet: null, session: null } } } });
  await without.change(subscription("new"));
  assert.deepEqual(without.sent[1].params, members("new"));
});

test("a subscription that the browser has replaced is left to the page where the gateway can't be asked", async () => {
  const { sent, subscribed, change } = scene({ answer: null });
  await change(null);
  assert.deepEqual([sent, subscribed], [[], []]);
});

/** A worker of a version, its caches and a gateway whose page is of a version; null for one that is away. */
function shell(version, { stores = new Map(), page = version, base = "https://box/gw/" } = {}) {
  const listeners = {};
  const asked = [];
  const did = [];
  const name = (url) => url.replace(base, "");
  const fetched = async (url) => {
    asked.push(name(url));
    if (page === null) throw new TypeError("away");
    return { url, text: async () => `${name(url)} of ${page}: ./assets/${page}/page.js` };
  };
  const cacheOf = (files) => ({
    addAll: async (urls) => {
      for (const [url, file] of await Promise.all(urls.map(async (each) => [each, await fetched(each)]))) files.set(url, file);
    },
    match: async (url) => files.get(url),
  });
  const self = {
    addEventListener: (event, listener) => (listeners[event] = listener),
    skipWaiting: async () => void did.push("skipWaiting"),
    clients: { claim: async () => void did.push("claim") },
    registration: { scope: base },
    caches: {
      open: async (cache) => cacheOf(stores.get(cache) ?? stores.set(cache, new Map()).get(cache)),
      keys: async () => [...stores.keys()],
      delete: async (cache) => stores.delete(cache),
      match: async (url) => [...stores.values()].map((files) => files.get(url)).find(Boolean),
    },
  };
  const source = SOURCE.replaceAll("{assets}", `./assets/${version}`);
  runInNewContext(source, { self, URL, fetch: (request) => fetched(request.url), Error });
  const fire = async (event) => {
    let work = null;
    listeners[event]({ waitUntil: (promise) => (work = promise) });
    await work;
  };
  const get = async (path, { method = "GET", mode = "cors" } = {}) => {
    let answer = null;
    listeners.fetch({ request: { method, mode, url: `${base}${path}` }, respondWith: (promise) => (answer = promise) });
    return answer === null ? "not asked" : (await answer).text();
  };
  return { fire, get, stores, asked, did, self };
}

const FOR_PAGE = { mode: "navigate" };

test("the page and its files are answered without the gateway, once they were kept", async () => {
  const { fire, stores, did } = shell("a");
  await fire("install");
  await fire("activate");
  assert.deepEqual(did, ["skipWaiting", "claim"]);
  const away = shell("a", { stores, page: null });
  assert.match(await away.get("", FOR_PAGE), /of a/);
  assert.match(await away.get("?x=1", FOR_PAGE), /of a/);
  assert.match(await away.get("assets/a/page.js"), /of a/);
  assert.deepEqual(away.asked, []);
});

test("only the page and files of a version are answered by the worker", async () => {
  const { fire, get, asked } = shell("a");
  await fire("install");
  asked.length = 0;
  assert.equal(await get("ws", { method: "POST" }), "not asked");
  assert.equal(await get("", { method: "POST", mode: "navigate" }), "not asked");
  assert.equal(await get("manifest.webmanifest"), "not asked");
  assert.equal(await get("metrics", FOR_PAGE), "not asked");
  assert.equal(await get(""), "not asked");
  assert.match(await get("assets/a/app/code.js"), /of a/);
  assert.deepEqual(asked, ["assets/a/app/code.js"]);
});

test("a version takes over whole: its page is its own, and files of the one before stay for pages that are open", async () => {
  const stores = new Map();
  for (const version of ["a", "b", "c"]) {
    const { fire } = shell(version, { stores });
    await fire("install");
    await fire("activate");
  }
  assert.deepEqual([...stores.keys()], ["shell https://box/gw/ ./assets/b", "shell https://box/gw/ ./assets/c"]);
  const { get } = shell("c", { stores, page: null });
  assert.match(await get("", FOR_PAGE), /of c/);
  assert.match(await get("assets/b/page.js"), /of b/);
});

test("a version is not kept with the page of another one, nor in part", async () => {
  const other = shell("a", { page: "b" });
  await assert.rejects(other.fire("install"), /another version/);
  const away = shell("a", { page: null });
  await assert.rejects(away.fire("install"), /away/);
  assert.deepEqual([...other.stores.keys()], []);
  assert.deepEqual([other.did, away.did], [[], []]);
  await assert.rejects(away.get("", FOR_PAGE), /away/);
});

test("gateways at other paths of the same host keep their versions", async () => {
  const stores = new Map();
  for (const [version, base] of [["a", "https://box/"], ["b", "https://box/gw/"], ["c", "https://box/gw/"], ["d", "https://box/gw/"]]) {
    const { fire } = shell(version, { stores, base });
    await fire("install");
    await fire("activate");
  }
  const broken = shell("a", { stores, base: "https://box/gw/", page: "e" });
  await assert.rejects(broken.fire("install"), /another version/);
  const { get } = shell("a", { stores, base: "https://box/", page: null });
  assert.match(await get("", FOR_PAGE), /of a/);
  assert.match(await get("assets/a/page.js"), /of a/);
});

test("the gateway is asked where the browser can't read what it keeps", async () => {
  const { get, self } = shell("a");
  self.caches.open = async () => assert.fail("the storage is broken");
  assert.match(await get("", FOR_PAGE), /of a/);
  assert.match(await get("assets/a/page.js"), /of a/);
});
