import assert from "node:assert/strict";
import { test } from "node:test";
import { createPush, minutesOf, timeOfDay } from "../../../acp_gateway/web/app/net/push.js";

const KEY = "BAEC_-4";
const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64url")).buffer;

/** A browser with a push service, and a gateway that remembers what it is told. */
function scene({ subscribed = false, quiet = null, session = null, permission = "granted", existing = null, key = KEY, keeps = true } = {}) {
  const calls = [];
  const make = (number, its) => ({
    endpoint: `https://push.example/${number}`,
    options: { applicationServerKey: bytes(its) },
    getKey: (name) => bytes({ p256dh: "BBBB", auth: "CCCC" }[name]),
    unsubscribe: async () => void (current = null),
  });
  let current = existing === null ? null : make(0, existing);
  let made = 0;
  const pushManager = {
    getSubscription: async () => current,
    subscribe: async (options) => {
      assert.equal(options.userVisibleOnly, true);
      return (current = make(++made, options.applicationServerKey));
    },
  };
  const request = async (method, params) => {
    calls.push([method, params]);
    if (method === "push/get") return { key, subscribed, quiet, session };
    return { success: true };
  };
  const items = new Map();
  const kept = { getItem: (name) => items.get(name) ?? null, setItem: (name, value) => items.set(name, value) };
  const window = { isSecureContext: true, PushManager: class {}, Notification: { permission }, navigator: { serviceWorker: {} } };
  const push = createPush({ window, registered: async () => ({ pushManager }), request, kept: keeps ? kept : null });
  return { push, calls, window, kept, told: () => calls.filter(([method]) => method !== "push/get"), current: () => current };
}

const CLOCK = { offset: -new Date().getTimezoneOffset(), zone: Intl.DateTimeFormat().resolvedOptions().timeZone };
const members = (number) => ({ endpoint: `https://push.example/${number}`, p256dh: "BBBB", auth: "CCCC" });

test("turning on subscribes with the gateway's key, and tells the gateway", async () => {
  const { push, told } = scene();
  await push.turnOn({ quiet: null, session: null });
  assert.deepEqual(told(), [["push/subscribe", members(1)]]);
});

test("quiet hours are told with the time zone of the browser", async () => {
  const { push, told } = scene({ existing: KEY });
  await push.turnOn({ quiet: { start: 1320, end: 420 }, session: null });
  assert.deepEqual(told(), [["push/subscribe", { ...members(0), quiet: { start: 1320, end: 420, ...CLOCK } }]]);
});

test("one session is told, if questions of no other one are wanted", async () => {
  const { push, told } = scene({ existing: KEY });
  await push.turnOn({ quiet: null, session: "s1" });
  assert.deepEqual(told(), [["push/subscribe", { ...members(0), session: "s1" }]]);
});

test("turning off ends the subscription at the gateway and in the browser", async () => {
  const { push, told, current } = scene({ existing: KEY, subscribed: true });
  await push.turnOff();
  assert.deepEqual(told(), [["push/unsubscribe", {}]]);
  assert.equal(current(), null);
});

test("a page that is loaded repeats what the gateway knows, in the present time zone", async () => {
  const quiet = { start: 1, end: 2, offset: CLOCK.offset + 60, zone: "Far/Away" };
  const { push, told } = scene({ existing: KEY, subscribed: true, quiet, session: "s1" });
  await push.refresh();
  assert.deepEqual(told(), [["push/subscribe", { ...members(0), quiet: { start: 1, end: 2, ...CLOCK }, session: "s1" }]]);
});

test("a browser that has signed in again, or whose worker has subscribed again, keeps its settings", async () => {
  for (const subscribed of [false, true]) {
    const { push, told, kept } = scene({ existing: KEY, subscribed });
    kept.setItem("notifications", '{"quiet":{"start":60,"end":120},"session":"s1"}');
    await push.refresh();
    assert.deepEqual(told(), [["push/subscribe", { ...members(0), quiet: { start: 60, end: 120, ...CLOCK }, session: "s1" }]]);
  }
});

test("a subscription that the browser has lost, or that is for another key, is made again", async () => {
  for (const existing of [null, "BAAA"]) {
    const { push, told } = scene({ existing, subscribed: true });
    await push.refresh();
    assert.deepEqual(told(), [["push/subscribe", members(1)]]);
  }
});

test("without permission, without push, or where it was never turned on, nothing is told", async () => {
  for (const options of [{ permission: "default", subscribed: true }, {}]) {
    const { push, told } = scene(options);
    await push.refresh();
    assert.deepEqual(told(), []);
  }
  const { push, calls, window } = scene({ subscribed: true });
  delete window.PushManager;
  await push.refresh();
  assert.deepEqual([calls, push.available], [[], false]);
});

test("times of day are minutes after midnight", () => {
  assert.deepEqual([minutesOf("22:05"), timeOfDay(1325), timeOfDay(0)], [1325, "22:05", "00:00"]);
});

test("the turns whose end is told are kept, and told to the gateway that notifies this browser", async () => {
  const { push, told } = scene({ subscribed: true, existing: KEY });
  assert.deepEqual(push.done, { after: null, sessions: [] });
  const done = { after: 5, sessions: ["s1"] };
  await push.setDone(done);
  assert.deepEqual(push.done, done);
  assert.deepEqual(told(), [["push/subscribe", { ...members(0), done }]]);
  await push.turnOn({ quiet: null, session: null });
  assert.deepEqual(told()[1], told()[0]);
  await push.setDone({ after: null, sessions: Array.from({ length: 101 }, (_, i) => `s${i}`) });
  assert.deepEqual([push.done.sessions.length, push.done.sessions[0]], [100, "s1"]);
});

test("where the browser keeps nothing, the turns whose end is told hold until the page is closed", async () => {
  const { push, told } = scene({ subscribed: true, existing: KEY, keeps: false });
  const done = { after: null, sessions: ["s1"] };
  await push.setDone(done);
  assert.deepEqual(push.done, done);
  assert.deepEqual(told(), [["push/subscribe", { ...members(0), done }]]);
});
