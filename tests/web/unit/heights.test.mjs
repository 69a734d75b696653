import assert from "node:assert/strict";
import { test } from "node:test";
import { Heights } from "../../../acp_gateway/web/app/views/transcript/heights.js";

const blocks = (from, to) => Array.from({ length: to - from }, (_, i) => ({ key: `b${from + i}` }));

test("blocks that were never measured have the estimated height", () => {
  const heights = new Heights(() => 10);
  heights.update(blocks(0, 5));
  assert.equal(heights.total, 50);
  assert.deepEqual([0, 9.9, 10, 49, 50, 1000, -5].map((y) => heights.at(y)), [0, 0, 1, 4, 4, 4, 0]);
});

test("a measured block moves those below it", () => {
  const heights = new Heights(() => 10);
  heights.update(blocks(0, 5));
  assert.equal(heights.measure(1, 30), true);
  assert.equal(heights.measure(1, 30), false);
  assert.deepEqual([0, 1, 2, 5].map((i) => heights.top(i)), [0, 10, 40, 70]);
  assert.equal(heights.at(39), 1);
});

test("blocks appended to the same array keep the sums above them", () => {
  const heights = new Heights(() => 10);
  const list = blocks(0, 3);
  heights.update(list);
  heights.measure(0, 25);
  list.push(...blocks(3, 200));
  heights.update(list);
  assert.equal(heights.length, 200);
  assert.equal(heights.total, 25 + 199 * 10);
});

test("blocks put before the others keep the measured heights by their keys", () => {
  const heights = new Heights(() => 10);
  heights.update(blocks(5, 10));
  heights.measure(0, 40);
  heights.update(blocks(0, 10));
  assert.equal(heights.find("b5"), 5);
  assert.equal(heights.top(6) - heights.top(5), 40);
  assert.equal(heights.total, 9 * 10 + 40);
});

test("another list replaces the first one", () => {
  const heights = new Heights(() => 10);
  heights.update(blocks(0, 50));
  heights.update(blocks(100, 102));
  assert.equal(heights.total, 20);
  assert.equal(heights.find("b0"), undefined);
  heights.update([]);
  assert.equal(heights.total, 0);
  assert.equal(heights.at(0), 0);
});

test("a growing last block of 100,000 costs nothing above it", () => {
  const heights = new Heights(() => 10);
  heights.update(blocks(0, 100_000));
  assert.equal(heights.total, 1_000_000);
  heights.measure(99_999, 11);
  assert.equal(heights.valid, 100_000);
  assert.equal(heights.total, 1_000_001);
});
