import assert from "node:assert/strict";
import { test } from "node:test";

import { placesOf } from "../../../acp_gateway/web/app/state/queue_order.js";

const prompt = (promptId, mayChange = true) => ({ promptId, mayChange });

test("a prompt moves before its neighbour, or behind it", () => {
  const places = placesOf([prompt("a"), prompt("b"), prompt("c")]);
  assert.deepEqual(
    [...places],
    [
      ["a", { up: null, down: "c" }],
      ["b", { up: "a", down: "" }],
      ["c", { up: "b", down: null }],
    ],
  );
});

test("prompts that may not be moved are passed over", () => {
  const places = placesOf([prompt("a"), prompt("x", false), prompt("b"), prompt("y", false)]);
  assert.deepEqual([places.get("x"), places.get("a"), places.get("b")], [undefined, { up: null, down: "" }, { up: "a", down: null }]);
});

test("prompts that wait for a time or a person have no place in the queue", () => {
  const places = placesOf([prompt("a"), { ...prompt("x"), state: "timed" }, { ...prompt("y"), state: "held" }]);
  assert.deepEqual([...places], [["a", { up: null, down: null }]]);
});

test("of an empty queue nothing is moved", () => {
  assert.equal(placesOf([]).size, 0);
});
