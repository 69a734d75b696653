import assert from "node:assert/strict";
import { test } from "node:test";

import { createAddress } from "../../../acp_gateway/web/app/route/address.js";
import { assigned, besideOf, closedOf, followed, partsOf } from "../../../acp_gateway/web/app/route/panes.js";
import { makeRoute, parseRoute } from "../../../acp_gateway/web/app/route/route.js";

const place = (hash, pane = 0) => ({ route: parseRoute(hash), pane });
const told = ({ route, pane }) => [makeRoute(route), pane];
const [part] = partsOf(parseRoute("#/s/c"));

test("an address has two sessions, each with what is shown of it", () => {
  const route = parseRoute("#/s/a/changes&/s/b%26%2F/r/7");
  assert.deepEqual(partsOf(route).map(({ sessionId, changes, requestId }) => [sessionId, changes, requestId]), [["a", true, null], ["b&/", false, "7"]]);
  assert.equal(makeRoute(route), "#/s/a/changes&/s/b%26%2F/r/7");
  assert.equal(makeRoute(parseRoute("#acpgwp_x/s/a&/s/b/u/3")), "#/s/a&/s/b/u/3");
});

test("a second part that is not a session, or the first one again, is left out", () => {
  for (const hash of ["#/s/a&/s/a/changes", "#/s/a&", "#/s/a&/board", "#/s/a&/s/", "#/s/a&/s/%"]) {
    assert.equal(makeRoute(parseRoute(hash)), "#/s/a", hash);
  }
  assert.deepEqual(partsOf(parseRoute("#/&/s/b")), []);
  assert.equal(parseRoute("#/board&/s/b").beside, null);
});

test("a link is opened in the pane in use, and what is shown already is used where it is", () => {
  const link = (hash, pane) => told(followed(place("#/s/a/changes&/s/b", pane), parseRoute(hash)));
  assert.deepEqual(link("#/s/c", 0), ["#/s/c&/s/b", 0]);
  assert.deepEqual(link("#/s/c", 1), ["#/s/a/changes&/s/c", 1]);
  assert.deepEqual(link("#/s/b/r/4", 0), ["#/s/a/changes&/s/b/r/4", 1]);
  assert.deepEqual(link("#/s/a", 1), ["#/s/a&/s/b", 0]);
});

test("a link to no session, or to two, is followed as it is, and so is each where one session is shown", () => {
  for (const hash of ["#/", "#/new/x", "#/s/c&/s/d"]) {
    assert.deepEqual(told(followed(place("#/s/a&/s/b", 1), parseRoute(hash))), [hash, 0]);
  }
  assert.equal(followed(place("#/s/a&/s/b", 1), parseRoute("#/board")).route.board, true);
  assert.deepEqual(told(followed(place("#/s/a"), parseRoute("#/s/c"))), ["#/s/c", 0]);
});

test("a session is opened beside the one in use, in place of the other", () => {
  assert.deepEqual(told(besideOf(place("#/"), part)), ["#/s/c", 0]);
  assert.deepEqual(told(besideOf(place("#/s/a/changes"), part)), ["#/s/a/changes&/s/c", 1]);
  assert.deepEqual(told(besideOf(place("#/s/a&/s/b", 0), part)), ["#/s/a&/s/c", 1]);
  assert.deepEqual(told(besideOf(place("#/s/a&/s/b", 1), part)), ["#/s/c&/s/b", 0]);
  assert.deepEqual(told(besideOf(place("#/s/c&/s/b", 1), part)), ["#/s/c&/s/b", 0]);
  assert.deepEqual(told(besideOf(place("#/s/c"), part)), ["#/s/c", 0]);
});

test("either session is closed", () => {
  assert.deepEqual(told(closedOf(parseRoute("#/s/a&/s/b/changes"), 0)), ["#/s/b/changes", 0]);
  assert.deepEqual(told(closedOf(parseRoute("#/s/a&/s/b"), 1)), ["#/s/a", 0]);
});

test("a session stays with what holds it, wherever it stands", () => {
  assert.deepEqual(assigned([], ["a", "b"]), []);
  assert.deepEqual(assigned(["a", "b"], [null, null]), [0, 1]);
  assert.deepEqual(assigned(["b"], ["a", "b"]), [1]);
  assert.deepEqual(assigned(["b", "a"], ["a", "b"]), [1, 0]);
  assert.deepEqual(assigned(["c", "a"], ["a", "b"]), [1, 0]);
  assert.deepEqual(assigned(["c"], ["a", "b"]), [0]);
});

