import assert from "node:assert/strict";
import { test } from "node:test";

import { frameOf } from "../../../acp_gateway/web/app/views/parts/frames.js";
import { createStore } from "../../../acp_gateway/web/app/state/store.js";
import { asked, Items, numbered, said, settle } from "./helpers.mjs";

const session = (id, more = {}) => ({
  id,
  agentType: "x",
  cwd: "/a",
  title: id,
  status: "completed",
  exitReason: null,
  createdAt: null,
  updatedAt: null,
  waiting: [],
  ...more,
});

/** A store on a gateway that answers by hand: `answers` has a function for each method. */
function scene({ storage = null, lasting = storage, phase = "connected", startAfresh, keeper = null } = {}) {
  const calls = [];
  const held = [];
  const answers = {
    "gateway/info": () => ({ name: "gateway", identity: "ann", role: "controller" }),
    "agents/list": () => ({ agents: [{ name: "x" }] }),
    "session/list": () => ({ sessions: [session("s"), session("w", { status: "waiting" })] }),
    "session/get": () => page([]),
  };
  const rpc = {
    state: { phase, since: 0, waiting: 0, reason: null, line: 0 },
    request(method, params) {
      calls.push([method, params]);
      const answer = answers[method];
      if (answer === "hold") return new Promise((resolve, reject) => held.push({ method, params, resolve, reject }));
      return answer ? Promise.resolve().then(() => answer(params)) : Promise.resolve({ success: true });
    },
  };
  const frames = [];
  const store = createStore({ rpc, clock: () => 5, frame: (callback) => frames.push(callback), storage, lasting, startAfresh, keeper });
  const heard = [];
  store.subscribe((state) => heard.push(state));
  const paint = () => frames.splice(0).forEach((callback) => callback());
  const tell = (method, params) => store.onNotification(method, params);
  const asks = (method) => calls.filter(([name]) => name === method).map(([, params]) => params);
  const connect = () => {
    store.onState({ ...rpc.state, phase: "away" });
    rpc.state.line += 1;
    store.onState({ ...rpc.state, phase: "connected" });
  };
  return { store, rpc, answers, calls, held, frames, heard, paint, tell, asks, connect };
}

const page = (updates, more = {}) => ({
  session: session("s"),
  updates,
  pendingRequests: [],
  epoch: "e1",
  truncated: false,
  more: false,
  reset: false,
  ...more,
});
const UPDATES = numbered([asked("hi"), said("a"), said("b"), said("c"), said("d"), said("e")]);
const said_ = (store) =>
  store.state.current.transcript.blocks.map(({ parts }) => parts.map(({ text }) => text).join("")).join("|");

async function opened(updates = UPDATES.slice(0, 2), options = {}, more = {}) {
  const made = scene(options);
  made.answers["session/get"] = () => page(updates, more);
  made.store.open("s");
  await settle();
  return made;
}

/** A keeper that has a list with these sessions, and keeps no transcript. */
const keptList = (...sessions) => ({
  list: async () => ({ at: 1, info: { name: "gateway", identity: "ann", role: "controller" }, agents: [], more: 0, sessions }),
  session: async () => null,
  keepList: async () => {},
  keepSession: async () => {},
});

const lost = () => Object.assign(new Error("lost"), { code: "lost" });

test("a connection fetches the list and watches it", async () => {
  const { store, connect, asks } = scene({ phase: "away" });
  connect();
  await settle();
  assert.deepEqual(asks("session/list"), [{ watch: true }]);
  assert.deepEqual(
    [store.state.order, store.state.listed, store.state.info.identity, store.state.agents.length],
    [["w", "s"], true, "ann", 1],
  );
});

test("all that the list shows is asked for in one round trip", async () => {
  const { answers, held, connect } = scene({ phase: "connecting" });
  for (const method of ["gateway/info", "agents/list", "session/list"]) answers[method] = "hold";
  connect();
  await settle();
  assert.deepEqual(held.map(({ method }) => method), ["gateway/info", "agents/list", "session/list"]);
});

test("a failing list is told, a lost connection is not", async () => {
  const { store, connect, answers } = scene();
  answers["session/list"] = () => Promise.reject(lost());
  connect();
  await settle();
  assert.equal(store.state.toasts.length, 0);
  answers["session/list"] = () => Promise.reject(new Error("no"));
  connect();
  await settle();
  assert.deepEqual(
    store.state.toasts.map(({ kind, text }) => [kind, text]),
    [["error", "no"]],
  );
});

