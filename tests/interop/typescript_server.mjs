// A server of Streamable HTTP made with the TypeScript SDK, for tests. Its agent keeps sessions in files, which another
// process of this program can load.
//
//   node typescript_server.mjs MODULES DIRECTORY PORT. MODULES is where npm has installed the SDK.
//
// It prints its port once it listens. Each text block of a prompt is a command:
//
//   ask        ask for a permission, and say what was decided
//   wait       wait until the session is cancelled
//   …          any other text is said back
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, directory, port] = process.argv.slice(2);
const from = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(from.resolve(name)));

const acp = await load("@agentclientprotocol/sdk");
const { AcpServer } = await load("@agentclientprotocol/sdk/experimental/server");
const { createNodeHttpHandler } = await load("@agentclientprotocol/sdk/experimental/node");

const OPTIONS = [
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];

const fileOf = (session) => join(directory, `${session}.session`);

function createAgent() {
  const methods = acp.methods.agent;
  const cancels = new Map();

  async function tell(client, sessionId, text) {
    const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text } };
    await client.notify(acp.methods.client.session.update, { sessionId, update });
  }

  async function obey(client, sessionId, command) {
    if (command === "wait") {
      await new Promise((resolve) => cancels.set(sessionId, resolve));
      return false;
    }
    let text = command;
    if (command === "ask") {
      const toolCall = { toolCallId: "call-1", title: "do it" };
      const params = { sessionId, toolCall, options: OPTIONS };
      const { outcome } = await client.request(acp.methods.client.session.requestPermission, params);
      text = outcome.optionId ?? outcome.outcome;
    }
    appendFileSync(fileOf(sessionId), `${text}\n`);
    await tell(client, sessionId, text);
    return true;
  }

  return acp
    .agent({ name: "interop" })
    .onRequest(methods.initialize, () => ({ protocolVersion: 1, agentCapabilities: { loadSession: true } }))
    .onRequest(methods.session.new, () => {
      const sessionId = crypto.randomUUID();
      writeFileSync(fileOf(sessionId), "");
      return { sessionId };
    })
    .onRequest(methods.session.load, async ({ params, client }) => {
      if (!existsSync(fileOf(params.sessionId))) throw acp.RequestError.resourceNotFound(params.sessionId);
      for (const text of readFileSync(fileOf(params.sessionId), "utf8").split("\n").slice(0, -1)) {
        await tell(client, params.sessionId, text);
      }
      return {};
    })
    .onRequest(methods.session.prompt, async ({ params, client }) => {
      if (!existsSync(fileOf(params.sessionId))) throw acp.RequestError.resourceNotFound(params.sessionId);
      for (const block of params.prompt) {
        if (!(await obey(client, params.sessionId, block.text))) return { stopReason: "cancelled" };
      }
      return { stopReason: "end_turn" };
    })
    .onNotification(methods.session.cancel, ({ params }) => cancels.get(params.sessionId)?.());
}

const http = createServer(createNodeHttpHandler(new AcpServer({ createAgent })));
http.listen(Number(port), "127.0.0.1", () => process.stdout.write(`${http.address().port}\n`));
