import assert from "node:assert/strict";
import { test } from "node:test";

import { createRpc } from "../../../acp_gateway/web/app/net/rpc.js";
import { manualTimers, settle } from "./helpers.mjs";

/** A client with sockets that the test drives. */
function scene(options = {}) {
  const time = manualTimers();
  const sockets = [];
  const states = [];
  const notifications = [];
  const open = () => {
    const socket = {
      sent: [],
      closed: false,
      send: (text) => socket.sent.push(JSON.parse(text)),
      close: () => (socket.closed = true),
      accept: () => socket.onopen(),
      say: (message) => socket.onmessage({ data: JSON.stringify({ jsonrpc: "2.0", ...message }) }),
      drop: (reason = "") => socket.onclose({ reason }),
    };
    sockets.push(socket);
    return socket;
  };
  const rpc = createRpc({
    open,
    onNotification: (method, params) => notifications.push([method, params]),
    onState: (state) => states.push(state),
    timers: time.timers,
    clock: time.clock,
    random: () => 1,
    ...options,
  });
  const phases = () => states.map(({ phase }) => phase);
  return { rpc, time, sockets, states, phases, notifications, last: () => sockets.at(-1) };
}

/** Follows a promise: its value or the code of its error, once there. */
function outcome(promise) {
  const seen = { value: undefined, code: undefined, message: undefined };
  promise.then(
    (value) => (seen.value = value),
    (error) => Object.assign(seen, { code: error.code, message: error.message, data: error.data }),
  );
  return seen;
}

function connected(options) {
  const made = scene(options);
  made.rpc.connect();
  made.last().accept();
  return made;
}

test("a request is sent and its result returned", async () => {
  const { rpc, last, phases } = connected();
  const answer = outcome(rpc.request("a", { x: 1 }));
  assert.deepEqual(last().sent, [{ jsonrpc: "2.0", id: 1, method: "a", params: { x: 1 } }]);
  last().say({ id: 1, result: { y: 2 } });
  await settle();
  assert.deepEqual(answer.value, { y: 2 });
  assert.deepEqual(phases(), ["connected"]);
});

test("an error keeps code, message and data", async () => {
  const { rpc, last } = connected();
  const answer = outcome(rpc.request("a"));
  last().say({ id: 1, error: { code: -32602, message: "unknown session", data: { x: 1 } } });
  await settle();
  assert.deepEqual([answer.code, answer.message, answer.data], [-32602, "unknown session", { x: 1 }]);
});

test("requests wait for a connection and are sent in order", () => {
  const { rpc, last, states } = scene();
  rpc.connect();
  outcome(rpc.request("a"));
  outcome(rpc.request("b"));
  assert.equal(states.at(-1).waiting, 2);
  last().accept();
  assert.deepEqual(
    last().sent.map(({ method }) => method),
    ["a", "b"],
  );
  assert.equal(states.at(-1).waiting, 0);
});

test("requests that are quiet are not counted as waiting", () => {
  const { rpc, states } = scene();
  outcome(rpc.request("list", {}, { quiet: true }));
  outcome(rpc.request("prompt"));
  assert.deepEqual([rpc.state.waiting, states.length], [1, 1]);
});

test("what waits is bounded in number and in size", async () => {
  const { rpc } = scene();
  for (let i = 0; i < 100; i += 1) outcome(rpc.request("a"));
  const more = outcome(rpc.request("a"));
  const { rpc: other } = scene();
  const large = outcome(other.request("a", { text: "x".repeat(33 * 1024 * 1024) }));
  await settle();
  assert.deepEqual([more.code, large.code], ["full", "full"]);
});

test("a request that is not answered in time fails, and its late answer is passed over", async () => {
  const { rpc, last, time } = connected();
  const answer = outcome(rpc.request("a"));
  time.pass(29_999);
  await settle();
  assert.equal(answer.code, undefined);
  time.pass(1);
  await settle();
  assert.equal(answer.code, "timeout");
  last().say({ id: 1, result: 1 });
  await settle();
  assert.equal(answer.value, undefined);
});

/** Answers the probe that stands first on a new connection. */
function settles(socket, known) {
  const { id, method } = socket.sent[0];
  assert.equal(method, "gateway/info");
  socket.say({ id, result: { known } });
}

const methods = (socket) => socket.sent.map(({ id, method }) => [id, method]);