test("sessions change, come and go as the gateway tells", async () => {
  const { store, connect, tell } = scene();
  connect();
  await settle();
  const before = store.state.sessions;
  tell("session/changed", { session: session("n", { status: "waiting", updatedAt: "2026-01-01T00:00:00Z" }) });
  tell("session/removed", { sessionId: "s" });
  tell("session/removed", { sessionId: "unknown" });
  tell("session/status_changed", { sessionId: "w", status: "running" });
  assert.deepEqual(store.state.order, ["n", "w"]);
  assert.equal(store.state.sessions.get("w").status, "running");
  assert.ok(before.has("s"));
});

test("listeners hear of many changes once per frame", async () => {
  const { store, heard, paint, frames, tell } = scene();
  for (let i = 0; i < 5; i += 1) tell("session/changed", { session: session(`s${i}`) });
  assert.deepEqual([heard.length, frames.length], [0, 1]);
  paint();
  assert.equal(heard.length, 1);
  assert.equal(heard[0], store.state);
  assert.equal(heard[0].sessions.size, 5);
});

test("opening a session fetches the newest updates and follows the rest", async () => {
  const { store, tell, asks } = await opened();
  assert.deepEqual(asks("session/get"), [{ sessionId: "s", limit: 5000 }]);
  tell("session/updated", { sessionId: "s", updates: UPDATES.slice(2, 4) });
  tell("session/updated", { sessionId: "other", updates: UPDATES.slice(4) });
  tell("session/updated", { sessionId: "s", updates: UPDATES.slice(2, 4) });
  assert.equal(said_(store), "hi|abc");
  assert.equal(store.state.current.phase, "ready");
});

test("opening another session leaves the first, whose answers no longer count", async () => {
  const { store, answers, held, asks, tell } = await opened();
  answers["session/get"] = "hold";
  store.open("t");
  store.open("u");
  assert.deepEqual(asks("session/unsubscribe"), [{ sessionId: "s" }, { sessionId: "t" }]);
  held[1].resolve(page([UPDATES[0]], { session: session("u") }));
  await settle();
  held[0].resolve(page(UPDATES, { session: session("t") }));
  await settle();
  assert.deepEqual(
    held.map(({ params }) => params.sessionId),
    ["t", "u"],
  );
  assert.equal(said_(store), "hi");
  tell("session/updated", { sessionId: "t", updates: UPDATES });
  assert.equal(said_(store), "hi");
  store.close();
  assert.equal(store.state.current, null);
});

test("without an open session nothing is done", async () => {
  const { store, calls, tell } = scene();
  await Promise.all([
    store.prompt([1]),
    store.retry(1),
    store.cancel(),
    store.respond(1, {}),
    store.setMode("a"),
    store.loadOlder(),
  ]);
  store.discard(1);
  store.setDraft("x");
  store.close();
  tell("session/updated", { updates: UPDATES });
  assert.deepEqual([calls, store.state.current], [[], null]);
});

test("an action's effect does not reach a session opened since", async () => {
  const { store, answers, held } = await opened(UPDATES, {}, { modes: { currentModeId: "a" } });
  answers["session/set_mode"] = "hold";
  const setting = store.setMode("b");
  store.open("t");
  await settle();
  held[0].resolve({});
  await setting;
  assert.equal(store.state.current.modes.currentModeId, "a");
});

test("opening the open session again does nothing", async () => {
  const { store, asks } = await opened();
  store.open("s");
  assert.equal(asks("session/get").length, 1);
});

test("an error on opening is shown, and opening again tries again", async () => {
  const { store, answers } = scene();
  answers["session/get"] = () => Promise.reject(new Error("unknown session"));
  store.open("s");
  await settle();
  assert.deepEqual([store.state.current.phase, store.state.current.error], ["error", "unknown session"]);
  answers["session/get"] = () => page(UPDATES);
  store.open("s");
  await settle();
  assert.equal(store.state.current.phase, "ready");
});

test("a connection that comes back fetches only what is missing", async () => {
  const { store, answers, asks, connect } = await opened();
  answers["session/get"] = ({ since }) => page(UPDATES.slice(since));
  connect();
  await settle();
  assert.deepEqual(asks("session/get")[1], { sessionId: "s", limit: 5000, since: 2, epoch: "e1" });
  assert.equal(said_(store), "hi|abcde");
});

test("a connection lost while fetching is not an error, and the next one fetches", async () => {
  const { store, answers, connect } = scene();
  answers["session/get"] = () => Promise.reject(lost());
  store.open("s");
  await settle();
  assert.equal(store.state.current.phase, "loading");
  answers["session/get"] = () => page(UPDATES);
  connect();
  await settle();
  assert.equal(store.state.current.phase, "ready");
});

test("a gap in the numbers is filled", async () => {
  const { store, answers, tell, asks } = await opened();
  answers["session/get"] = ({ since }) => page(UPDATES.slice(since));
  tell("session/updated", { sessionId: "s", updates: UPDATES.slice(4) });
  await settle();
  assert.equal(asks("session/get").length, 2);
  assert.deepEqual([said_(store), store.state.current.transcript.missing], ["hi|abcde", null]);
});

