import assert from "node:assert/strict";
import { test } from "node:test";
import {
  changeText,
  changeWords,
  connectionText,
  costText,
  exitWords,
  grouped,
  matches,
  needsYou,
  presenceText,
  saidText,
  statusOf,
  silenceText,
  toastText,
  tookText,
  usageText,
} from "../../../acp_gateway/web/app/text/words.js";

const session = (members) => ({ id: "s", status: "completed", waiting: [], live: true, mayControl: true, ...members });
const connection = (members) => ({ phase: "away", since: 1000, waiting: 0, reason: null, ...members });

test("the state of a connection is said in words", () => {
  assert.equal(connectionText(connection({ phase: "connected" }), 0), null);
  assert.equal(connectionText(connection({ phase: "connecting" }), 0), "Connecting…");
  const lost = "No connection for 12 s, trying again.";
  assert.equal(connectionText(connection({}), 2_999), null);
  assert.equal(connectionText(connection({}), 3_000), "No connection for 2 s, trying again.");
  assert.equal(connectionText(connection({}), 13_500), lost);
  assert.equal(connectionText(connection({ waiting: 1 }), 13_000), `${lost} 1 message waits.`);
  assert.match(connectionText(connection({ waiting: 3 }), 121_000), /for 2 min, trying again. 3 messages wait./);
  assert.equal(connectionText(connection({ phase: "ended", reason: "stopped" }), 0), "stopped");
});

test("a page without its gateway tells when what it shows was read", () => {
  const now = new Date(2026, 2, 4, 12, 0).getTime();
  const since = now - 12_000;
  const at = (day, hour) => ({ readAt: new Date(2026, 2, day, hour, 4).getTime() });
  const text = (state) => connectionText({ since, waiting: 0, reason: null, ...state }, now);
  assert.match(text({ phase: "away", ...at(4, 9) }), /^No connection for 12 s, trying again\. What is here was read at \S*9:04[^.]*\.$/);
  assert.match(text({ phase: "connecting", ...at(3, 9) }), /^Connecting… What is here was read on .*3.*9:04/);
  assert.equal(connectionText({ phase: "connecting", since: now - 1999, waiting: 0, ...at(4, 9) }, now), null);
  assert.equal(text({ phase: "connected", ...at(4, 9) }), null);
});

test("it is told how long a tool call ran, once it is over, unless it was short", () => {
  const call = (status, at, until) => tookText({ status, at, until });
  assert.equal(call("completed", 1000, 13_500), "12 s");
  assert.equal(call("failed", 0, 125_000), "2 min");
  assert.equal(call("completed", 0, 999), null);
  assert.equal(call("in_progress", 0, 5000), null);
  assert.equal(call("completed", null, 5000), null);
});

test("the time of what was said has its day unless that is today", () => {
  const at = new Date(2026, 4, 3, 14, 5).getTime();
  assert.equal(saidText(at, new Date(2026, 4, 3, 23, 0).getTime(), "en-GB"), "14:05");
  assert.equal(saidText(at, new Date(2026, 4, 4, 1, 0).getTime(), "en-GB"), "3 May, 14:05");
  assert.equal(saidText(at, new Date(2027, 4, 3).getTime(), "en-GB"), "3 May 2026, 14:05");
  assert.equal(saidText(null, 0), null);
});

test("usage is told in words, with the cost if there is one", () => {
  const cost = { amount: 0.42, currency: "USD" };
  assert.equal(usageText({ used: 62_000, size: 200_000, cost }), "62k of 200k tokens used, 0.42 USD");
  assert.equal(usageText({ used: 1, size: 2, cost: { amount: 0, currency: "USD" } }), "1 of 2 tokens used");
  assert.equal(usageText({ used: 1 }), null);
});

test("a message of the page names its session, if that is known", () => {
  const sessions = new Map([["s", session({ title: "Fix the totals" })]]);
  const text = "bob has decided: allow.";
  assert.equal(toastText({ text, sessionId: "s" }, sessions), "In “Fix the totals”: bob has decided: allow.");
  assert.equal(toastText({ text, sessionId: "t" }, sessions), text);
  assert.equal(toastText({ text, sessionId: null }, sessions), text);
  assert.equal(toastText({ kind: "error", text: "no agent `x`", sessionId: null }, sessions), "No agent x");
  assert.equal(toastText({ kind: "error", text: "no mode `x`", sessionId: "s" }, sessions), "In “Fix the totals”: No mode x");
});