test("a gateway that knows the page is sent again what was not answered, with the same ids and in order", async () => {
  const { rpc, last, time } = connected();
  const prompt = outcome(rpc.request("prompt"));
  outcome(rpc.request("list", {}, { resend: true }));
  last().drop();
  outcome(rpc.request("later"));
  await settle();
  assert.deepEqual([prompt.code, rpc.state.waiting], [undefined, 3]);
  time.pass(250);
  last().accept();
  assert.equal(last().sent.length, 1);
  settles(last(), true);
  await settle();
  assert.deepEqual(methods(last()).slice(1), [
    [1, "prompt"],
    [2, "list"],
    [3, "later"],
  ]);
  last().say({ id: 1, result: "x" });
  await settle();
  assert.equal(prompt.value, "x");
});

test("a gateway that does not know the page is sent again only what does no harm", async () => {
  const { rpc, last, time } = connected();
  const prompt = outcome(rpc.request("prompt"));
  const list = outcome(rpc.request("list", {}, { resend: true }));
  last().drop();
  outcome(rpc.request("later"));
  time.pass(250);
  last().accept();
  settles(last(), undefined);
  await settle();
  assert.equal(prompt.code, "lost");
  assert.deepEqual(methods(last()).slice(1), [
    [2, "list"],
    [3, "later"],
  ]);
  last().say({ id: 2, result: "x" });
  await settle();
  assert.equal(list.value, "x");
});

test("the pause before another attempt grows to 1.5 s, with jitter, and starts over after success", async () => {
  const { rpc, last, sockets, time } = connected({ random: () => 0 });
  const pauses = [];
  for (let i = 0; i < 6; i += 1) {
    last().drop();
    await settle();
    pauses.push(Math.min(...time.pending()));
    const count = sockets.length;
    time.pass(pauses.at(-1));
    assert.equal(sockets.length, count + 1);
  }
  assert.deepEqual(pauses, [125, 250, 500, 750, 750, 750]);
  last().accept();
  last().drop();
  await settle();
  assert.equal(Math.min(...time.pending()), 125);
  assert.equal(rpc.state.phase, "away");
});

test("a hidden page pauses longer, up to half a minute", async () => {
  const { last, time } = connected({ isHidden: () => true });
  for (let i = 0; i < 9; i += 1) {
    last().drop();
    await settle();
    if (i < 8) time.pass(Math.min(...time.pending()));
  }
  assert.equal(Math.min(...time.pending()), 30_000);
});

test("where many pages wait for a machine, each may try less often", async () => {
  const { last, time } = connected({ random: () => 1, longestPause: 5000 });
  for (let i = 0; i < 9; i += 1) {
    last().drop();
    await settle();
    if (i < 8) time.pass(Math.min(...time.pending()));
  }
  assert.equal(Math.min(...time.pending()), 5000);
});

test("the state tells since when, and why", () => {
  const { last, states, time } = connected();
  time.pass(7000);
  last().drop("The client is too slow.");
  const away = { phase: "away", since: 1_007_000, waiting: 0, reason: "The client is too slow.", line: 1 };
  assert.deepEqual(states.at(-1), away);
  time.pass(250);
  last().accept();
  assert.deepEqual(states.at(-1), { phase: "connected", since: 1_007_250, waiting: 0, reason: null, line: 2 });
});

test("a connection that does not open in time is given up", async () => {
  const { rpc, last, sockets, time } = scene();
  rpc.connect();
  time.pass(10_000);
  await settle();
  assert.ok(last().closed);
  time.pass(500);
  assert.equal(sockets.length, 2);
});

test("a refused page stops trying until it connects again, and what waited fails", async () => {
  const { rpc, last, sockets, time, states } = scene({ check: async () => "refused" });
  rpc.connect();
  const answer = outcome(rpc.request("a"));
  last().drop();
  await settle();
  assert.deepEqual([rpc.state.phase, answer.code, states.at(-1).waiting], ["refused", "ended", 0]);
  time.pass(3_600_000);
  assert.equal(sockets.length, 1);
  rpc.connect();
  last().accept();
  assert.equal(rpc.state.phase, "connected");
});

test("a check that fails, or says nothing is wrong, means another attempt", async () => {
  for (const check of [async () => "ok", async () => Promise.reject(new Error("offline"))]) {
    const { rpc, last, sockets, time } = scene({ check });
    rpc.connect();
    last().drop();
    await settle();
    assert.equal(rpc.state.phase, "away");
    time.pass(500);
    assert.equal(sockets.length, 2);
  }
});

