import assert from "node:assert/strict";
import { test } from "node:test";
import { portText, readPorts } from "../../../acp_gateway/web/app/text/ports.js";

test("a port is told with its program, without what hides text", () => {
  assert.equal(portText({ port: 6006, program: "tensorboard" }), "6006 · tensorboard");
  assert.equal(portText({ port: 6006, program: "" }), "6006");
  assert.ok(!portText({ port: 6006, program: "a\u202eb" }).includes("\u202e"));
});

test("an answer that is not understood has no ports, and of many the first are shown", () => {
  for (const answer of [null, {}, { ports: 1 }, { ports: [null, { port: "1", program: "" }, { port: 1 }] }])
    assert.deepEqual(readPorts(answer), { ports: [], opens: false });
  const ports = Array.from({ length: 9 }, (_, index) => ({ port: 8000 + index, program: "" }));
  assert.deepEqual(readPorts({ ports, previews: true }), { ports: ports.slice(0, 6), opens: true });
});
