import assert from "node:assert/strict";
import { test } from "node:test";

import { leftText, removedText, unsentText } from "../../../acp_gateway/web/app/unsent.js";

const sessions = new Map(["a", "b", "c", "d", "e"].map((id) => [id, { id, title: id.toUpperCase() }]));
const left = (id, prompts, typed = 0) => ({ id, prompts, typed });

test("a signed-out browser is told how much is not sent, for which sessions, and who sees it again", () => {
  const rest = "kept in this browser for 30 days, and shown when the same identity signs in.";
  assert.equal(leftText([left("a", 2, 1), left("b", 1)], [], sessions), `3 prompts and 1 draft were not sent, in “A” and “B”. They are ${rest}`);
  assert.equal(leftText([left("", 0, 1)], [], sessions), `1 draft was not sent. It is ${rest}`);
  assert.equal(leftText([left("a", 1)], [], new Map()), `1 prompt was not sent. It is ${rest}`);
  assert.equal(leftText([], [], sessions), null);
});

test("a signed-out browser is told of prompts that it could not keep", () => {
  assert.equal(leftText([], ["a", "a"], sessions), "2 prompts could be neither sent nor kept, in “A”.");
  assert.match(leftText([left("b", 1)], ["a"], sessions), /^1 prompt was not sent, in “B”\. .* 1 prompt could be neither sent nor kept, in “A”\.$/);
});

test("after signing in, sessions with prompts that were not sent are named, at most three of them", () => {
  const all = [..."abcde"].map((id) => left(id, 1));
  assert.equal(unsentText(all, sessions), "5 prompts were not sent, in “A”, “B”, “C” and 2 other sessions: see above the input there.");
  assert.equal(unsentText([left("a", 0, 1), left("gone", 1)], sessions), null);
});

test("signing out says how many prompts it has removed", () => {
  assert.deepEqual([Number.NaN, 0, 1, 2].map(removedText), [
    null,
    null,
    "1 prompt that was not sent was removed.",
    "2 prompts that were not sent were removed.",
  ]);
});