test("what was done to a file and how a terminal has ended are said in words", () => {
  const change = (operation, members) => changeWords({ operation, path: "/w/b", oldPath: "", fileType: "", ...members }, "/w");
  assert.equal(change("move", { oldPath: "/w/a" }), "moved from a");
  assert.equal(change("modify", { fileType: "binary" }), "modified, binary");
  assert.equal(change("_chmod", { fileType: "text" }), "_chmod");
  assert.equal(changeWords(undefined), "");
  const ends = [{ exitCode: 0, signal: null }, { exitCode: null, signal: "SIGTERM" }, { exitCode: null, signal: null }];
  assert.deepEqual(ends.map(exitWords), ["exit code 0", "ended by SIGTERM", null]);
});

test("a session needs the user only if the user may decide", () => {
  const waiting = [{ requestId: 1 }];
  assert.equal(needsYou(session({ waiting })), true);
  assert.equal(needsYou(session({ waiting, mayControl: false })), false);
  assert.equal(needsYou(session({})), false);
});

test("the state of a session is a word or two", () => {
  const text = (members) => statusOf(session(members)).text;
  assert.equal(text({ waiting: [{}] }), "Needs you");
  assert.equal(text({ waiting: [{}, {}] }), "2 questions");
  assert.equal(text({ waiting: [{}], mayControl: false }), "Waits for a decision");
  assert.equal(text({ turn: true }), "Working");
  assert.equal(text({ status: "initializing" }), "Starting");
  assert.equal(text({ status: "error" }), "Error");
  assert.equal(text({ status: "exited" }), "Past");
  assert.equal(text({ status: "exited", exitReason: "process_exit" }), "Agent ended");
  assert.equal(text({}), "Ready");
});

test("presence leaves out the page itself and counts clients that say the same", () => {
  const client = (identity, role, via, more = {}) => ({ identity, role, via, presence: "connected", you: false, ...more });
  assert.equal(presenceText([client("ann", "controller", "browser", { you: true })]), "");
  const others = [
    client("ann", "controller", "editor"),
    client("bob", "observer", "browser"),
    client("bob", "observer", "browser"),
    client("eve", "controller", "", { presence: "away" }),
  ];
  assert.equal(presenceText(others), "ann, editor; bob looks on ×2; eve (away)");
  assert.equal(presenceText(undefined), "");
});

test("the beginning and the end of a turn are announced once, for the same session", () => {
  const idle = session({ turn: false });
  const working = session({ turn: true });
  assert.equal(changeText(null, working), null);
  assert.equal(changeText(idle, working), "The agent works.");
  assert.equal(changeText(working, working), null);
  assert.equal(changeText(working, idle), "The agent is done.");
  assert.equal(changeText(working, session({ status: "error" })), "The turn was stopped by an error.");
  assert.equal(changeText(working, { ...idle, id: "other" }), null);
});

test("sessions are grouped in their order, each once, and empty groups are left out", () => {
  const sessions = [
    session({ id: "a", waiting: [{}] }),
    session({ id: "b" }),
    session({ id: "c", live: false }),
    session({ id: "d" }),
    session({ id: "e", archived: true, waiting: [{}] }),
  ];
  const names = grouped(sessions).map((group) => [group.name, group.sessions.map(({ id }) => id).join("")]);
  assert.deepEqual(names, [["Needs you", "a"], ["Live", "bd"], ["Earlier", "c"], ["Archived", "e"]]);
  assert.deepEqual(grouped([]), []);
});

test("a filter wants every word, in any place and case", () => {
  const one = session({ title: "Fix the Total", agentType: "claude", cwd: "/home/ann/shop" });
  assert.equal(matches(one, "total CLAUDE"), true);
  assert.equal(matches(one, "shop fix"), true);
  assert.equal(matches(one, "total opencode"), false);
});

test("a session whose machine is away has no need of a decision, as none can be made", () => {
  const away = session({ waiting: [{}], unreachableSince: "2026-11-23T17:00:00Z" });
  assert.equal(needsYou(away), false);
  assert.deepEqual(statusOf(away), { name: "away", text: "Away" });
  assert.deepEqual(grouped([away]).map(({ name }) => name), ["Live"]);
});

test("what an agent has cost is told with its currency, nothing is not", () => {
  assert.equal(costText({ cost: { amount: 0.416, currency: "USD" } }), "0.42 USD");
  assert.equal(costText({ cost: { amount: 3 } }), "3.00");
  for (const cost of [undefined, null, { amount: 0, currency: "USD" }, { amount: "3" }]) assert.equal(costText({ cost }), "");
});

test("the silence of a working agent is told from a minute on", () => {
  assert.equal(silenceText(1000, 60_999), null);
  assert.equal(silenceText(1000, 61_000), "No word from the agent for 1 min");
  assert.equal(silenceText(0, 7_300_000), "No word from the agent for 2 h");
});
