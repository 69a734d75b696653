import assert from "node:assert/strict";
import { test } from "node:test";

import { createDrafts } from "../../../acp_gateway/web/app/state/drafts.js";
import { Items } from "./helpers.mjs";

/** The drafts of one who is signed in. */
const draftsOf = (storage, person = "ann", clock = () => 1000) => {
  const drafts = createDrafts(storage, clock);
  drafts.signedIn(person);
  return drafts;
};

const sending = (key, text) => ({ key, at: 5, blocks: [{ type: "text", text }], error: null, unsure: false, after: 3 });

test("a prompt that was not confirmed is left for the next load of the page, as one that may have arrived", () => {
  const storage = new Items();
  const drafts = draftsOf(storage);
  drafts.sent("s", sending(1, "one"));
  drafts.sent("s", sending(2, "two"));
  drafts.sent("s", sending(1, "one"));
  drafts.settled("s", sending(2, "two"));
  const [left, ...more] = draftsOf(storage).left("s");
  assert.deepEqual(more, []);
  assert.deepEqual([left.key, left.blocks[0].text, left.after, left.unsure], [1, "one", 3, true]);
  assert.match(left.error, /closed or signed out before/);
  assert.deepEqual(drafts.left("other"), []);
  assert.deepEqual(drafts.left("s"), []);
  drafts.settled("s", { ...sending(1, "one"), at: 6 });
  assert.equal(draftsOf(storage).left("s").length, 1);
  drafts.settled("s", sending(1, "one"));
  assert.deepEqual(Object.keys(storage), []);
});

test("drafts and prompts are forgotten together, and nothing else", () => {
  const storage = new Items();
  const drafts = draftsOf(storage);
  drafts.set("s", "half a");
  drafts.sent("s", sending(1, "one"));
  storage.setItem("quiet-hours", "null");
  assert.equal(drafts.get("s"), "half a");
  drafts.forget();
  assert.deepEqual(Object.keys(storage), ["quiet-hours"]);
  assert.equal(drafts.get("s"), "");
});

test("an empty draft and one that is too long are not kept", () => {
  const storage = new Items();
  const drafts = draftsOf(storage);
  drafts.set("s", "x".repeat(99_000));
  drafts.set("s", "x".repeat(100_001));
  assert.equal(drafts.get("s").length, 99_000);
  drafts.set("s", "");
  drafts.sent("s", sending(1, "x".repeat(100_000)));
  assert.deepEqual(Object.keys(storage), []);
});

test("where the browser keeps nothing there is nothing, and no failure", () => {
  const fail = () => assert.fail();
  for (const storage of [null, { getItem: fail, setItem: fail, removeItem: fail }, { getItem: () => "{" }]) {
    const drafts = draftsOf(storage);
    drafts.set("s", "x");
    drafts.sent("s", sending(1, "one"));
    drafts.settled("s", sending(1, "one"));
    drafts.forget();
    assert.deepEqual(drafts.left("s"), []);
  }
});

test("drafts and prompts outlast a sign-in and are there for the same identity, and removed for another one", () => {
  const storage = new Items();
  const before = draftsOf(storage);
  before.set("s", "half a");
  before.sent("s", sending(1, "one"));
  const unknown = createDrafts(storage, () => 2000);
  assert.deepEqual([unknown.get("s"), unknown.left("s")], ["", []]);
  assert.deepEqual(unknown.all(), [{ id: "s", prompts: 1, typed: 1 }]);
  assert.equal(unknown.signedIn("ann"), true);
  assert.equal(unknown.signedIn("ann"), false);
  assert.deepEqual([unknown.get("s"), unknown.left("s").length], ["half a", 1]);
  const other = draftsOf(storage, "bob");
  assert.deepEqual([other.get("s"), other.left("s"), other.all()], ["", [], []]);
  assert.deepEqual(Object.keys(storage), []);
});

test("what a page of another identity still writes is shown to no other one, and nothing is written after its end", () => {
  const storage = new Items();
  const old = draftsOf(storage, "ann");
  const other = draftsOf(storage, "bob");
  old.set("s", "of ann");
  old.sent("s", sending(1, "of ann"));
  assert.deepEqual([other.get("s"), other.left("s"), other.all()], ["", [], []]);
  old.end();
  old.set("t", "of ann");
  assert.deepEqual(Object.keys(storage), ["draft s", "unsent s"]);
});

test("what is too old is not kept, nor what is damaged", () => {
  const storage = new Items();
  draftsOf(storage).set("s", "old");
  storage.setItem("draft t", "{");
  const later = draftsOf(storage, "ann", () => 1000 + 31 * 24 * 3600 * 1000);
  assert.deepEqual([later.get("s"), later.get("t"), Object.keys(storage)], ["", "", []]);
  draftsOf(storage).set("s", "old");
  createDrafts(storage, () => 1000 + 31 * 24 * 3600 * 1000);
  assert.deepEqual(Object.keys(storage), [], "nor for one who never signs in again");
});

test("prompts that the browser does not keep are known until they are confirmed", () => {
  const drafts = draftsOf(new Items());
  drafts.sent("s", sending(1, "one"));
  drafts.sent("s", sending(2, "x".repeat(100_000)));
  assert.deepEqual(drafts.unkept(), ["s"]);
  drafts.settled("s", sending(2, ""));
  assert.deepEqual(drafts.unkept(), []);
});