test("updates that come while the session is fetched are fetched afterwards", async () => {
  const { store, answers, held, tell } = scene();
  answers["session/get"] = "hold";
  store.open("s");
  tell("session/updated", { sessionId: "s", updates: UPDATES.slice(3) });
  held[0].resolve(page(UPDATES.slice(0, 3)));
  answers["session/get"] = ({ since }) => page(UPDATES.slice(since));
  await settle();
  assert.equal(said_(store), "hi|abcde");
});

test("a gap that the gateway cannot fill does not ask for ever", async () => {
  const { answers, tell, asks } = await opened();
  answers["session/get"] = () => page([]);
  tell("session/updated", { sessionId: "s", updates: UPDATES.slice(4) });
  await settle();
  await settle();
  assert.equal(asks("session/get").length, 2);
});

test("a history that was replaced is fetched again from the start", async () => {
  const { store, answers, tell, asks } = await opened();
  answers["session/get"] = () => page(UPDATES.slice(0, 1), { epoch: "e2" });
  tell("session/reset", { sessionId: "s", epoch: "e2" });
  assert.equal(store.state.current.phase, "loading");
  await settle();
  assert.deepEqual(asks("session/get")[1], { sessionId: "s", limit: 5000 });
  assert.deepEqual([said_(store), store.state.current.epoch], ["hi", "e2"]);
  assert.match(store.state.toasts[0].text, /too far behind/);
  tell("session/reset", { sessionId: "s", epoch: null, movedTo: "s~former-1" });
  assert.match(store.state.toasts[1].text, /can be read as s~former-1/);
});

test("an answer that does not follow the transcript begins another", async () => {
  for (const more of [{ reset: true, epoch: "e2" }, { truncated: true }]) {
    const { store, answers, connect } = await opened();
    answers["session/get"] = () => page(numbered([said("new")], more.reset ? 1 : 900), more);
    connect();
    await settle();
    assert.equal(said_(store), "new");
    assert.equal(store.state.current.older, more.truncated ? "cut" : "none");
  }
});

test("older updates are fetched page by page", async () => {
  const { store, answers, asks } = await opened(UPDATES.slice(4), {}, { more: true });
  assert.equal(store.state.current.older, "more");
  answers["session/get"] = ({ before }) => page(UPDATES.slice(before - 3, before - 1), { more: before > 3 });
  const loading = store.loadOlder();
  assert.equal(store.state.current.older, "loading");
  await store.loadOlder();
  await loading;
  assert.deepEqual(asks("session/get").slice(1), [{ sessionId: "s", before: 5, limit: 5000 }]);
  assert.equal(said_(store), "bcde");
  await store.loadOlder();
  await store.loadOlder();
  assert.deepEqual([said_(store), store.state.current.older, asks("session/get").length], ["hi|abcde", "none", 3]);
});

test("an update is reached by loading older ones, also while others load some", async () => {
  const { store, answers, asks, paint } = await opened(UPDATES.slice(4), {}, { more: true });
  answers["session/get"] = ({ before }) => page(UPDATES.slice(before - 3, before - 1), { more: before > 3 });
  const others = store.loadOlder();
  const reached = store.reach(2);
  await others;
  paint();
  assert.equal(await reached, 1);
  assert.equal(asks("session/get").length, 3);
  assert.equal(await store.reach(2), 1);
  assert.equal(asks("session/get").length, 3);
});

test("an update that can't be loaded is not tried again and again", async () => {
  const { store, answers, asks } = await opened(UPDATES.slice(4), {}, { more: true });
  answers["session/get"] = () => Promise.reject(new Error("busy"));
  assert.equal(await store.reach(2), 5);
  assert.equal(asks("session/get").length, 2);
  store.close();
  assert.equal(await store.reach(2), null);
});

test("a search in the open session is one before an update", async () => {
  const { store, answers, asks } = await opened(UPDATES);
  answers["session/search"] = () => ({ found: [], more: false });
  await store.searchHere("zero");
  await store.searchHere("zero", 7);
  assert.deepEqual(asks("session/search"), [
    { sessionId: "s", words: "zero" },
    { sessionId: "s", words: "zero", before: 7 },
  ]);
});

test("state from before the first update is known", async () => {
  const payload = { sessionUpdate: "available_commands_update", availableCommands: [{ name: "init" }] };
  const states = [{ updateType: "available_commands_update", payload }];
  const { store } = await opened(UPDATES.slice(4), {}, { more: true, states });
  assert.deepEqual(store.state.current.transcript.commands, [{ name: "init" }]);
});