/** A window whose history has entries, and what follows it. */
function browser(hash, state = null) {
  const entries = [{ hash, state }];
  let at = 0;
  const window = {
    location: { get hash() { return entries[at].hash; } },
    history: {
      get state() { return entries[at].state; },
      replaceState: (next, _, url) => (entries[at] = { hash: url ?? entries[at].hash, state: next }),
      pushState: (next, _, url) => {
        entries.splice(at + 1, Infinity, { hash: url, state: next });
        at += 1;
      },
    },
  };
  const address = createAddress(window);
  address.read();
  const follow = (to) => {
    entries.splice(at + 1, Infinity, { hash: to, state: null });
    at += 1;
    address.read();
  };
  const back = () => {
    at -= 1;
    address.read();
  };
  return { address, follow, back, entry: () => [entries[at].hash, entries[at].state.pane], seen: () => told(address) };
}

test("Back shows what was shown, and a link that is followed then comes into the pane in use", () => {
  const { address, follow, back, entry, seen } = browser("#/s/a");
  address.go(besideOf(address, part));
  assert.deepEqual(entry(), ["#/s/a&/s/c", 1]);
  follow("#/s/d");
  assert.deepEqual(entry(), ["#/s/a&/s/d", 1]);
  address.go(closedOf(address.route, 0));
  assert.deepEqual(entry(), ["#/s/d", 0]);
  back();
  assert.deepEqual(seen(), ["#/s/a&/s/d", 1]);
  back();
  assert.deepEqual(seen(), ["#/s/a&/s/c", 1]);
  back();
  assert.deepEqual(seen(), ["#/s/a", 0]);
  follow("#/s/e");
  assert.deepEqual(entry(), ["#/s/e", 0]);
});

test("Back to another pane, or from two sessions to one, moves the user, and nothing else of it does", () => {
  const { address, follow, back } = browser("#/s/a");
  const moved = () => address.state.moves;
  address.go(besideOf(address, part));
  address.use(0);
  const before = moved();
  follow("#/s/d");
  address.use(1);
  assert.equal(moved(), before);
  back();
  assert.equal(moved(), before + 1, "the first pane is in use again");
  back();
  assert.equal(moved(), before + 2, "the focus may have been in the second one");
  follow("#/s/e");
  back();
  assert.equal(moved(), before + 2);
});

test("the pane in use is kept for the next load of the page, if it is one of two", () => {
  const { address, entry } = browser("#/s/a&/s/b");
  address.use(1);
  assert.deepEqual(entry(), ["#/s/a&/s/b", 1]);
  assert.deepEqual(browser("#/s/a&/s/b", { pane: 1 }).seen(), ["#/s/a&/s/b", 1]);
  for (const state of [{ pane: 7 }, { pane: -1 }, { pane: "1" }, {}]) assert.ok([0, 1].includes(browser("#/s/a&/s/b", state).address.pane));
  assert.deepEqual(browser("#/s/a", { pane: 1 }).seen(), ["#/s/a", 0]);
});

test("the focus is moved to a pane that the page has changed to, and not where the user has gone themselves", () => {
  const { address, follow } = browser("#/s/a&/s/b");
  const moves = () => address.state.moves;
  assert.equal(moves(), 0);
  address.use(1);
  follow("#/s/c");
  assert.equal(moves(), 0);
  follow("#/s/a/r/3");
  assert.deepEqual([address.pane, moves()], [0, 1]);
  address.use(1, true);
  assert.equal(moves(), 2);
  address.go(closedOf(address.route, 1));
  assert.equal(moves(), 3);
  address.use(1, true);
  assert.deepEqual([address.pane, moves()], [0, 3]);
});

test("a sign-in code never comes into the history", () => {
  const { address, entry } = browser("#/s/a&/s/b");
  assert.equal(address.route.code, null);
  assert.equal(browser("#acpgwp_x/s/a").address.route.code, null);
  assert.deepEqual(entry()[0], "#/s/a&/s/b");
});
