import assert from "node:assert/strict";
import { test } from "node:test";

import { createStore } from "../../../acp_gateway/web/app/state/store.js";
import { numbered, said, settle } from "./helpers.mjs";

const session = (id, more = {}) => ({ id, agentType: "x", cwd: "/a", title: id, status: "completed", waiting: [], ...more });

/** A storage that keeps what it is given. */
function items() {
  const kept = new Map();
  return {
    kept,
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, text) => void kept.set(name, text),
    removeItem: (name) => void kept.delete(name),
    clear: () => kept.clear(),
  };
}

/** A store on a gateway whose sessions have two updates each, the second with the session's id. */
function scene({ storage = items() } = {}) {
  const calls = [];
  const [failing, silent] = [new Set(), new Set()];
  const rpc = {
    state: { phase: "connected", since: 0, waiting: 0, reason: null, line: 0 },
    async request(method, params = {}) {
      calls.push([method, params]);
      if (silent.has(method)) return new Promise(() => {});
      if (failing.has(method)) throw Object.assign(new Error("lost"), { code: "lost" });
      if (method === "gateway/info") return { name: "gateway", identity: "ann", role: "controller" };
      if (method === "agents/list") return { agents: [] };
      if (method === "session/list") return { sessions: ["a", "b", "c"].map((id) => session(id)) };
      if (method === "session/new") return { sessionId: "new" };
      if (method !== "session/get") return { success: true };
      const updates = numbered([said("of "), said(params.sessionId)]).filter(({ seq }) => seq > (params.since ?? 0));
      return { session: session(params.sessionId), updates, pendingRequests: [], epoch: "e1", more: false, reset: false };
    },
  };
  const store = createStore({ rpc, clock: () => 5, frame: () => {}, storage });
  const asked = (method) => calls.filter(([name]) => name === method).map(([, params]) => params);
  const connect = async () => {
    rpc.state.line += 1;
    store.onState({ ...rpc.state });
    await settle();
  };
  return { store, calls, failing, silent, asked, connect };
}

const textOf = (open) => open.transcript.blocks.map(({ parts }) => parts.map(({ text }) => text).join("")).join("|");
const open = ({ store }) => [store.state.current, store.state.beside].map((one) => one && [one.id, one.phase, textOf(one)]);

async function opened(...ids) {
  const made = scene();
  await made.connect();
  made.store.show(ids);
  await settle();
  return made;
}

test("two sessions are followed at once, and each hears only of itself", async () => {
  const made = await opened("a", "b");
  const { store } = made;
  assert.deepEqual(open(made), [["a", "ready", "of a"], ["b", "ready", "of b"]]);
  store.onNotification("session/updated", { sessionId: "b", updates: numbered([said("!")], 3) });
  store.onNotification("session/request", { sessionId: "a", requestId: 7, requestType: "session/request_permission", payload: {} });
  store.onNotification("session/queue_changed", { sessionId: "b", queue: [{ promptId: "p", text: "next" }] });
  store.onNotification("session/changed", { session: session("b", { turn: true }) });
  const { current, beside } = store.state;
  assert.deepEqual([textOf(current), textOf(beside)], ["of a", "of b!"]);
  assert.deepEqual([current.pending.length, beside.pending.length], [1, 0]);
  assert.deepEqual([current.queue.length, beside.queue.length], [0, 1]);
  assert.deepEqual([Boolean(current.session.turn), beside.session.turn], [false, true]);
});

test("the actions on each of two sessions are for it alone", async () => {
  const { store, asked } = await opened("a", "b");
  const [first, second] = store.panes;
  second.prompt([{ type: "text", text: "to b" }]);
  first.cancel();
  second.share();
  second.searchHere("x");
  await second.rename("B");
  second.setDraft("half");
  assert.deepEqual(asked("session/prompt").map(({ sessionId }) => sessionId), ["b"]);
  assert.deepEqual(asked("session/cancel"), [{ sessionId: "a", epoch: "e1", seq: 2 }]);
  assert.equal(asked("session/share")[0].sessionId, "b");
  assert.equal(asked("session/search")[0].sessionId, "b");
  assert.deepEqual(asked("session/set_title"), [{ sessionId: "b", title: "B" }]);
  assert.deepEqual([store.state.current.session.title, store.state.beside.session.title], ["a", "B"]);
  assert.deepEqual([store.state.current.draft, store.state.beside.draft], ["", "half"]);
});