test("a failure to fetch older updates can be repeated", async () => {
  const { store, answers } = await opened(UPDATES.slice(4), {}, { more: true });
  answers["session/get"] = () => Promise.reject(new Error("busy"));
  await store.loadOlder();
  assert.deepEqual([store.state.current.older, store.state.toasts[0].text], ["more", "busy"]);
});

test("a prompt is shown as on its way until the gateway has it", async () => {
  const { store, answers, held } = await opened();
  answers["session/prompt"] = "hold";
  const sending = store.prompt([{ type: "text", text: "go" }]);
  assert.deepEqual(store.state.current.sending, [
    { key: 1, blocks: [{ type: "text", text: "go" }], at: 5, error: null, unsure: false, after: 2 },
  ]);
  assert.deepEqual(held[0].params, { sessionId: "s", prompt: [{ type: "text", text: "go" }] });
  held[0].resolve({ success: true });
  await sending;
  assert.deepEqual(store.state.current.sending, []);
});

test("a prompt for the turn steers it, also when it is sent again", async () => {
  const { store, answers, asks } = await opened();
  answers["session/steer"] = () => Promise.reject(new Error("busy"));
  await store.prompt([1], true);
  delete answers["session/steer"];
  await store.retry(store.state.current.sending[0].key);
  assert.deepEqual(asks("session/steer"), [{ sessionId: "s", prompt: [1] }, { sessionId: "s", prompt: [1] }]);
  assert.deepEqual(store.state.current.sending, []);
});

test("a prompt that arrives before the next frame is seen to have been sent", async () => {
  const { store, paint, heard } = await opened();
  paint();
  const before = heard.at(-1).current.sent;
  await store.prompt([{ type: "text", text: "go" }]);
  paint();
  assert.deepEqual(heard.at(-1).current.sending, []);
  assert.ok(heard.at(-1).current.sent > before);
});

test("a prompt that failed can be sent again or discarded", async () => {
  const { store, answers } = await opened();
  answers["session/prompt"] = () => Promise.reject(new Error("too large"));
  await store.prompt([1]);
  await store.prompt([2]);
  assert.deepEqual(
    store.state.current.sending.map(({ key, error }) => [key, error]),
    [
      [1, "too large"],
      [2, "too large"],
    ],
  );
  store.discard(1);
  delete answers["session/prompt"];
  await store.retry(2);
  await store.retry(2);
  assert.deepEqual(store.state.current.sending, []);
});

test("a prompt whose answer was lost is dropped once the history has it, and stays if it has not", async () => {
  const { store, answers, tell } = await opened();
  answers["session/prompt"] = () => Promise.reject(lost());
  await store.prompt([
    { type: "text", text: "go " },
    { type: "text", text: "on" },
  ]);
  await store.prompt([{ type: "text", text: "hi" }]);
  answers["session/prompt"] = () => Promise.reject(new Error("too many"));
  await store.prompt([{ type: "text", text: "go on" }]);
  assert.deepEqual(
    store.state.current.sending.map(({ unsure }) => unsure),
    [true, true, false],
  );
  tell("session/updated", { sessionId: "s", updates: numbered([said("b"), asked("go on")], 3) });
  assert.deepEqual(
    store.state.current.sending.map(({ key }) => key),
    [2, 3],
  );
});

test("a prompt that fails after another session was opened is told", async () => {
  const { store, answers, held } = await opened();
  answers["session/prompt"] = "hold";
  const sending = store.prompt([1]);
  store.open("t");
  held[0].reject(new Error("gone"));
  await sending;
  assert.deepEqual(
    store.state.toasts.map(({ text, sessionId }) => [text, sessionId]),
    [["gone", "s"]],
  );
  assert.deepEqual(store.state.current.sending, []);
});

const QUESTION = { sessionId: "s", requestId: 7, request: { toolCall: { title: "rm" }, options: [] } };

test("questions come with the session and later, each once", async () => {
  const pendingRequests = [{ requestId: 6, requestType: "session/request_permission", payload: { a: 1 } }];
  const { store, tell } = await opened(UPDATES, {}, { pendingRequests });
  tell("session/request", QUESTION);
  tell("session/request", { ...QUESTION, requestId: "7" });
  assert.deepEqual(
    store.state.current.pending.map(({ requestId, params }) => [requestId, params]),
    [
      [6, { a: 1 }],
      ["7", QUESTION.request],
    ],
  );
});

