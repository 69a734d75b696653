import assert from "node:assert/strict";
import { test } from "node:test";

import { watchSigns } from "../../../acp_gateway/web/app/net/signs.js";

/** A window with a clock by hand. */
function scene() {
  const document = Object.assign(new EventTarget(), { hidden: false });
  let look = () => {};
  const window = Object.assign(new EventTarget(), { document, setInterval: (action) => (look = action) });
  const made = { window, document, now: 0, wakes: 0, look: () => look() };
  const wake = () => (made.wakes += 1);
  watchSigns(window, wake, () => made.now);
  return made;
}

test("events of the network and of the page's return are signs, while the page is visible", () => {
  const state = scene();
  for (const name of ["online", "pageshow"]) state.window.dispatchEvent(new Event(name));
  state.document.dispatchEvent(new Event("visibilitychange"));
  assert.equal(state.wakes, 3);
  state.document.hidden = true;
  state.window.dispatchEvent(new Event("online"));
  state.document.dispatchEvent(new Event("visibilitychange"));
  assert.equal(state.wakes, 3);
});

test("a jump of the clock is a sign, a late timer is not", () => {
  const state = scene();
  state.now = 4_900;
  state.look();
  assert.equal(state.wakes, 0);
  state.now += 5_001;
  state.look();
  assert.equal(state.wakes, 1);
  state.now += 2_000;
  state.look();
  assert.equal(state.wakes, 1);
});
