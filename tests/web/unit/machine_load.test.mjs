import assert from "node:assert/strict";
import { test } from "node:test";
import { freeText, rowsOf } from "../../../acp_gateway/web/app/state/machine_load.js";

const GIB = 2 ** 30;
const held = { memory: 70 * GIB, agentType: "claude", sessionId: "s1", title: "Train\u202e" };
const gpus = [
  { name: "H100", use: 0.97, total: 80 * GIB, used: 71 * GIB, temperature: 66, holders: [held, { memory: null }] },
  { name: "H100", use: 0.01, total: 80 * GIB, used: GIB, temperature: 30, holders: [{ memory: GIB, agentType: "claude" }] },
  { name: "Old", use: null, total: null, used: null, temperature: null, holders: [] },
];
const disks = [{ path: "/srv", total: 4096 * GIB, free: 1024 * GIB }];
const load = { cpus: 64, busy: 12.4, memory: { total: 512 * GIB, free: 128 * GIB }, disks, gpus, problem: null };

test("what is free is said in a few words, GPUs first", () => {
  assert.equal(freeText(load), "2 of 3 GPUs, 52 of 64 CPUs, 128 GiB memory free");
  assert.equal(freeText({ ...load, gpus: [], memory: null, busy: 99 }), "0 of 64 CPUs free");
});

test("a machine has a row for processors, memory, each disk and each GPU", () => {
  const rows = rowsOf("", load);
  assert.deepEqual(
    rows.map(({ label, text, part }) => [label, text, part]),
    [
      ["Processors", "12.4 of 64 busy", 12.4 / 64],
      ["Memory", "128 GiB of 512 GiB free", 0.75],
      ["Disk of /srv", "1.0 TiB of 4.0 TiB free", 0.75],
      ["GPU 0, H100", "in use, 97 %, 71 GiB of 80 GiB, 66 °C", 0.97],
      ["GPU 1, H100", "free, 1 %, 1.0 GiB of 80 GiB, 30 °C", 0.01],
      ["GPU 2, Old", "free", null],
    ],
  );
});

test("what holds a GPU leads to its session, by the name that it has here", () => {
  const [, , , busy, idle] = rowsOf("gpu1", load);
  assert.deepEqual(busy.holders.map(({ sessionId }) => sessionId), ["gpu1/s1", null]);
  assert.ok(busy.holders[0].text.endsWith(" · 70 GiB"));
  assert.ok(!busy.holders[0].text.includes("\u202e"));
  assert.deepEqual([busy.holders[1].text, idle.holders[0].text], ["other programs", "claude · 1.0 GiB"]);
  assert.equal(rowsOf("", load)[3].holders[0].sessionId, "s1");
});

test("more processes than processors are no more than all of them", () => {
  assert.equal(rowsOf("", { ...load, busy: 200 })[0].part, 1);
});

test("memory whose free part is not told has its size", () => {
  assert.deepEqual(rowsOf("", { ...load, memory: { total: GIB, free: null } })[1].part, null);
});
