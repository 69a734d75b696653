import assert from "node:assert/strict";
import { test } from "node:test";

import { createFleet, named, PATIENCE } from "../../../acp_gateway/web/app/net/fleet.js";
import { createReach } from "../../../acp_gateway/web/app/net/reach.js";
import { createStore } from "../../../acp_gateway/web/app/state/store.js";
import { asked, manualTimers, numbered, settle } from "./helpers.mjs";

const START = Date.parse("2026-11-29T12:00:00Z");
const DAY = 24 * 3600 * 1000;
const session = (id, more = {}) => ({ id, agentType: "x", cwd: "/a", title: id, status: "completed", waiting: [], updatedAt: null, ...more });
const lost = () => Object.assign(new Error("lost"), { code: "lost" });

/** A connection to one gateway, which the test connects and cuts; `answers` has a function for each method. */
function connection(options = {}) {
  const own = {
    state: { phase: "connecting", since: START, waiting: 0, reason: null, line: 0 },
    answers: {
      "gateway/info": () => ({ identity: "door" }),
      "agents/list": () => ({ agents: [{ name: "x", title: "X", default: true, machine: null, workspaces: [] }] }),
      "session/list": () => ({ sessions: [session("1"), session("2/b", { status: "waiting" })], more: 3 }),
      "session/get": ({ sessionId }) => ({ session: session(sessionId), updates: numbered([asked("hi")]), epoch: "e" }),
    },
    calls: [],
    wakes: 0,
    options,
    asks: (method) => own.calls.filter(([name]) => name === method).map(([, params]) => params),
    connect: () => {},
    close: () => own.change("ended"),
    wake: () => void (own.wakes += 1),
    request: async (method, params = {}) => {
      own.calls.push([method, params]);
      if (own.state.phase !== "connected") return new Promise(() => {});
      return own.answers[method]?.(params) ?? { success: true };
    },
    change: (phase, line = own.state.line, since = START) => {
      own.state = { ...own.state, phase, line, since };
      own.options.onState(own.state);
    },
    up: async () => {
      own.change("connected", own.state.line + 1);
      await settle();
    },
  };
  return own;
}

/** A page at a gateway that leads to machines; each has a connection, which the test connects. */
function scene({ machines = [{ name: "gpu1" }, { name: "gpu2" }], kept = null, fails = 0 } = {}) {
  const time = manualTimers(START);
  const [home, far, saved] = [connection(), {}, []];
  let [loads, opening, info] = [0, "", { identity: "ann", role: "controller", machines }];
  home.answers["gateway/info"] = () => info;
  home.answers["session/list"] = () => ({ sessions: [session("1"), session("own/path")] });
  const create = (options) => {
    options.open();
    far[opening] = connection(options);
    return far[opening];
  };
  const reach = createReach(home, async () => {
    loads += 1;
    if (loads <= fails) throw new Error("not there");
    const open = (name) => void (opening = name);
    return createFleet({ home, store, create, open, isBusy: () => false, isHidden: () => false, timers: time.timers, clock: time.clock });
  });
  const list = async () => {
    // Slower than the gateway.
    if (kept !== null) await settle();
    return kept;
  };
  const keeper = { list, session: async () => null, keepSession: async () => {}, forget: async () => {}, keepList: async (list) => void saved.push(list) };
  const store = createStore({ rpc: reach, clock: time.clock, frame: (callback) => queueMicrotask(callback), keeper });
  home.options = { onState: store.onState };
  const tell = (name, method, params) => far[name].options.onNotification(method, params);
  const lead = async (next) => {
    info = { ...info, machines: next };
    reach.follow(next);
    await settle();
  };
  const patience = async () => {
    time.pass(PATIENCE);
    await settle();
  };
  return { store, home, far, reach, tell, lead, patience, saved, time, loads: () => loads };
}

/** The same, with all connections. */
async function connected(options) {
  const made = scene(options);
  await made.home.up();
  for (const one of Object.values(made.far)) await one.up();
  return made;
}