test("an answer takes the question away, and a refused one brings it back with the reason", async () => {
  const { store, answers, held, tell } = await opened();
  tell("session/request", QUESTION);
  answers["session/respond"] = "hold";
  const response = { outcome: { outcome: "selected", optionId: "once" } };
  const first = store.respond(7, response);
  assert.equal(store.state.current.pending[0].answering, true);
  assert.deepEqual(held[0].params, { sessionId: "s", requestId: 7, response });
  held[0].reject(new Error("no such option"));
  await first;
  assert.deepEqual(
    [store.state.current.pending[0].answering, store.state.current.pending[0].error],
    [false, "no such option"],
  );
  const second = store.respond(7, response);
  held[1].resolve({ success: true });
  await second;
  assert.deepEqual(store.state.current.pending, []);
});

test("a question that another client answered goes away, and it is told who did", async () => {
  const { store, tell } = await opened();
  tell("session/request", QUESTION);
  tell("session/request_resolved", { sessionId: "s", requestId: "7", by: "bob", outcome: "Allow once" });
  tell("session/request_resolved", { sessionId: "s", requestId: "7", by: "bob", outcome: "Allow once" });
  tell("session/request", QUESTION);
  tell("session/request_resolved", { sessionId: "s", requestId: 7, by: null, outcome: null });
  assert.deepEqual(store.state.current.pending, []);
  assert.deepEqual(
    store.state.toasts.map(({ text }) => text),
    ["bob has decided: Allow once.", "The question is closed."],
  );
});

test("an own answer is not told as another's", async () => {
  const { store, answers, held, tell } = await opened();
  tell("session/request", QUESTION);
  answers["session/respond"] = "hold";
  const answering = store.respond(7, {});
  tell("session/request_resolved", { sessionId: "s", requestId: 7, by: "ann", outcome: "Allow once" });
  held[0].resolve({ success: true });
  await answering;
  assert.deepEqual([store.state.toasts, store.state.current.pending], [[], []]);
});

test("the end of a turn keeps its reason until the next begins", async () => {
  const { store, tell } = await opened();
  tell("session/status_changed", { sessionId: "s", status: "completed", stopReason: "max_tokens" });
  assert.deepEqual(store.state.current.turn, { stopReason: "max_tokens", error: null });
  tell("session/status_changed", { sessionId: "s", status: "running" });
  assert.equal(store.state.current.turn, null);
  tell("session/status_changed", { sessionId: "s", status: "error", error: { code: 1, message: "x" } });
  assert.deepEqual(store.state.current.turn, { stopReason: null, error: { code: 1, message: "x" } });
});

test("modes, models and options take effect once the gateway has them", async () => {
  const { store, answers } = await opened(
    UPDATES,
    {},
    { modes: { currentModeId: "a" }, models: { currentModelId: "a" } },
  );
  answers["session/set_config_option"] = () => ({ configOptions: [{ id: "o", currentValue: 1 }] });
  await store.setMode("b");
  await store.setModel("c");
  await store.setOption("o", 1);
  const { modes, models, configOptions } = store.state.current;
  assert.deepEqual([modes.currentModeId, models.currentModelId, configOptions[0].currentValue], ["b", "c", 1]);
  answers["session/set_mode"] = () => Promise.reject(new Error("no"));
  await store.setMode("z");
  assert.deepEqual([store.state.current.modes.currentModeId, store.state.toasts[0].text], ["b", "no"]);
});

test("a new session is opened", async () => {
  const { store, answers, asks } = scene();
  answers["session/new"] = () => ({ sessionId: "n" });
  assert.equal(await store.newSession({ agentType: "x", cwd: "/a" }), "n");
  assert.deepEqual([store.state.current.id, asks("session/new")], ["n", [{ agentType: "x", cwd: "/a" }]]);
});

test("sessions are archived, removed and shared", async () => {
  const { store, connect, answers, asks } = await opened();
  connect();
  await settle();
  await store.archive("w");
  assert.equal(store.state.sessions.get("w").archived, true);
  await store.archive("w", false);
  assert.equal(store.state.sessions.get("w").archived, false);
  answers["session/share"] = () => ({ link: "https://x/#acpgwp_a", expires: null });
  assert.equal((await store.share({ observe: false })).link, "https://x/#acpgwp_a");
  assert.deepEqual(asks("session/share"), [{ sessionId: "s", observe: false }]);
  await store.remove("s");
  assert.deepEqual([store.state.current.phase, store.state.sessions.has("s")], ["removed", false]);
});

test("only the last search for files is answered", async () => {
  const { store, answers, held } = await opened();
  answers["files/list"] = "hold";
  const first = store.searchFiles("a");
  const second = store.searchFiles("ab");
  held[1].resolve({ files: ["ab.py"] });
  held[0].resolve({ files: ["a.py"] });
  assert.deepEqual([await first, await second], [null, ["ab.py"]]);
  answers["files/list"] = () => Promise.reject(new Error("no"));
  assert.equal(await store.searchFiles("x"), null);
});

