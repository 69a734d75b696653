import assert from "node:assert/strict";
import { test } from "node:test";
import { firstDay, moneyText, partsOf, spentText, sumText } from "../../../acp_gateway/web/app/text/costs.js";

test("currencies are said apart, and little is not nothing", () => {
  assert.equal(moneyText({ EUR: 1.5, USD: 0.004 }), "1.50 EUR + < 0.01 USD");
  assert.equal(moneyText({ USD: 0 }), "");
  assert.equal(moneyText(undefined), "");
  assert.equal(moneyText({ "\u202eUSDX": 1 }).includes("\u202e"), false);
});

test("a session says its money, else its tokens", () => {
  assert.equal(spentText({ costs: { USD: 2 }, tokens: 5000 }), "2.00 USD");
  assert.equal(spentText({ costs: {}, tokens: 5000 }), "5k tokens");
  assert.equal(spentText(null), "");
  assert.equal(sumText({ costs: { USD: 2 }, tokens: 5000, turns: 1 }), "2.00 USD · 5k tokens · 1 turn");
  assert.equal(sumText({ costs: {}, tokens: 0, turns: 2 }), "2 turns");
});

test("bars are of money in one currency, else of tokens", () => {
  const row = (key, costs, tokens) => ({ key, costs, tokens, turns: 1 });
  assert.deepEqual(partsOf([row("a", { USD: 1 }, 9), row("b", { USD: 4 }, 1), row("c", {}, 9)]), [0.25, 1, 0]);
  assert.deepEqual(partsOf([row("a", { USD: 1 }, 9), row("b", { EUR: 4 }, 3)]), [1, 1 / 3]);
  assert.deepEqual(partsOf([row("a", {}, 0)]), [0]);
  assert.deepEqual(partsOf([]), []);
});

test("a period ends today", () => {
  const now = new Date(2026, 2, 1, 23, 59).getTime();
  assert.equal(firstDay(1, now), "2026-03-01");
  assert.equal(firstDay(7, now), "2026-02-23");
});
