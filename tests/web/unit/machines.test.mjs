import assert from "node:assert/strict";
import { test } from "node:test";

import { agentText, ALL, awayText, keepChoice, keptChoice, machinesOf, machineText, onMachine } from "../../../acp_gateway/web/app/state/machines.js";

const SINCE = "2026-11-23T17:00:00Z";
const own = { id: "1", machine: null };
const one = { id: "gpu1/1", machine: "gpu1" };
const two = { id: "gpu2/1", machine: "gpu2", unreachableSince: SINCE };

test("machines are the nodes by name, then this one; without nodes there is none to choose", () => {
  const names = (...args) => machinesOf(...args).map(({ name }) => name);
  assert.deepEqual(names([own, two, one], []), ["gpu1", "gpu2", ""]);
  assert.deepEqual(names([one], []), ["gpu1"]);
  assert.deepEqual(names([], [{ name: "gpu2/a", machine: "gpu2" }, { name: "a", machine: null }]), ["gpu2", ""]);
  assert.deepEqual(names([own, { id: "2" }], [{ name: "a" }]), []);
});

test("a machine is away if the latest of its sessions says so", () => {
  assert.deepEqual(machinesOf([two], []), [{ name: "gpu2", unreachableSince: SINCE }]);
  const agents = [{ name: "gpu2/a", machine: "gpu2", unreachableSince: SINCE }];
  assert.equal(machinesOf([], agents)[0].unreachableSince, SINCE);
  assert.equal(machinesOf([{ ...two, unreachableSince: undefined }], agents)[0].unreachableSince, null);
  const now = Date.parse("2026-11-23T17:12:00Z");
  assert.equal(awayText(SINCE, now), "away for 12 min");
  assert.equal(awayText(SINCE, now - 3_600_000), "away");
  assert.equal(awayText("soon", now), "away");
  assert.equal(awayText(undefined, now), null);
});

test("sessions of the chosen machine are shown, and all where the machine is gone", () => {
  const sessions = [own, one, two];
  const machines = machinesOf(sessions, []);
  assert.deepEqual(onMachine(sessions, "gpu1", machines), [one]);
  assert.deepEqual(onMachine(sessions, "", machines), [own]);
  assert.equal(onMachine(sessions, ALL, machines), sessions);
  assert.equal(onMachine(sessions, "gpu9", machines), sessions);
  assert.equal(onMachine([own], "", []).length, 1);
});

test("names are for a person", () => {
  assert.equal(machineText("gpu1"), "gpu1");
  assert.equal(machineText(null), "This machine");
  assert.equal(machineText("a\u202eb\nc").includes("\u202e"), false);
  const agents = [{ name: "gpu1/a", title: "gpu1/a" }, { name: "a", title: "An agent" }];
  assert.equal(agentText({ agentType: "gpu1/a", machine: "gpu1" }, agents), "a");
  assert.equal(agentText({ agentType: "gpu2/b", machine: "gpu2" }, agents), "b");
  assert.equal(agentText({ agentType: "a" }, agents), "An agent");
});

test("the choice is kept, as far as the browser keeps anything", () => {
  const kept = new Map();
  const storage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
  assert.equal(keptChoice(storage), ALL);
  for (const choice of ["gpu1", "", ALL]) {
    keepChoice(storage, choice);
    assert.equal(keptChoice(storage), choice);
  }
  const refuses = () => {
    throw new Error("no");
  };
  keepChoice({ setItem: refuses }, "gpu1");
  assert.equal(keptChoice({ getItem: refuses }), ALL);
  assert.equal(keptChoice(null), ALL);
});