test("ports are asked for of the open session, and one that can't be opened is told", async () => {
  const { store, answers, asks } = await opened();
  answers["ports/list"] = () => ({ ports: [{ port: 6006, program: "tensorboard" }], previews: true });
  assert.deepEqual(await store.ports(), { ports: [{ port: 6006, program: "tensorboard" }], opens: true });
  answers["ports/list"] = () => Promise.reject(new Error("guests may not"));
  assert.deepEqual(await store.ports(), { ports: [], opens: false });
  answers["ports/preview"] = () => ({ url: "https://6006-a.box.example/.acp-gateway/x" });
  assert.equal(await store.openPort(6006), "https://6006-a.box.example/.acp-gateway/x");
  assert.deepEqual(asks("ports/preview"), [{ port: 6006, sessionId: "s" }]);
  answers["ports/preview"] = () => Promise.reject(new Error("it has ended"));
  assert.equal(await store.openPort(6006), null);
  assert.ok(store.state.toasts.some(({ text }) => text === "it has ended"));
});

test("an open session keeps what was fetched of it though the present list, told later, lacks it", async () => {
  const { store, answers, held, connect } = scene({ phase: "connecting", keeper: keptList(session("other")) });
  await store.showKept();
  store.open("s");
  answers["session/list"] = "hold";
  answers["session/get"] = () => page([], { session: session("s") });
  connect();
  await settle();
  assert.equal(store.state.current.session.id, "s");
  held[0].resolve({ sessions: [session("w")], more: 0 });
  await settle();
  assert.equal(store.state.current.session?.id, "s");
  assert.equal(store.state.current.phase, "ready");
});

test("an open session that the gateway has no more loses what the kept list said of it", async () => {
  const { store, answers, connect } = scene({ phase: "connecting", keeper: keptList(session("gone")) });
  await store.showKept();
  store.open("gone");
  assert.equal(store.state.current.session.id, "gone");
  answers["session/get"] = () => Promise.reject(Object.assign(new Error("no such session"), { code: -32602 }));
  connect();
  await settle();
  assert.equal(store.state.current.session, null);
  assert.equal(store.state.current.phase, "unknown");
});

test("drafts are kept by session", async () => {
  const kept = new Map();
  const storage = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  const { store, connect } = await opened(UPDATES, { storage });
  connect();
  await settle();
  store.setDraft("half a");
  store.open("t");
  assert.equal(store.state.current.draft, "");
  store.open("s");
  assert.equal(store.state.current.draft, "half a");
  store.setDraft("");
  assert.equal(kept.size, 0);
});

test("a browser that keeps nothing does not hinder a draft", async () => {
  const full = () => {
    throw new Error("quota");
  };
  const { store } = await opened(UPDATES, { storage: { getItem: full, setItem: full, removeItem: full } });
  store.setDraft("x");
  assert.equal(store.state.current.draft, "x");
});

test("toasts are few, each is there once, and can be dismissed", () => {
  const { store } = scene();
  for (let i = 0; i < 8; i += 1) store.toast("info", String(i));
  assert.deepEqual(
    store.state.toasts.map(({ text }) => text),
    ["5", "6", "7"],
  );
  store.toast("info", "6");
  assert.deepEqual(
    store.state.toasts.map(({ text }) => text),
    ["5", "7", "6"],
  );
  store.dismiss(store.state.toasts[0].id);
  assert.equal(store.state.toasts.length, 2);
});

test("a frame comes once, by the window's next frame or by a timer while it is hidden", () => {
  for (const first of ["frame", "timer"]) {
    const waiting = {};
    const window = {
      setTimeout: (callback) => ((waiting.timer = callback), 1),
      clearTimeout: () => {},
      requestAnimationFrame: (callback) => (waiting.frame = callback),
    };
    let calls = 0;
    frameOf(window)(() => (calls += 1));
    waiting[first]();
    waiting.frame();
    waiting.timer();
    assert.equal(calls, 1);
  }
});

/** A storage of a tab. */
function tabStorage() {
  const items = new Map();
  return { getItem: (key) => items.get(key) ?? null, setItem: (key, value) => items.set(key, value), removeItem: (key) => items.delete(key), clear: () => items.clear() };
}

test("a reload shows the transcript, and fetches only what is missing", async () => {
  const storage = tabStorage();
  const before = await opened(UPDATES.slice(0, 2), { storage }, { more: true });
  before.tell("session/updated", { sessionId: "s", updates: UPDATES.slice(2, 4) });
  before.store.keepCopy();
  const after = scene({ storage });
  after.answers["session/get"] = () => page(UPDATES.slice(4));
  after.store.open("s");
  assert.equal(said_(after.store), "hi|abc");
  await settle();
  assert.deepEqual(after.asks("session/get"), [{ sessionId: "s", limit: 5000, since: 4, epoch: "e1" }]);
  assert.equal(said_(after.store), "hi|abcde");
  assert.equal(after.store.state.current.older, "more");
});

