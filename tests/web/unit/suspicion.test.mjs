/** When a connection of the page is in doubt. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Suspicion } from "../../../acp_gateway/web/app/net/link.js";

/** Sends two probes that get no answer, and returns the ms until the doubt. */
function patience(suspicion, now) {
  suspicion.heard();
  suspicion.sent(now);
  suspicion.sent(now);
  return suspicion.dueIn(now);
}

test("a connection is in doubt after two probes without an answer", () => {
  const suspicion = new Suspicion();
  suspicion.sent(0);
  assert.equal(suspicion.dueIn(0), null);
  suspicion.sent(1000);
  assert.equal(suspicion.dueIn(1000), 250);
  assert.equal(suspicion.dueIn(1250), 0);
  suspicion.heard();
  assert.equal(suspicion.dueIn(1250), null);
});

test("the patience grows while connections die over which nothing was answered", () => {
  const suspicion = new Suspicion();
  const waited = [0, 1, 2].map((at) => {
    const due = patience(suspicion, at);
    suspicion.replaced(at);
    return due;
  });
  assert.deepEqual(waited, [1250, 5000, 20_000]);
});

test("a connection that has worked is replaced as soon as the first one", () => {
  const suspicion = new Suspicion();
  for (const at of [0, 10_000, 20_000]) {
    suspicion.answered(at, at - 40);
    assert.equal(patience(suspicion, at), 1250);
    suspicion.replaced(at);
  }
});

test("the patience is forgotten after a minute", () => {
  const suspicion = new Suspicion();
  suspicion.replaced(0);
  assert.equal(patience(suspicion, 60_000), 5000);
  assert.equal(patience(suspicion, 60_001), 1250);
});
