import assert from "node:assert/strict";
import { test } from "node:test";

import { makeRoute, parseRoute } from "../../../acp_gateway/web/app/route/route.js";

const LIST = { code: null, sessionId: null, requestId: null, agent: null, changes: false, board: false, at: null, beside: null };

test("an empty fragment and an unknown one are the list", () => {
  for (const hash of [
    "",
    "#",
    "#/",
    "#/x/y",
    "#s/1",
    "#/s/",
    "#/s//r/1",
    "#top",
    "#acpgw_x",
    "#acpgwp_",
    "#acpgwp_a b",
  ]) {
    assert.deepEqual(parseRoute(hash), LIST, hash);
  }
});

test("a session and its question are read", () => {
  assert.deepEqual(parseRoute("#/s/ses_1"), { ...LIST, sessionId: "ses_1" });
  assert.deepEqual(parseRoute("#/s/ses_1/r/0"), { ...LIST, sessionId: "ses_1", requestId: "0" });
});

test("the changes of a session are read and made", () => {
  assert.deepEqual(parseRoute("#/s/ses_1/changes"), { ...LIST, sessionId: "ses_1", changes: true });
  assert.equal(makeRoute({ sessionId: "a/b", changes: true }), "#/s/a%2Fb/changes");
  assert.deepEqual(parseRoute("#/board"), { ...LIST, board: true });
  assert.deepEqual(parseRoute("#/new/changes"), { ...LIST, agent: "changes" });
});

test("the place of an update is read and made", () => {
  assert.deepEqual(parseRoute("#/s/a/u/42"), { ...LIST, sessionId: "a", at: 42 });
  for (const other of ["", "0", "-1", "x", "1".repeat(16)]) assert.equal(parseRoute(`#/s/a/u/${other}`).at, null);
  assert.equal(makeRoute({ sessionId: "a", at: 42 }), "#/s/a/u/42");
});

test("an agent for a new session is read, also behind a sign-in code", () => {
  assert.deepEqual(parseRoute("#/new/open%20code"), { ...LIST, agent: "open code" });
  assert.deepEqual(parseRoute("#acpgwp_x/new/a"), { ...LIST, code: "acpgwp_x", agent: "a" });
  assert.deepEqual(parseRoute("#/new/"), LIST);
  assert.equal(makeRoute({ agent: "a/b" }), "#/new/a%2Fb");
});

test("a sign-in code may be followed by a session", () => {
  assert.deepEqual(parseRoute("#acpgwp_Ab-9_"), { ...LIST, code: "acpgwp_Ab-9_" });
  assert.deepEqual(parseRoute("#acpgwp_Ab-9_/s/x"), { ...LIST, code: "acpgwp_Ab-9_", sessionId: "x" });
});

test("a broken escape and a fragment beyond the limit are the list", () => {
  assert.deepEqual(parseRoute("#/s/%"), LIST);
  assert.deepEqual(parseRoute("#/s/" + "a".repeat(2048)), LIST);
});

test("any id survives a fragment, and a code is never part of one", () => {
  for (const id of ["a/b", "a b", "%", "#", "../..", "é\u{1f600}", "?x=1&y", "acpgwp_x"]) {
    assert.equal(parseRoute(makeRoute({ sessionId: id })).sessionId, id);
    assert.deepEqual(parseRoute(makeRoute({ sessionId: "s", requestId: id })), {
      ...LIST,
      sessionId: "s",
      requestId: id,
    });
  }
  assert.equal(makeRoute(), "#/");
  assert.equal(makeRoute({ sessionId: "s", requestId: 0 }), "#/s/s/r/0");
});

test("a session of a node, and an id with any characters, is one part of the address", () => {
  for (const sessionId of ["gpu1/7f3a9c", "gpu1/a/b", "gpu1/%2F", "100%", "#/s/x", "gpu1/r/1", "gpü/✓ ?&", "a\\b"]) {
    const hash = makeRoute({ sessionId, requestId: "r/1" });
    assert.equal(hash.split("/").length, 5);
    assert.deepEqual(parseRoute(hash), { ...LIST, sessionId, requestId: "r/1" });
    assert.equal(parseRoute(`#acpgwp_x${makeRoute({ sessionId }).slice(1)}`).sessionId, sessionId);
  }
});