const ids = ({ store }) => [...store.state.sessions.keys()].sort();
const awayOf = ({ store }, id) => store.state.sessions.get(id)?.unreachableSince ?? null;

test("sessions and agents of all machines are one list, each by its machine and its name there", async () => {
  const made = await connected();
  assert.deepEqual(ids(made), ["1", "gpu1/1", "gpu1/2/b", "gpu2/1", "gpu2/2/b", "own/path"]);
  const { sessions, agents, order, more, moreThere } = made.store.state;
  const { machine, agentType, title } = sessions.get("gpu2/1");
  assert.deepEqual([machine, agentType, title], ["gpu2", "gpu2/x", "1"]);
  assert.deepEqual(agents.map((one) => [one.name, one.title, one.machine, one.default]), [
    ["x", "X", null, true], ["gpu1/x", "gpu1/X", "gpu1", false], ["gpu2/x", "gpu2/X", "gpu2", false],
  ]);
  assert.equal(order.length, 6);
  assert.equal(more + moreThere, 6);
  assert.deepEqual(made.saved.at(-1).sessions.length, 6);
});

test("the default agent of the gateway may be one of a machine", async () => {
  const { store } = await connected({ machines: [{ name: "gpu1", defaultAgent: "gpu1/x" }] });
  assert.deepEqual(store.state.agents.map((one) => one.default), [true, true]);
});

test("what is for a session goes to its machine, by the name that it has there", async () => {
  const { store, home, far } = await connected();
  store.open("gpu1/2/b");
  await settle();
  assert.equal(far.gpu1.asks("session/get")[0].sessionId, "2/b");
  assert.deepEqual([store.state.current.phase, store.state.current.session.id], ["ready", "gpu1/2/b"]);
  await store.prompt([{ type: "text", text: "go" }]);
  assert.equal(far.gpu1.asks("session/prompt")[0].sessionId, "2/b");
  far.gpu1.answers["session/fork"] = () => ({ sessionId: "3" });
  assert.equal(await store.fork(), "gpu1/3");
  far.gpu2.answers["session/new"] = ({ agentType }) => ({ sessionId: `of ${agentType}` });
  assert.equal(await store.newSession({ agentType: "gpu2/x" }), "gpu2/of x");
  store.open("own/path");
  await settle();
  assert.equal(home.asks("session/get")[0].sessionId, "own/path");
});

test("a guest's link is made by the gateway, whose page it opens", async () => {
  const { store, home, far } = await connected();
  store.open("gpu1/1");
  await settle();
  await store.share();
  assert.deepEqual([home.asks("session/share")[0].sessionId, far.gpu1.asks("session/share")], ["gpu1/1", []]);
});

test("what a machine tells is of its own sessions", async () => {
  const made = await connected();
  made.store.open("gpu1/1");
  await settle();
  made.tell("gpu1", "session/updated", { sessionId: "1", updates: numbered([asked("there")], 2) });
  made.tell("gpu1", "session/changed", { session: session("new") });
  made.tell("gpu2", "session/removed", { sessionId: "1" });
  assert.equal(made.store.state.current.transcript.lastSeq, 2);
  assert.deepEqual(ids(made), ["1", "gpu1/1", "gpu1/2/b", "gpu1/new", "gpu2/2/b", "own/path"]);
  assert.deepEqual(named("gpu1", { sessionId: "1", movedTo: "2", requestId: 1 }), { sessionId: "gpu1/1", movedTo: "gpu1/2", requestId: 1 });
});

test("a name with a machine waits until the gateway has told its machines", async () => {
  const { store, home, far } = scene();
  store.open("gpu1/1");
  await settle();
  assert.deepEqual(home.calls, []);
  await home.up();
  assert.deepEqual([home.asks("session/get"), far.gpu1.asks("session/get").length], [[], 1]);
});