test("a reload after the history was replaced shows the new one alone", async () => {
  const storage = tabStorage();
  (await opened(UPDATES, { storage })).store.keepCopy();
  const { store, answers } = scene({ storage });
  answers["session/get"] = () => page(numbered([asked("new")]), { reset: true, epoch: "e2" });
  store.open("s");
  await settle();
  assert.deepEqual([said_(store), store.state.current.epoch], ["new", "e2"]);
});

test("a reload for another person shows nothing of the former one", async () => {
  const storage = tabStorage();
  const { store } = await opened(UPDATES, { storage });
  store.keepCopy();
  store.forgetCopy();
  store.keepCopy();
  const after = scene({ storage });
  after.store.open("s");
  assert.equal(said_(after.store), "");
});

test("nothing of a tab is left once its session has ended, such as remarks", async () => {
  const storage = tabStorage();
  const { store, rpc } = await opened(UPDATES, { storage });
  store.keepCopy();
  storage.setItem("remarks s", "[]");
  store.onState({ ...rpc.state, phase: "refused" });
  assert.deepEqual([storage.getItem("transcript"), storage.getItem("remarks s")], [null, null]);
});

/** A store with a draft, a prompt on its way in the open session and a long one in another, which is then refused. */
async function refusedWithPrompts(lasting) {
  const made = await opened(UPDATES.slice(0, 2), { lasting });
  made.answers["session/list"] = () => ({ sessions: [session("s"), session("w"), session("v")] });
  made.connect();
  await settle();
  made.answers["session/prompt"] = "hold";
  for (const [id, said] of [["w", "x".repeat(100_001)], ["v", "for v"], ["s", "for s"]]) {
    made.store.open(id);
    await settle();
    made.store.prompt([{ type: "text", text: said }]);
  }
  made.store.setDraft("half a");
  made.store.onState({ ...made.rpc.state, phase: "refused" });
  return made;
}

test("a browser that is signed out says which prompts are not sent, and shows them to the same identity alone", async () => {
  const lasting = new Items();
  const { store } = await refusedWithPrompts(lasting);
  assert.match(store.state.left, /^2 unconfirmed prompts and 1 unsent draft are kept in this browser for 30 days, in “v” and “s”,/);
  assert.match(store.state.left, /1 prompt could be neither confirmed nor kept, in “w”\.$/);
  const later = await opened(UPDATES.slice(0, 2), { lasting });
  assert.deepEqual([later.store.state.current.draft, later.store.state.current.sending], ["", []]);
  later.answers["session/list"] = () => ({ sessions: [session("s"), session("v")] });
  later.connect();
  await settle();
  const { draft, sending } = later.store.state.current;
  assert.deepEqual([draft, sending.map(({ blocks, error }) => [blocks[0].text, error !== null])], ["half a", [["for s", true]]]);
  assert.deepEqual(later.store.state.toasts.map(({ text }) => text), ["1 prompt was not sent, in “v”: see above the input there."]);
  later.connect();
  await settle();
  assert.equal(later.store.state.toasts.length, 1);
  const other = await opened(UPDATES.slice(0, 2), { lasting });
  other.answers["gateway/info"] = () => ({ name: "gateway", identity: "bob", role: "controller" });
  other.connect();
  await settle();
  assert.deepEqual([other.store.state.current.draft, other.store.state.current.sending, other.store.state.toasts], ["", [], []]);
  assert.deepEqual(Object.keys(lasting), []);
});

test("a browser that is signed out says how many remarks went with that, however often it is refused", async () => {
  const kept = new Items();
  kept["remarks s"] = JSON.stringify([{ id: 1, path: "a", edit: "1", text: "Shorter.", lines: [{ text: "x" }] }]);
  kept.clear = () => delete kept["remarks s"];
  Object.defineProperty(kept, "clear", { enumerable: false });
  const { store, rpc } = scene({ storage: kept });
  for (let i = 0; i < 2; i += 1) store.onState({ ...rpc.state, phase: "refused" });
  assert.equal(store.state.left, "1 remark on changes was removed.");
  assert.equal(kept["remarks s"], undefined);
});

test("a prompt that the gateway has had before the sign-in ended is not left", async () => {
  const lasting = new Items();
  await refusedWithPrompts(lasting);
  const later = await opened([...UPDATES.slice(0, 2), ...numbered([asked("for s")], 3)], { lasting });
  later.connect();
  await settle();
  assert.deepEqual(later.store.state.current.sending, []);
  assert.equal(lasting["unsent s"], undefined);
});

