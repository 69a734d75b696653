import assert from "node:assert/strict";
import { test } from "node:test";

import { createCopy } from "../../../acp_gateway/web/app/state/copy.js";
import { numbered, said } from "./helpers.mjs";

/** A storage that holds texts up to a length. */
function storageOf(most = 10_000_000) {
  const items = new Map();
  return {
    items,
    getItem: (key) => items.get(key) ?? null,
    setItem: (key, value) => {
      if (value.length > most) throw new Error("full");
      items.set(key, value);
    },
    removeItem: (key) => items.delete(key),
  };
}

const updates = numbered([said("one"), said("two"), said("three")]);
const head = { sessionId: "s", epoch: "e1", older: "more", states: [{ sessionUpdate: "plan" }] };

test("a copy has every update, and the last epoch", () => {
  const storage = storageOf();
  const copy = createCopy(storage);
  copy.begin({ ...head, updates: updates.slice(0, 1) });
  copy.add(updates.slice(1, 2));
  copy.add(updates.slice(2), "e2");
  copy.save();
  assert.deepEqual(createCopy(storage).take("s"), { ...head, epoch: "e2", updates });
});

test("a copy is taken once, and by its own session alone", () => {
  const storage = storageOf();
  for (const [asked, found] of [["other", false], ["s", true]]) {
    const copy = createCopy(storage);
    copy.begin({ ...head, updates });
    copy.save();
    assert.equal(createCopy(storage).take(asked) !== null, found);
    assert.equal(createCopy(storage).take("s"), null);
  }
});

test("nothing is kept without a session, after its end, or after it was forgotten", () => {
  for (const change of [() => {}, (copy) => copy.begin({ ...head, updates }) ?? copy.end(), (copy) => copy.begin({ ...head, updates }) ?? copy.forget()]) {
    const storage = storageOf();
    const copy = createCopy(storage);
    change(copy);
    copy.add(updates);
    copy.save();
    assert.equal(storage.items.size, 0);
  }
});

test("a transcript that is too long, or for which there is no room, is not kept", () => {
  for (const [storage, size] of [[storageOf(), 2_000_001], [storageOf(1000), 2000]]) {
    const copy = createCopy(storage);
    copy.begin({ ...head, updates });
    copy.add(numbered([said("x".repeat(size))], 4));
    copy.save();
    assert.equal(createCopy(storage).take("s"), null);
  }
});

test("a damaged copy does not count, and a browser that keeps nothing does no harm", () => {
  for (const text of ["{", "7", '{"sessionId":"s"}', '{"sessionId":"s","states":[],"updates":{}}']) {
    const storage = storageOf();
    storage.setItem("transcript", text);
    assert.equal(createCopy(storage).take("s"), null);
  }
  const refuse = () => {
    throw new Error("refused");
  };
  for (const storage of [null, { getItem: refuse, setItem: refuse, removeItem: refuse }]) {
    const copy = createCopy(storage);
    copy.begin({ ...head, updates });
    copy.save();
    copy.forget();
    assert.equal(copy.take("s"), null);
  }
});
