// Agents and clients of both versions of the protocol, made with the TypeScript SDK, for tests.
//
//   node typescript_versions.mjs MODULES agent KIND WIRE           KIND is `v1`, `v2` or `router`
//   node typescript_versions.mjs MODULES client VERSION WIRE TO…   TO is a URL of `ws` or `http`, or a command to run
//
// MODULES is where npm has installed the SDK. Each message that goes in or out gets a line in the file WIRE, which
// has the number of the process in its name for agents. The client is directed as in sdk_clients.py, with its token in TOKEN. The first text of a prompt says what the agents do: `all`
// tells updates of many kinds and asks for a permission, `wait` lasts until the session is cancelled, others come back.
import { spawn } from "node:child_process";
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [modules, role, kind, wire, ...to] = process.argv.slice(2);
const from = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(from.resolve(name)));
const [v1, v2] = [await load("@agentclientprotocol/sdk"), await load("@agentclientprotocol/sdk/experimental/v2")];

// Wires

function noted(stream) {
  const note = (way) =>
    new TransformStream({
      transform(message, sink) {
        appendFileSync(role === "agent" ? `${wire}-${process.pid}` : wire, `${JSON.stringify({ way, message })}\n`);
        sink.enqueue(message);
      },
    });
  const out = note("out");
  out.readable.pipeTo(stream.writable).catch(() => {});
  return { readable: stream.readable.pipeThrough(note("in")), writable: out.writable };
}

const lines = (output, input) => noted(v1.ndJsonStream(Writable.toWeb(output), Readable.toWeb(input)));

// Agents

const OPTIONS = [
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];
const MODES = ["ask", "code"];
const text = (words) => ({ type: "text", text: words });
const bytes = (words) => Buffer.from(words).toString("base64");
const PATCH = "diff --git a/w/a b/w/a\n--- a/w/a\n+++ b/w/a\n@@ -1 +1 @@\n-x\n+y\n";
const entries = [{ content: "think", priority: "high", status: "pending" }];

// What both agents do: sessions with their histories, turns, cancels.
class Sessions {
  #histories = new Map();
  #cancels = new Map();
  #opened = 0;

  open() {
    const name = `s-${process.pid}-${this.#opened++}`;
    this.#histories.set(name, []);
    return name;
  }