test("a check does not hold up the next attempt, and counts until one has opened", async () => {
  let answer = () => {};
  const { rpc, last, sockets, time } = scene({ check: () => new Promise((resolve) => (answer = resolve)) });
  rpc.connect();
  last().drop();
  await settle();
  time.pass(250);
  assert.equal(sockets.length, 2);
  answer("refused");
  await settle();
  assert.deepEqual([rpc.state.phase, last().closed], ["refused", true]);
  rpc.connect();
  last().drop();
  time.pass(500);
  last().accept();
  answer("refused");
  await settle();
  assert.equal(rpc.state.phase, "connected");
});

test("a WebSocket that cannot be made is tried again", () => {
  let attempts = 0;
  const { rpc, time } = scene({
    open: () => {
      attempts += 1;
      throw new Error("insecure");
    },
  });
  rpc.connect();
  time.pass(500);
  assert.equal(attempts, 2);
  assert.equal(rpc.state.reason, "Error: insecure");
});

test("wake connects at once when away", async () => {
  const { rpc, last, sockets } = connected();
  last().drop();
  await settle();
  rpc.wake();
  assert.equal(sockets.length, 2);
  rpc.wake();
  assert.equal(sockets.length, 2);
});

test("wake opens another connection beside one that does not answer, and it carries on", async () => {
  const { rpc, sockets, time, phases } = connected();
  rpc.wake();
  time.pass(249);
  assert.equal(sockets.length, 1);
  time.pass(1);
  assert.deepEqual([sockets.length, sockets[0].closed], [2, false]);
  sockets[1].accept();
  assert.deepEqual([sockets[0].closed, rpc.state.line], [true, 2]);
  assert.ok(!phases().includes("away"));
});

test("of a connection in doubt and one beside it, the one that answers first carries on", async () => {
  const { rpc, sockets, time } = connected();
  rpc.wake();
  time.pass(250);
  sockets[0].say({ id: sockets[0].sent[0].id, result: {} });
  assert.deepEqual([sockets[0].closed, sockets[1].closed, rpc.state.line], [false, true, 1]);
});

test("after a false alarm there is none for ten seconds", async () => {
  const { rpc, sockets, time } = connected();
  rpc.wake();
  time.pass(250);
  sockets[0].say({ method: "x" });
  rpc.wake();
  time.pass(9_999);
  assert.equal(sockets.length, 2);
  time.pass(1);
  assert.equal(sockets.length, 3);
});

test("an idle connection is not probed", () => {
  const { sockets, time } = connected();
  time.pass(3_600_000);
  assert.deepEqual([sockets[0].sent, time.pending()], [[], []]);
});

test("while an answer is expected two probes without one open another connection", async () => {
  for (const isBusy of [() => true, () => false]) {
    const { rpc, sockets, time } = connected({ isBusy });
    if (!isBusy()) outcome(rpc.request("prompt"));
    const probes = () => sockets[0].sent.filter(({ method }) => method === "gateway/info").length;
    time.pass(250);
    assert.equal(probes(), 1);
    time.pass(1_249);
    assert.deepEqual([probes(), sockets.length], [2, 1]);
    time.pass(1);
    assert.equal(sockets.length, 2);
  }
});

test("a connection whose probes are answered is not in doubt, however long a request takes", async () => {
  const { rpc, sockets, time } = connected();
  outcome(rpc.request("new", {}, { timeout: 60_000 }));
  for (let i = 0; i < 30; i += 1) {
    time.pass(1000);
    for (const { id, method } of sockets[0].sent) if (method === "gateway/info") sockets[0].say({ id, result: {} });
    await settle();
  }
  assert.equal(sockets.length, 1);
});

test("a hidden page does not probe", () => {
  const { sockets, time } = connected({ isBusy: () => true, isHidden: () => true });
  time.pass(60_000);
  assert.deepEqual(sockets[0].sent, []);
});

