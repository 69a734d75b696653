// A client made with the TypeScript SDK, for tests: it does what lines of JSON on its standard input say.
//
//   node typescript_sdk.mjs MODULES PROFILE URL, with the token in TOKEN. MODULES is where npm has installed the SDK;
//   PROFILE is `http`, `ws` (the package of that name) or `native-ws` (the WebSocket of browsers, without headers).
//
// See sdk_clients.py for the lines. The end of the input closes the connection.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, profile, url] = process.argv.slice(2);
const token = process.env.TOKEN;
const from = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(from.resolve(name)));

const acp = await load("@agentclientprotocol/sdk");
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

async function openStream() {
  const headers = { Authorization: `Bearer ${token}` };
  if (profile === "http") {
    const { createHttpStream } = await load("@agentclientprotocol/sdk/experimental/http-client");
    return createHttpStream(url, { headers });
  }
  const { createWebSocketStream } = await load("@agentclientprotocol/sdk/experimental/ws-client");
  if (profile === "native-ws") {
    return createWebSocketStream(url, { protocols: ["acp.v1", `acp.bearer.${token}`] });
  }
  const { default: WebSocket } = await load("ws");
  return createWebSocketStream(url, { headers, WebSocket });
}

let decide;
const decision = new Promise((resolve) => (decide = resolve));

const connection = acp
  .client({ name: "interop" })
  .onNotification(acp.methods.client.session.update, ({ params }) => say({ update: params }))
  .onNotification("_acp-gateway/news", (params) => params, ({ params }) => say({ news: params }))
  .onRequest(acp.methods.client.session.requestPermission, async ({ params }) => {
    say({ asked: params.toolCall.title });
    return { outcome: { outcome: "selected", optionId: await decision } };
  })
  .connect(await openStream());
const ended = () => say({ ended: true });
connection.closed.then(ended, ended);

async function request({ id, request, params }) {
  try {
    say({ id, result: (await connection.agent.request(request, params)) ?? null });
  } catch (error) {
    say({ id, error: String(error?.message ?? error) });
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if ("request" in command) void request(command);
  else if ("notify" in command) await connection.agent.notify(command.notify, command.params);
  else decide(command.decide);
}
connection.close();
