import assert from "node:assert/strict";
import { test } from "node:test";

import { leftText, remarksIn, removedText, unsentText } from "../../../acp_gateway/web/app/state/unsent.js";

const sessions = new Map(["a", "b", "c", "d", "e"].map((id) => [id, { id, title: id.toUpperCase() }]));
const left = (id, prompts, typed = 0) => ({ id, prompts, typed });

test("a signed-out browser is told how much is kept, for which sessions, and who sees it again", () => {
  const rest = (it) => `, and shown when the same identity signs in. Another one that signs in removes ${it}.`;
  assert.equal(leftText([left("a", 2, 1), left("b", 1)], [], 0, sessions), `3 unconfirmed prompts and 1 unsent draft are kept in this browser for 30 days, in “A” and “B”${rest("them")}`);
  assert.equal(leftText([left("", 0, 1)], [], 0, sessions), `1 unsent draft is kept in this browser for 30 days${rest("it")}`);
  assert.equal(leftText([left("a", 1)], [], 0, new Map()), `1 unconfirmed prompt is kept in this browser for 30 days${rest("it")}`);
  assert.equal(leftText([], [], 0, sessions), null);
});

test("a signed-out browser is told of prompts that it could not keep, and of remarks that it has removed", () => {
  assert.equal(leftText([], ["a", "a"], 0, sessions), "2 prompts could be neither confirmed nor kept, in “A”.");
  assert.match(leftText([left("b", 1)], ["a"], 1, sessions), /^1 unconfirmed prompt is kept .* 1 prompt could be .*, in “A”\. 1 remark on changes was removed\.$/);
  assert.equal(leftText([], [], 2, sessions), "2 remarks on changes were removed.");
});

test("remarks are counted that have words, of all sessions", () => {
  const remark = (text) => ({ id: 1, path: "a", edit: "1", text, lines: [{ text: "x" }] });
  const kept = { "remarks a": JSON.stringify([remark("Shorter."), remark(" ")]), "remarks b": JSON.stringify([remark("Why?")]), "remarks c": "{", other: "[]" };
  const storage = Object.defineProperty({ ...kept }, "getItem", { value: (name) => kept[name] ?? null });
  assert.deepEqual([storage, null, {}, { "remarks a": "" }].map(remarksIn), [2, 0, 0, 0]);
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