test("a silent connection counts as away after 2 s, and is connected again when it speaks", async () => {
  const { rpc, sockets, time, states } = connected({ isBusy: () => true });
  time.pass(2_249);
  assert.equal(rpc.state.phase, "connected");
  time.pass(1);
  assert.deepEqual([rpc.state.phase, rpc.state.since], ["away", 1_000_250]);
  outcome(rpc.request("prompt"));
  assert.equal(states.at(-1).waiting, 1);
  sockets[0].say({ method: "x" });
  assert.deepEqual([rpc.state.phase, rpc.state.line, states.at(-1).waiting], ["connected", 1, 0]);
  assert.equal(sockets[0].sent.at(-1).method, "prompt");
});

test("while the network is away attempts beside a silent connection go on, until one opens", async () => {
  const { rpc, sockets, time } = connected({ isBusy: () => true });
  time.pass(1_500);
  for (let i = 1; i < 5; i += 1) {
    sockets[i].drop();
    time.pass(1_500);
    assert.equal(sockets.length, i + 2);
  }
  sockets.at(-1).accept();
  assert.deepEqual([rpc.state.phase, rpc.state.line, sockets[0].closed], ["connected", 2, true]);
});

test("the connection in doubt may close: the one beside it goes on", async () => {
  const { rpc, sockets, time } = connected();
  const prompt = outcome(rpc.request("prompt"));
  time.pass(1_500);
  sockets[0].drop();
  assert.deepEqual([rpc.state.phase, sockets.length], ["away", 2]);
  sockets[1].accept();
  settles(sockets[1], true);
  await settle();
  sockets[1].say({ id: 1, result: "x" });
  await settle();
  assert.equal(prompt.value, "x");
});

test("a large request gives a slow network its time", () => {
  const { rpc, sockets, time } = connected();
  outcome(rpc.request("prompt", { text: "x".repeat(200_000) }));
  time.pass(19_000);
  assert.equal(sockets.length, 1);
  time.pass(2_000);
  assert.equal(sockets.length, 2);
});

test("connections that replace each other are given fourfold time", () => {
  const { sockets, time } = connected({ isBusy: () => true });
  time.pass(1_500);
  sockets[1].accept();
  time.pass(4_000);
  assert.equal(sockets.length, 2);
  time.pass(1_250);
  assert.equal(sockets.length, 3);
});

test("connections that answered what was asked are replaced in 3 s, though they die one after the other", () => {
  const { rpc, sockets, time } = connected();
  for (let death = 0; death < 8; death += 1) {
    const socket = sockets.at(-1);
    // What a page asks for on each connection is answered; the next request is not.
    outcome(rpc.request("session/list", {}, { quiet: true, resend: true, timeout: 20_000 }));
    for (const { id } of socket.sent) socket.say({ id, result: {} });
    time.pass(5_000);
    outcome(rpc.request("session/get", {}, { quiet: true, resend: true, timeout: 20_000 }));
    time.pass(3_000);
    assert.equal(sockets.length, death + 2);
    sockets.at(-1).accept();
    assert.equal(rpc.state.line, death + 2);
  }
});

test("a connection that leaves a request without its answer is given fourfold time after others like it", () => {
  const { rpc, sockets, time } = connected();
  outcome(rpc.request("session/get", {}, { quiet: true, resend: true, timeout: 60_000 }));
  time.pass(1_500);
  sockets[1].accept();
  // The list comes, the long history does not.
  outcome(rpc.request("session/list", {}, { quiet: true, resend: true }));
  sockets[1].say({ id: sockets[1].sent.find(({ method }) => method === "session/list").id, result: {} });
  time.pass(3_500);
  assert.equal(sockets.length, 2);
  time.pass(2_500);
  assert.equal(sockets.length, 3);
});

test("wake does not open the first connection: the page may still have to sign in", () => {
  const { rpc, sockets } = scene();
  rpc.wake();
  assert.equal(sockets.length, 0);
});

test("wake gives up an attempt that was begun on the old network", async () => {
  const { rpc, sockets, time } = connected();
  sockets[0].drop();
  time.pass(250);
  time.pass(251);
  rpc.wake();
  assert.deepEqual([sockets.length, sockets[1].closed], [3, true]);
  sockets[2].accept();
  assert.equal(rpc.state.phase, "connected");
});

test("close fails everything and ends the attempts", async () => {
  const { rpc, last, sockets, time } = connected();
  const sent = outcome(rpc.request("a"));
  const again = outcome(rpc.request("b", {}, { resend: true }));
  rpc.close();
  const after = outcome(rpc.request("c"));
  await settle();
  time.pass(3_600_000);
  assert.deepEqual([sent.code, again.code, after.code], ["lost", "ended", "ended"]);
  assert.deepEqual([rpc.state.phase, rpc.state.waiting, sockets.length, last().closed], ["ended", 0, 1, true]);
});