  list = () => ({ sessions: [...this.#histories.keys()].map((sessionId) => ({ sessionId, cwd: "/" })) });

  remove({ sessionId }) {
    this.#histories.delete(sessionId);
    return {};
  }

  count = (sessionId) => this.#histories.get(sessionId).length;

  async tell(client, sessionId, update) {
    if (update.sessionUpdate !== "state_update") this.#histories.get(sessionId).push(update);
    await client.notify("session/update", { sessionId, update });
  }

  async replay(client, sessionId) {
    for (const update of this.#histories.get(sessionId)) await client.notify("session/update", { sessionId, update });
  }

  async prompt(sessionId, prompt, acts) {
    if (prompt[0].text === "all") await acts.all();
    else await acts.say(prompt[0].text);
    if (prompt[0].text !== "wait") return "end_turn";
    await new Promise((resolve) => this.#cancels.set(sessionId, resolve));
    return "cancelled";
  }

  cancel = (sessionId) => this.#cancels.get(sessionId)?.();
}

function oldAgent() {
  const sessions = new Sessions();
  const modes = { currentModeId: "ask", availableModes: MODES.map((id) => ({ id, name: id })) };
  const agentCapabilities = { loadSession: true, sessionCapabilities: { list: {}, resume: {}, close: {}, delete: {} } };
  return v1
    .agent({ name: "old" })
    .onRequest("initialize", () => ({ protocolVersion: 1, agentInfo: { name: "old", version: "1" }, agentCapabilities }))
    .onRequest("session/new", () => ({ sessionId: sessions.open(), modes }))
    .onRequest("session/load", async ({ params, client }) => {
      await sessions.replay(client, params.sessionId);
      return { modes };
    })
    .onRequest("session/resume", () => ({ modes }))
    .onRequest("session/list", () => sessions.list())
    .onRequest("session/close", () => ({}))
    .onRequest("session/delete", ({ params }) => sessions.remove(params))
    .onRequest("session/set_mode", () => ({}))
    .onNotification("session/cancel", ({ params }) => sessions.cancel(params.sessionId))
    .onRequest("session/prompt", async ({ params: { sessionId, prompt }, client }) => {
      const tell = (sessionUpdate, rest) => sessions.tell(client, sessionId, { sessionUpdate, ...rest });
      const say = (words) => tell("agent_message_chunk", { content: text(words) });
      async function all() {
        const toolCallId = `t${sessions.count(sessionId)}`;
        const diff = { type: "diff", path: "/w/a", oldText: "x\n", newText: "y\n" };
        await tell("agent_thought_chunk", { content: text("hm") });
        await say("hel");
        await say("lo");
        await tell("tool_call", { toolCallId, title: "Edit", kind: "edit", locations: [{ path: "/w/a", line: 1 }] });
        const toolCall = { toolCallId, title: "May I?" };
        const asked = await client.request("session/request_permission", { sessionId, toolCall, options: OPTIONS });
        await tell("tool_call_update", { toolCallId, status: "completed", content: [diff] });
        await tell("plan", { entries });
        await tell("available_commands_update", { availableCommands: [{ name: "c", description: "d", input: { hint: "h" } }] });
        await tell("current_mode_update", { currentModeId: "code" });
        await tell("session_info_update", { title: "a title" });
        await tell("usage_update", { used: 1, size: 2 });
        await say(asked.outcome.optionId ?? asked.outcome.outcome);
      }
      for (const content of prompt) await tell("user_message_chunk", { content });
      return { stopReason: await sessions.prompt(sessionId, prompt, { say, all }) };
    });
}

function newAgent() {
  const sessions = new Sessions();
  const options = MODES.map((value) => ({ value, name: value }));
  const mode = (currentValue) => [{ configId: "mode", name: "Mode", category: "mode", type: "select", currentValue, options }];
  const info = { name: "new", version: "1" };
  return v2
    .agent({ name: "new" })
    .onRequest("initialize", () => ({ protocolVersion: 2, info, capabilities: { session: { prompt: {}, mcp: {}, delete: {} } } }))
    .onRequest("session/new", () => ({ sessionId: sessions.open(), configOptions: mode("ask") }))
    .onRequest("session/resume", async ({ params: { sessionId, replayFrom }, client }) => {
      if (replayFrom) await sessions.replay(client, sessionId);
      await sessions.tell(client, sessionId, { sessionUpdate: "state_update", state: "idle" });
      return { configOptions: mode("ask") };
    })
    .onRequest("session/list", () => sessions.list())
    .onRequest("session/close", () => ({}))
    .onRequest("session/delete", ({ params }) => sessions.remove(params))
    .onRequest("session/set_config_option", ({ params }) => ({ configOptions: mode(params.value) }))
    .onNotification("session/cancel", ({ params }) => sessions.cancel(params.sessionId))
    .onRequest("session/prompt", ({ params: { sessionId, prompt }, client }) => {
      const number = sessions.count(sessionId);
      const tell = (sessionUpdate, rest) => sessions.tell(client, sessionId, { sessionUpdate, ...rest });
      const state = (name, rest) => tell("state_update", { state: name, ...rest });
      const say = (words, end = "") => tell("agent_message", { messageId: `a${number}${end}`, content: [text(words)] });
      async function all() {
        const [toolCallId, terminalId] = [`t${number}`, `x${number}`];
        const diff = { type: "diff", changes: [{ operation: "modify", path: "/w/a" }], patch: { format: "git_patch", text: PATCH } };
        await tell("agent_thought", { messageId: `h${number}`, content: [text("hm")] });
        await tell("agent_message_chunk", { messageId: `a${number}`, content: text("hel") });
        await say("hello");
        await tell("tool_call_update", { toolCallId, title: "Run", kind: "execute", content: [{ type: "terminal", terminalId }, diff] });
        await tell("terminal_output_chunk", { terminalId, data: bytes("out\n") });
        await state("requires_action");
        const subject = { type: "command", command: "ls", cwd: "/w", toolCallId };
        const question = { sessionId, title: "May I?", description: "why", subject, options: OPTIONS };
        const asked = await client.request("session/request_permission", question);
        await state("running");
        await tell("terminal_update", { terminalId, exitStatus: { exitCode: 3 } });
        await tell("tool_call_content_chunk", { toolCallId, content: { type: "content", content: text("more") } });
        await tell("tool_call_update", { toolCallId, status: "completed" });
        await tell("plan_update", { plan: { type: "items", planId: "p", entries } });
        await tell("config_option_update", { configOptions: mode("code") });
        await tell("notice", { severity: "warning", title: "slow" });
        await say(asked.outcome.optionId ?? asked.outcome.outcome, "-end");
      }
      async function turn() {
        await tell("user_message", { messageId: `u${number}`, content: prompt });
        await state("running");
        await state("idle", { stopReason: await sessions.prompt(sessionId, prompt, { say, all }) });
      }
      setImmediate(turn);
      return { messageId: `u${number}` };
    });
}

// Clients

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

// The stream to the gateway, and what ends it.
async function opened(url) {
  const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
  if (url.startsWith("http")) {
    const { createHttpStream } = await load("@agentclientprotocol/sdk/experimental/http-client");
    return [noted(createHttpStream(url, { headers })), () => process.exit()];
  }
  const { createWebSocketStream } = await load("@agentclientprotocol/sdk/experimental/ws-client");
  const { default: WebSocket } = await load("ws");
  return [noted(createWebSocketStream(url, { headers, WebSocket })), () => process.exit()];
}

function started([program, ...options]) {
  const env = { ...process.env, ACP_GATEWAY_TOKEN: process.env.TOKEN };
  const shim = spawn(program, options, { stdio: ["pipe", "pipe", "ignore"], env });
  return [lines(shim.stdin, shim.stdout), () => shim.stdin.end()];
}

async function serveClient() {
  let decide;
  const decision = new Promise((resolve) => (decide = resolve));
  const [stream, end] = to.length > 1 ? started(to) : await opened(to[0]);
  const connection = (kind === "v1" ? v1 : v2)
    .client({ name: "interop" })
    .onNotification("session/update", ({ params }) => say({ update: params }))
    .onRequest("session/request_permission", async ({ params, signal }) => {
      say({ asked: params.title ?? params.toolCall.title, about: params.subject ?? params.toolCall });
      const withdrawn = new Promise((resolve) => signal?.addEventListener("abort", () => resolve(undefined)));
      const optionId = await Promise.race([decision, withdrawn]);
      return { outcome: optionId ? { outcome: "selected", optionId } : { outcome: "cancelled" } };
    })
    .connect(stream);
  const request = ({ id, request, params }) =>
    connection.agent.request(request, params).then(
      (result) => say({ id, result: result ?? null }),
      (error) => say({ id, error: String(error?.message ?? error) }),
    );
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    if ("request" in command) void request(command);
    else if ("notify" in command) await connection.agent.notify(command.notify, command.params);
    else decide(command.decide);
  }
  connection.close();
  end();
}

if (role === "client") {
  await serveClient();
} else {
  const made = { v1: oldAgent, v2: newAgent, router: () => v2.agentProtocolRouter().withV1(oldAgent()).withV2(newAgent()) };
  made[kind]().connect(lines(process.stdout, process.stdin));
}
