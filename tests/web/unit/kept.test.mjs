// The storage of the browser, which may refuse everything.
import assert from "node:assert/strict";
import { test } from "node:test";

import { keep, read, storageOf } from "../../../acp_gateway/web/app/state/kept.js";

const failing = () => {
  throw new Error("denied");
};

test("a text is kept, read and removed", () => {
  const texts = new Map();
  const storage = {
    getItem: (name) => texts.get(name) ?? null,
    setItem: (name, text) => texts.set(name, text),
    removeItem: (name) => texts.delete(name),
  };
  assert.equal(storageOf(() => storage), storage);
  keep(storage, "a", "b");
  assert.equal(read(storage, "a"), "b");
  keep(storage, "a", null);
  assert.deepEqual([read(storage, "a"), texts.size], [null, 0]);
});

test("a browser that keeps nothing, or no more, is not an error", () => {
  const storage = { getItem: failing, setItem: failing, removeItem: failing };
  assert.equal(storageOf(() => storage), null);
  assert.equal(storageOf(failing), null);
  for (const one of [null, storage]) {
    assert.equal(read(one, "a"), null);
    keep(one, "a", "b");
    keep(one, "a", null);
  }
});
