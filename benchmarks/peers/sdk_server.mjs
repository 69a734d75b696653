// The TypeScript SDK's WebSocket server in front of an agent that speaks over stdio: sdk_server.mjs PROGRAM [ARGUMENT...]
//
// The server's agent is anything that connects to a message stream; here it pipes the stream to a child process, as the
// SDK does for its own. Handlers for all methods that repeat each request on the other side (`onRequest("*")` and
// `onNotification("*")` of an agent and of a client, back to back) reach a third less throughput.

import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { Readable, Writable } from "node:stream";
import { ndJsonStream } from "@agentclientprotocol/sdk";
import { createNodeHttpHandler, createNodeWebSocketUpgradeHandler } from "@agentclientprotocol/sdk/experimental/node";
import { AcpServer } from "@agentclientprotocol/sdk/experimental/server";
import { WebSocketServer } from "ws";

const [program, ...args] = process.argv.slice(2);

const agent = {
  connect(client) {
    const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
    const messages = ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
    const stop = () => child.kill();
    client.readable.pipeTo(messages.writable).then(stop, stop);
    messages.readable.pipeTo(client.writable).then(stop, stop);
    return { closed: new Promise((resolve) => child.once("close", resolve)) };
  },
};

const acp = new AcpServer({ agent });
const server = createServer(createNodeHttpHandler(acp));
server.on("upgrade", createNodeWebSocketUpgradeHandler(acp, new WebSocketServer({ noServer: true })));
server.listen(0, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
