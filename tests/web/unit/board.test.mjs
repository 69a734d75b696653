import assert from "node:assert/strict";
import { test } from "node:test";
import { columnsOf } from "../../../acp_gateway/web/app/state/board_columns.js";

const session = (id, members) => ({ id, status: "completed", waiting: [], live: true, mayControl: true, ...members });

test("the board has what needs the user, what works, what is ready and what has ended", () => {
  const columns = columnsOf([
    session("asks", { status: "waiting", turn: true }),
    session("works", { status: "running", turn: true }),
    session("starts", { status: "initializing", live: false }),
    session("asks others", { status: "waiting", turn: true, mayControl: false }),
    session("ready"),
    session("failed", { status: "error" }),
    session("past", { status: "exited", live: false }),
    session("archived", { archived: true }),
  ]);
  assert.deepEqual(
    columns.map(({ title, sessions }) => [title, sessions.map(({ id }) => id)]),
    [
      ["Needs you", ["asks"]],
      ["Working", ["works", "starts", "asks others"]],
      ["Ready", ["ready", "failed"]],
      ["Ended", ["past"]],
    ],
  );
});
