import assert from "node:assert/strict";
import { test } from "node:test";

import { createKeeper } from "../../../acp_gateway/web/app/state/keeper.js";

const BASE = "https://box/gw/read/";
const MEGABYTE = 1024 * 1024;

/** The caches of a browser, as far as the keeper uses them. */
function cachesOf() {
  const all = new Map();
  return {
    all,
    names: () => [...(all.get(`read ${BASE}`)?.keys() ?? [])].map((url) => decodeURIComponent(url.replace(BASE, ""))),
    delete: async (name) => all.delete(name),
    open: async (name) => {
      const entries = all.get(name) ?? all.set(name, new Map()).get(name);
      return {
        match: async (request) => entries.get(request.url ?? request)?.clone(),
        put: async (url, response) => void entries.set(url, response),
        delete: async (request) => entries.delete(request.url ?? request),
        keys: async () => [...entries.keys()].map((url) => ({ url })),
      };
    },
  };
}

const listOf = (identity, ...ids) => ({
  info: { identity, role: "controller", session: null },
  agents: [],
  sessions: ids.map((id) => ({ id })),
  more: 0,
});

function scene(identity = "ann") {
  const caches = cachesOf();
  const clock = { now: 1000 };
  const another = (base = BASE) => createKeeper({ caches, base, clock: () => clock.now });
  return { caches, clock, another, keeper: another(), list: listOf(identity, "a", "b/../c", "d") };
}

test("the list and the sessions are there for the next page, with the time at which they were read", async () => {
  const { keeper, another, clock, list } = scene();
  await keeper.keepList(list);
  await keeper.keepSession("b/../c", JSON.stringify({ updates: [1] }));
  clock.now = 2000;
  const later = another();
  assert.deepEqual((await later.list()).sessions, list.sessions);
  assert.equal((await later.list()).at, 1000);
  assert.deepEqual((await later.session("b/../c")).updates, [1]);
  assert.equal(await later.session("a"), null);
});

test("nothing of one identity is left when another one's list has come", async () => {
  const { keeper, another, caches, list } = scene();
  await keeper.keepList(list);
  await keeper.keepSession("a", "{}");
  const other = another();
  await other.keepList(listOf("bob", "a"));
  assert.deepEqual(caches.names(), ["list"]);
  assert.equal((await other.list()).info.identity, "bob");
});

test("nothing of one identity is left either where its list is gone or too old", async () => {
  for (const age of [0, 31 * 24 * 3600 * 1000]) {
    const { keeper, another, caches, clock, list } = scene();
    await keeper.keepList(list);
    await keeper.keepSession("a", "{}");
    if (age === 0) await (await caches.open(`read ${BASE}`)).delete(`${BASE}list`);
    clock.now += age;
    await another().keepList({ ...listOf("bob", "a"), more: 7 });
    assert.deepEqual(caches.names(), ["list"]);
  }
});

test("what was read of a gateway at another path of the same host stays", async () => {
  const { keeper, another, caches, list } = scene();
  await keeper.keepList(list);
  await keeper.keepSession("a", "{}");
  const other = another("https://box/read/");
  await other.keepList(listOf("bob", "x"));
  await other.forget();
  assert.deepEqual(caches.names(), ["list", "s a"]);
});

test("a session is kept only once it is known who is signed in", async () => {
  const { keeper, caches } = scene();
  await keeper.keepSession("a", "{}");
  assert.deepEqual(caches.names(), []);
});

test("all is removed at sign-out, and what was on its way is not kept after it", async () => {
  const { keeper, caches, list } = scene();
  await keeper.keepList(list);
  const writing = [keeper.keepSession("a", "{}"), keeper.keepList(list)];
  await keeper.forget();
  await Promise.all([...writing, keeper.keepSession("a", "{}"), keeper.keepList(list)]);
  assert.deepEqual(caches.names(), []);
});

test("a page that signs in keeps the list of who has signed in", async () => {
  const { keeper, caches, list } = scene();
  await keeper.forget(false);
  await keeper.keepList(list);
  assert.deepEqual(caches.names(), ["list"]);
});

test("sessions that the list lacks are removed, unless it has only some", async () => {
  const { keeper, caches, list } = scene();
  await keeper.keepList(list);
  for (const id of ["a", "d"]) await keeper.keepSession(id, "{}");
  await keeper.keepList({ ...listOf("ann", "a"), more: 7 });
  assert.deepEqual(caches.names().sort(), ["list", "s a", "s d"]);
  await keeper.keepList(listOf("ann", "a"));
  assert.deepEqual(caches.names().sort(), ["list", "s a"]);
});

test("the oldest go where there is too much, and what is too long is not kept", async () => {
  const { keeper, caches, clock, list } = scene();
  await keeper.keepList(list);
  const text = JSON.stringify("x".repeat(3.5 * MEGABYTE));
  for (const id of ["1", "2", "3", "4", "5"]) {
    clock.now += 1;
    await keeper.keepSession(id, text);
  }
  assert.deepEqual(caches.names(), ["list", "s 2", "s 3", "s 4", "s 5"]);
  await keeper.keepSession("3", JSON.stringify("\u00e9".repeat(2 * MEGABYTE)));
  assert.deepEqual(caches.names(), ["list", "s 2", "s 4", "s 5"]);
  const agents = ["x".repeat(3.5 * MEGABYTE)];
  await keeper.keepList({ ...list, agents, more: 7 });
  await keeper.keepSession("6", text);
  assert.deepEqual(caches.names(), ["list", "s 4", "s 5", "s 6"]);
});

test("an entry is there until its next text has replaced it", async () => {
  const { keeper, caches, list } = scene();
  await keeper.keepList(list);
  await keeper.keepSession("a", "{}");
  const { open } = caches;
  caches.open = async (name) => ({ ...(await open(name)), put: async () => assert.fail("the page has ended") });
  await keeper.keepSession("a", '{"more": 1}');
  assert.deepEqual(caches.names(), ["list", "s a"]);
});

test("what is older than 30 days is not shown", async () => {
  const { keeper, clock, list } = scene();
  await keeper.keepList(list);
  clock.now += 30 * 24 * 3600 * 1000;
  assert.notEqual(await keeper.list(), null);
  clock.now += 1;
  assert.equal(await keeper.list(), null);
});

test("where the browser keeps nothing there is nothing, and no failure", async () => {
  const { list } = scene();
  const broken = { open: async () => assert.fail(), delete: async () => assert.fail() };
  for (const caches of [undefined, broken]) {
    const keeper = createKeeper({ caches, base: BASE });
    await keeper.keepList(list);
    await keeper.keepSession("a", "{}");
    assert.deepEqual([await keeper.list(), await keeper.session("a"), await keeper.forget()], [null, null, null]);
  }
});