test("events of a connection that is gone have no effect", () => {
  const { rpc, sockets, time, last } = connected();
  const old = sockets[0];
  const { onclose, onmessage } = old;
  old.drop();
  time.pass(500);
  last().accept();
  onclose({ reason: "" });
  onmessage({ data: '{"jsonrpc":"2.0","method":"x"}' });
  assert.equal(rpc.state.phase, "connected");
});

test("notifications are handed on, requests of the gateway are refused, all else is passed over", () => {
  const { last, notifications } = connected();
  last().say({ method: "session/updated", params: { a: 1 } });
  last().say({ method: "x" });
  last().say({ id: 9, method: "x" });
  for (const data of ["{", "null", "[]", '"x"', '{"id":77,"result":1}', new ArrayBuffer(2)]) last().onmessage({ data });
  assert.deepEqual(notifications, [
    ["session/updated", { a: 1 }],
    ["x", {}],
  ]);
  assert.deepEqual(
    last().sent.map(({ id, error }) => [id, error.code]),
    [[9, -32601]],
  );
});

/** A client of ann's, on a gateway that tells who is signed in. */
function ofAnn() {
  const made = scene({ isOther: ({ identity }) => identity !== "ann" });
  const told = (identity) => {
    const { sent } = made.last();
    for (const { id, method } of sent.splice(0)) if (method === "gateway/info") made.last().say({ id, result: { identity } });
  };
  const methods = () => made.last().sent.map(({ method }) => method);
  made.rpc.connect();
  return { ...made, told, methods };
}

test("a request above the limit of the gateway is answered here, and the connection goes on", async () => {
  const { rpc, last } = connected();
  outcome(rpc.request("gateway/info"));
  last().say({ id: 1, result: { limit: { size: 2048, option: "max_message_size" } } });
  await settle();
  const large = outcome(rpc.request("session/prompt", { text: "ü".repeat(1024) }));
  const fits = outcome(rpc.request("session/prompt", { text: "u".repeat(1024) }));
  await settle();
  assert.equal(large.code, "large");
  assert.match(large.message, /^This is too large: it has 2\.1 KiB, and max_message_size allows 2\.0 KiB\.$/);
  assert.deepEqual(
    last().sent.map(({ id }) => id),
    [1, 3],
  );
  assert.equal(fits.code, undefined);
  assert.equal(last().closed, false);
});

test("what waits for a connection is sent only once the same person is known to be signed in", async () => {
  const { rpc, last, told, methods } = ofAnn();
  outcome(rpc.request("prompt", { n: 1 }));
  last().accept();
  assert.deepEqual(methods(), ["gateway/info"]);
  outcome(rpc.request("prompt", { n: 2 }));
  assert.deepEqual(methods(), ["gateway/info"]);
  told("ann");
  await settle();
  assert.deepEqual(
    last().sent.map(({ params }) => params.n),
    [1, 2],
  );
});

test("what waits is never sent as another person", async () => {
  const { rpc, last, time, told, methods } = ofAnn();
  last().accept();
  outcome(rpc.request("list", {}, { quiet: true }));
  outcome(rpc.request("gateway/info", {}, { quiet: true }));
  told("ann");
  outcome(rpc.request("prompt"));
  assert.deepEqual(methods(), ["prompt"]);
  last().drop();
  const waits = outcome(rpc.request("prompt"));
  const answers = outcome(rpc.request("respond", {}, { resend: true }));
  time.pass(2000);
  last().accept();
  const late = outcome(rpc.request("prompt"));
  told("bob");
  await settle();
  const after = outcome(rpc.request("prompt"));
  told("bob");
  await settle();
  assert.deepEqual(methods(), []);
  for (const { code, message } of [waits, answers, late, after]) {
    assert.deepEqual([code, message], ["ended", "Someone else is signed in now."]);
  }
});

test("what only reads does not wait for the name of the person", () => {
  const { rpc, last, methods } = ofAnn();
  outcome(rpc.request("list", {}, { quiet: true }));
  last().accept();
  assert.deepEqual(methods(), ["list"]);
});