test("a search is of all machines, and names those that did not answer", async () => {
  const { store, home, far } = await connected();
  const found = (sessionId) => () => ({ found: [{ sessionId, texts: 1, seq: 1, text: "a", marks: [] }], complete: true });
  home.answers["session/search"] = found("1");
  far.gpu1.answers["session/search"] = found("1");
  far.gpu2.answers["session/search"] = () => Promise.reject(lost());
  const answer = await store.search("a");
  assert.deepEqual(answer.found.map(({ sessionId }) => sessionId), ["1", "gpu1/1"]);
  assert.deepEqual([answer.missing, answer.complete], [["gpu2"], true]);
  far.gpu2.change("away");
  far.gpu1.answers["session/search"] = () => ({ found: [], complete: false });
  const later = await store.search("a");
  assert.deepEqual([later.found.length, later.missing, later.complete], [1, ["gpu2"], false]);
});

test("costs of each machine are beside those of the gateway, by the names that sessions have here", async () => {
  const { home, far, reach } = await connected();
  const told = (by) => ({ by, rows: [{ key: "1" }], total: {} });
  for (const one of [home, far.gpu1]) one.answers["gateway/usage"] = ({ by }) => told(by);
  far.gpu2.answers["gateway/usage"] = () => Promise.reject(new Error("too old"));
  assert.deepEqual(await reach.request("gateway/usage", { by: "session" }), {
    ...told("session"),
    others: [["gpu1", { by: "session", rows: [{ key: "gpu1/1" }], total: {} }], ["gpu2", null]],
  });
  assert.deepEqual((await reach.request("gateway/usage", { by: "day" })).others[0], ["gpu1", told("day")]);
});

test("last lines and archived sessions come from each machine", async () => {
  const { store, home, far, reach } = await connected();
  const lines = ({ sessionIds }) => ({ lines: Object.fromEntries(sessionIds.map((id) => [id, `last of ${id}`])) });
  for (const one of [home, far.gpu1]) one.answers["session/last"] = lines;
  far.gpu2.answers["session/last"] = () => Promise.reject(lost());
  const answer = await store.lastLines(["1", "gpu1/1", "gpu1/2/b", "gpu2/1", "own/path"]);
  assert.deepEqual(answer.lines, { 1: "last of 1", "own/path": "last of own/path", "gpu1/1": "last of 1", "gpu1/2/b": "last of 2/b" });
  const archived = await reach.request("session/list", { archived: true });
  assert.deepEqual(archived.sessions.map(({ id }) => id).sort(), ids({ store }));
});

test("agents are asked for again at each machine", async () => {
  const { store, far } = await connected();
  far.gpu1.answers["agents/list"] = () => ({ agents: [{ name: "new", title: "new" }] });
  await store.refreshAgents();
  await settle();
  assert.deepEqual(store.state.agents.map(({ name }) => name).sort(), ["gpu1/new", "gpu2/x", "x"]);
});

test("a machine without a connection is away after a while, and its sessions stay as they were", async () => {
  const made = await connected();
  made.far.gpu1.change("away", 1, START + 1);
  await settle();
  assert.equal(awayOf(made, "gpu1/1"), null);
  await made.patience();
  assert.equal(awayOf(made, "gpu1/1"), "2026-11-29T12:00:00.001Z");
  assert.deepEqual(made.store.state.agents.map((one) => one.unreachableSince ?? null), [null, "2026-11-29T12:00:00.001Z", null]);
  // The same connection has answered after all.
  made.far.gpu1.change("connected");
  assert.equal(awayOf(made, "gpu1/1"), null);
  made.far.gpu1.change("away");
  await made.patience();
  await made.far.gpu1.up();
  assert.equal(awayOf(made, "gpu1/1"), null);
});

test("without the gateway, its machines are not away; once it is back, those are that do not answer", async () => {
  const made = await connected();
  made.home.change("away");
  for (const one of Object.values(made.far)) one.change("away");
  await made.patience();
  assert.equal(awayOf(made, "gpu1/1"), null);
  await made.home.up();
  await made.far.gpu2.up();
  await made.patience();
  assert.notEqual(awayOf(made, "gpu1/1"), null);
  assert.equal(awayOf(made, "gpu2/1"), null);
});

