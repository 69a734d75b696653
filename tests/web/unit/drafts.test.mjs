import assert from "node:assert/strict";
import { test } from "node:test";

import { createDrafts } from "../../../acp_gateway/web/app/drafts.js";

/** A storage of a browser: its names are its properties. */
class Items {
  getItem(name) {
    return this[name] ?? null;
  }
  setItem(name, text) {
    this[name] = text;
  }
  removeItem(name) {
    delete this[name];
  }
}

const sending = (key, text) => ({ key, at: 5, blocks: [{ type: "text", text }], error: null, unsure: false, after: 3 });

test("a prompt that was not confirmed is left for the next load of the page, as one that may have arrived", () => {
  const storage = new Items();
  const drafts = createDrafts(storage);
  drafts.sent("s", sending(1, "one"));
  drafts.sent("s", sending(2, "two"));
  drafts.sent("s", sending(1, "one"));
  drafts.settled("s", sending(2, "two"));
  const [left, ...more] = createDrafts(storage).left("s");
  assert.deepEqual(more, []);
  assert.deepEqual([left.key, left.blocks[0].text, left.after, left.unsure], [1, "one", 3, true]);
  assert.match(left.error, /closed before/);
  assert.deepEqual(drafts.left("other"), []);
  drafts.settled("s", { ...sending(1, "one"), at: 6 });
  assert.equal(drafts.left("s").length, 1);
  drafts.settled("s", sending(1, "one"));
  assert.deepEqual(Object.keys(storage), []);
});

test("drafts and prompts are forgotten together, and nothing else", () => {
  const storage = new Items();
  const drafts = createDrafts(storage);
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
  const drafts = createDrafts(storage);
  drafts.set("s", "x".repeat(100_000));
  drafts.set("s", "x".repeat(100_001));
  assert.equal(drafts.get("s").length, 100_000);
  drafts.set("s", "");
  drafts.sent("s", sending(1, "x".repeat(100_000)));
  assert.deepEqual(Object.keys(storage), []);
});

test("where the browser keeps nothing there is nothing, and no failure", () => {
  const fail = () => assert.fail();
  for (const storage of [null, { getItem: fail, setItem: fail, removeItem: fail }, { getItem: () => "{" }]) {
    const drafts = createDrafts(storage);
    drafts.set("s", "x");
    drafts.sent("s", sending(1, "one"));
    drafts.settled("s", sending(1, "one"));
    drafts.forget();
    assert.deepEqual(drafts.left("s"), []);
  }
});