test("what was not sent can be removed from a signed-out browser", async () => {
  const lasting = new Items();
  const { store, rpc } = await refusedWithPrompts(lasting);
  assert.equal(store.forgetDrafts(), 3);
  assert.deepEqual([store.state.left, Object.keys(lasting)], [null, []]);
  store.onState({ ...rpc.state, phase: "refused" });
  assert.equal(store.state.left, null);
});

test("a browser that keeps a list was signed in, whether that is read before or after it is refused", async () => {
  for (const isRead of [false, true]) {
    const list = { at: 1, info: { identity: "ann" }, agents: [], sessions: [session("s")], more: 0 };
    let read = () => {};
    const reading = new Promise((resolve) => (read = () => resolve(list)));
    const { store, rpc } = scene({ keeper: { list: () => reading, forget: () => {} } });
    const shown = store.showKept();
    if (isRead) {
      read();
      await shown;
    }
    store.onState({ ...rpc.state, phase: "refused" });
    read();
    await shown;
    assert.deepEqual([store.state.wasSignedIn, store.state.listed], [true, isRead]);
  }
  const { store } = scene({ keeper: { list: async () => null } });
  await store.showKept();
  assert.equal(store.state.wasSignedIn, false);
});

test("a page whose browser was signed in as another identity elsewhere starts again, and shows no list before", async () => {
  let begun = 0;
  const { store, answers, connect } = scene({ startAfresh: () => (begun += 1) });
  connect();
  await settle();
  connect();
  await settle();
  answers["gateway/info"] = () => ({ name: "gateway", identity: "ann", role: "observer" });
  connect();
  await settle();
  assert.equal(begun, 0);
  for (const info of [{ identity: "bob" }, { identity: "ann", session: "s" }]) {
    answers["gateway/info"] = () => ({ name: "gateway", role: "observer", ...info });
    answers["session/list"] = () => ({ sessions: [] });
    connect();
    await settle();
    assert.equal(store.state.info.identity, "ann");
  }
  assert.equal(begun, 2);
});

test("a page that starts again for another person is told whether something waited to be sent", async () => {
  const begun = [];
  const { store, rpc, answers, connect } = scene({ startAfresh: (isLeft) => begun.push(isLeft) });
  connect();
  await settle();
  answers["gateway/info"] = () => ({ name: "gateway", identity: "bob", role: "controller" });
  connect();
  await settle();
  store.onState({ ...rpc.state, phase: "away", waiting: 1 });
  assert.equal(store.isOther({ identity: "ann" }), false);
  assert.equal(store.isOther({ identity: "bob" }), true);
  store.onState({ ...rpc.state, phase: "away", waiting: 0 });
  connect();
  await settle();
  assert.deepEqual(begun, [false, true]);
});

test("the queue of the open session is what the gateway told last", async () => {
  const queued = [{ promptId: "a", text: "one", mayChange: true }];
  const { store, answers, asks, tell } = scene();
  answers["session/get"] = () => page([], { queue: queued });
  store.open("s");
  assert.deepEqual(store.state.current.queue, []);
  await settle();
  assert.deepEqual(store.state.current.queue, queued);
  tell("session/queue_changed", { sessionId: "w", queue: [] });
  assert.deepEqual(store.state.current.queue, queued);
  await store.changeQueue({ promptId: "a", action: "remove" });
  assert.deepEqual(asks("session/queue"), [{ sessionId: "s", promptId: "a", action: "remove" }]);
  tell("session/queue_changed", { sessionId: "s", queue: [] });
  assert.deepEqual(store.state.current.queue, []);
});

test("signals follow the state once per frame, and those of what did not change stay silent", async () => {
  const { store, paint, tell } = await opened();
  const { signals } = store;
  const heard = [];
  paint();
  const follow = (name, one) => one.subscribe(() => heard.push(name));
  for (const name of ["sessions", "connection", "toasts"]) follow(name, signals[name]);
  for (const name of ["session", "transcript", "pending", "sending", "usage", "hasUpdates"]) follow(name, signals.panes[0][name]);
  for (const name of Object.keys(signals.panes[1])) if (name !== "follow") follow(`beside ${name}`, signals.panes[1][name]);
  heard.length = 0;
  tell("session/updated", { sessionId: "s", updates: UPDATES.slice(2, 3) });
  tell("session/updated", { sessionId: "s", updates: UPDATES.slice(3, 4) });
  assert.deepEqual(heard, []);
  paint();
  assert.deepEqual(heard, ["transcript"]);
  assert.equal(signals.panes[0].transcript.value, store.state.current.transcript);
  store.close();
  paint();
  assert.deepEqual([signals.panes[0].id.value, signals.panes[0].transcript.value.blocks.length], [null, 0]);
});
