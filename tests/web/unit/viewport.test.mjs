import assert from "node:assert/strict";
import { test } from "node:test";
import { followViewport } from "../../../acp_gateway/web/app/views/page/viewport.js";

function fakeWindow(height) {
  const listeners = [];
  const styles = {};
  const scrolls = [];
  const visualViewport = { height, scale: 1, offsetTop: 0, addEventListener: (_, listener) => listeners.push(listener) };
  const document = { documentElement: { style: { setProperty: (name, value) => (styles[name] = value) } } };
  const change = (members) => {
    Object.assign(visualViewport, members);
    for (const listener of listeners) listener();
  };
  return { window: { visualViewport, document, scrollTo: (...place) => scrolls.push(place) }, styles, scrolls, change };
}

test("the page is as high as what a keyboard leaves of it, and back at its top", () => {
  const { window, styles, scrolls, change } = fakeWindow(800);
  followViewport(window);
  assert.deepEqual(styles, { "--visible-height": "800px" });
  change({ height: 460, offsetTop: 300 });
  assert.equal(styles["--visible-height"], "460px");
  assert.deepEqual(scrolls[0], [0, 0]);
  change({ height: 800, offsetTop: 0 });
  assert.equal(styles["--visible-height"], "800px");
});

test("zooming in does not make the page smaller", () => {
  const { window, styles, change } = fakeWindow(800);
  followViewport(window);
  change({ height: 400, scale: 2, offsetTop: 100 });
  assert.equal(styles["--visible-height"], "800px");
});

test("a browser without a visual viewport is left alone", () => {
  followViewport({ visualViewport: null });
});