test("a session that stays open is not fetched again, and what is closed is not followed any more", async () => {
  const made = await opened("a", "b");
  const { store, asked } = made;
  store.show(["b"]);
  await settle();
  assert.deepEqual(open(made), [null, ["b", "ready", "of b"]]);
  assert.deepEqual(asked("session/unsubscribe"), [{ sessionId: "a" }]);
  store.show(["b", "c"]);
  await settle();
  assert.deepEqual(open(made), [["c", "ready", "of c"], ["b", "ready", "of b"]]);
  assert.deepEqual(asked("session/get").map(({ sessionId }) => sessionId), ["a", "b", "c"]);
  store.show([]);
  assert.deepEqual(open(made), [null, null]);
});

test("a new connection fetches of both what is missing", async () => {
  const made = await opened("a", "b");
  const before = made.calls.length;
  await made.connect();
  const again = made.calls.slice(before).filter(([method]) => method === "session/get").map(([, { sessionId, since }]) => [sessionId, since]);
  assert.deepEqual(again, [["a", 2], ["b", 2]]);
});

test("one of two sessions is removed, and the other stays", async () => {
  const { store } = await opened("a", "b");
  await store.remove("b");
  assert.deepEqual([store.state.current.phase, store.state.beside.phase], ["ready", "removed"]);
});

test("a new session takes the place of the one in use", async () => {
  const made = await opened("a", "b");
  assert.equal(await made.store.panes[1].newSession({ cwd: "/a" }), "new");
  await settle();
  assert.deepEqual(open(made).map(([id]) => id), ["a", "new"]);
});

test("a prompt on its way is not taken for one that was left, where its session is opened in the other place", async () => {
  const made = await opened("a", "b");
  const { store, silent } = made;
  silent.add("session/prompt");
  store.panes[1].prompt([{ type: "text", text: "once" }]);
  assert.equal(store.state.beside.sending.length, 1);
  store.show(["a"]);
  store.show(["b"]);
  await settle();
  assert.deepEqual(store.state.current.id, "b");
  assert.deepEqual(store.state.current.sending, []);
});

test("a prompt that has failed is shown where its session is opened again, and once", async () => {
  const made = await opened("a", "b");
  const { store, failing } = made;
  failing.add("session/prompt");
  await store.panes[1].prompt([{ type: "text", text: "x".repeat(200_000) }]);
  store.show(["a"]);
  store.show(["b"]);
  await settle();
  assert.deepEqual(store.state.current.sending.map(({ blocks, error, unsure }) => [blocks[0].text.length, error, unsure]), [[200_000, "lost", true]]);
  await made.connect();
  assert.equal(store.state.current.sending.length, 1);
  failing.clear();
  await store.panes[0].retry(1);
  store.show([]);
  store.show(["b"]);
  assert.deepEqual(store.state.current.sending, []);
});

test("a prompt that fails while its session is closed is shown where it is opened again", async () => {
  const { store, failing } = await opened("a");
  failing.add("session/prompt");
  const sent = store.panes[0].prompt([{ type: "text", text: "once" }]);
  store.show([]);
  await sent;
  store.show(["a"]);
  await settle();
  assert.deepEqual(store.state.current.sending.map(({ error }) => error), ["lost"]);
  store.panes[0].discard(1);
  store.show([]);
  store.show(["a"]);
  assert.deepEqual(store.state.current.sending, []);
});

test("a reload fetches of two sessions only what is missing, and another person finds neither", async () => {
  const storage = items();
  const before = scene({ storage });
  before.store.show(["a", "b"]);
  await settle();
  before.store.keepCopy();
  const after = scene({ storage });
  after.store.show(["a", "b"]);
  assert.deepEqual(open(after).map(([, , text]) => text), ["of a", "of b"]);
  await settle();
  assert.deepEqual(after.asked("session/get").map(({ since }) => since), [2, 2]);
  after.store.keepCopy();
  after.store.forgetCopy();
  assert.deepEqual([...storage.kept], []);
});
