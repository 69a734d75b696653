import assert from "node:assert/strict";
import { test } from "node:test";

import { needsYou, orderOf, waitingCount } from "../../../acp_gateway/web/app/state/sessions.js";

const session = (id, more = {}) => ({
  id,
  status: "completed",
  updatedAt: null,
  createdAt: null,
  waiting: [],
  ...more,
});
const map = (...list) => new Map(list.map((one) => [one.id, one]));

test("what waits for a person comes first, then what runs, then the newest", () => {
  const day = (n) => `2026-01-0${n}T00:00:00Z`;
  const sessions = map(
    session("old", { updatedAt: day(1) }),
    session("new", { updatedAt: day(5) }),
    session("created", { createdAt: day(3) }),
    session("running", { status: "running", updatedAt: day(1) }),
    session("turn", { turn: true, updatedAt: day(2) }),
    session("waiting", { status: "waiting", updatedAt: day(1) }),
    session("b"),
    session("a"),
  );
  assert.deepEqual(orderOf(sessions), ["waiting", "turn", "running", "new", "created", "old", "a", "b"]);
});

test("an open question needs a person whatever the status says", () => {
  const asks = session("x", { status: "running", waiting: [{ method: "session/request_permission" }] });
  assert.ok(needsYou(asks));
  assert.ok(!needsYou(session("y", { status: "running" })));
  assert.ok(!needsYou({ id: "z", status: "completed" }));
  assert.equal(waitingCount(map(asks, session("y"), session("z", { status: "waiting", archived: true }))), 1);
});
