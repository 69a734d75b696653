// The TypeScript SDK's WebSocket server in front of an agent that speaks over stdio: sdk_server.mjs PROGRAM [ARGUMENT...]
//
// An agent is whatever connects to a stream of messages, so the one behind the server is a pair of pipes: the SDK's own
// way to speak with a child process. To take each method with a handler and ask again on the other side (`onRequest("*")`
// and `onNotification("*")` of an agent and of a client, back to back) moves a third fewer messages.

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