test("a machine that is away at first is so since the gateway has missed it, with what the browser has kept", async () => {
  const old = new Date(START - 31 * DAY).toISOString();
  const sessions = [
    session("gpu1/1", { machine: "gpu1" }),
    session("gpu2/1", { machine: "gpu2", unreachableSince: old }),
    session("gone/1", { machine: "gone" }),
  ];
  const kept = { at: START - 1, info: { identity: "ann", role: "controller", machines: [{ name: "gpu1" }] }, agents: [], sessions, more: 0 };
  const made = scene({ kept, machines: [{ name: "gpu1", unreachableSince: "2026-11-29T11:00:00Z" }, { name: "gpu2" }] });
  void made.store.showKept();
  await made.home.up();
  await settle();
  // Nothing is kept for longer than 30 days.
  assert.deepEqual(ids(made), ["1", "gpu1/1", "own/path"]);
  await made.patience();
  assert.equal(awayOf(made, "gpu1/1"), "2026-11-29T11:00:00Z");
  await made.far.gpu1.up();
  assert.deepEqual(ids(made), ["1", "gpu1/1", "gpu1/2/b", "own/path"]);
});

test("an open session is followed over the next connection to its machine", async () => {
  const { store, far, home } = await connected();
  store.open("gpu1/1");
  await settle();
  far.gpu1.change("away");
  await far.gpu1.up();
  assert.deepEqual(far.gpu1.asks("session/get").map(({ since }) => since ?? 0), [0, 1]);
  await far.gpu2.up();
  assert.equal(far.gpu1.asks("session/get").length, 2);
  assert.equal(home.asks("session/get").length, 0);
});

test("machines come and go with what the gateway leads to", async () => {
  const made = await connected();
  await made.lead([{ name: "gpu2" }, { name: "gpu3" }]);
  assert.equal(made.far.gpu1.state.phase, "ended");
  assert.deepEqual(ids(made), ["1", "gpu2/1", "gpu2/2/b", "own/path"]);
  assert.deepEqual(made.store.state.agents.map(({ name }) => name), ["x", "gpu2/x"]);
  await made.far.gpu3.up();
  assert.ok(made.store.state.sessions.has("gpu3/1"));
  await made.lead([]);
  assert.deepEqual(ids(made), ["1", "own/path"]);
  assert.equal(made.store.state.moreThere, 0);
});

test("a machine is tried at once when the gateway tells that it is there again", async () => {
  const made = scene({ machines: [{ name: "gpu1", unreachableSince: "2026-11-29T11:00:00Z" }, { name: "gpu2" }] });
  await made.home.up();
  await made.lead([{ name: "gpu1" }, { name: "gpu2" }]);
  assert.deepEqual([made.far.gpu1.wakes, made.far.gpu2.wakes], [1, 0]);
  await made.lead([{ name: "gpu1" }, { name: "gpu2" }]);
  assert.equal(made.far.gpu1.wakes, 1);
});

test("prompts for a machine are not sent once that tells of another person", async () => {
  const { far } = await connected();
  const { isOther } = far.gpu1.options;
  assert.deepEqual([isOther({ identity: "door" }), isOther({ identity: "door/bob" })], [false, true]);
});

test("what is for machines comes once there are some, and is asked for again where it did not come", async () => {
  const none = scene({ machines: [] });
  await none.home.up();
  assert.equal(none.loads(), 0);
  await none.reach.request("session/get", { sessionId: "own/path" });
  assert.equal(none.home.asks("session/get").length, 1);
  const failed = scene({ fails: 1 });
  await failed.home.up();
  assert.deepEqual([failed.loads(), ids(failed)], [1, ["1", "own/path"]]);
  await failed.home.up();
  assert.deepEqual([failed.loads(), Object.keys(failed.far)], [2, ["gpu1", "gpu2"]]);
});

test("machines are not asked any more once the gateway wants a person to sign in", async () => {
  const { home, far, reach } = await connected();
  reach.wake();
  await settle();
  assert.deepEqual([home.wakes, far.gpu1.wakes], [1, 1]);
  home.change("refused");
  await settle();
  assert.deepEqual([far.gpu1.state.phase, far.gpu2.state.phase], ["ended", "ended"]);
});
