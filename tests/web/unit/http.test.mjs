import assert from "node:assert/strict";
import { test } from "node:test";

import { ask, LIMIT, NoAnswer, within } from "../../../acp_gateway/web/app/net/http.js";
import { manualTimers, settle } from "./helpers.mjs";

/** A window whose gateway answers as `fetch` does. */
function scene(fetch) {
  const hand = manualTimers();
  return { window: { fetch, ...hand.timers }, ...hand };
}

/** Never settles, but by the signal. */
const silence = (signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

test("an answer comes whole, and leaves no timer", async () => {
  const asked = [];
  const { window, pending } = scene(async (url, { method }) => {
    asked.push([url, method]);
    return { ok: false, status: 401, text: async () => "no" };
  });
  assert.deepEqual(await ask(window, "./ws", { method: "POST" }), { ok: false, status: 401, text: "no" });
  assert.deepEqual([asked, pending()], [[["./ws", "POST"]], []]);
});

test("a gateway that accepts a request and never answers is given up after the limit, also in mid-answer", async () => {
  const begins = async (_, { signal }) => ({ ok: true, status: 200, text: () => silence(signal) });
  for (const fetch of [(_, { signal }) => silence(signal), begins]) {
    const { window, pass } = scene(fetch);
    const failed = assert.rejects(ask(window, "./login", {}), { name: "NoAnswer", message: "The gateway does not answer." });
    await settle();
    pass(LIMIT);
    await failed;
  }
});

test("what fails by itself fails as it does, and leaves no timer", async () => {
  const { window, pending } = scene(async () => {
    throw new TypeError("away");
  });
  await assert.rejects(ask(window, "./login", {}), TypeError);
  assert.deepEqual(pending(), []);
});

test("what a browser never finishes is waited for within the limit", async () => {
  const { window, pass, pending } = scene();
  assert.equal(await within(window, Promise.resolve(1)), 1);
  await settle();
  assert.deepEqual(pending(), []);
  await assert.rejects(within(window, Promise.reject(new TypeError("no"))), TypeError);
  const failed = assert.rejects(within(window, new Promise(() => {})), NoAnswer);
  pass(LIMIT);
  await failed;
});
