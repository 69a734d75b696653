// A hand-written relay with the `ws` package: ws_relay.mjs PROGRAM [ARGUMENT...]
//
// Starts one process per WebSocket and forwards lines as messages without parsing them.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { WebSocketServer } from "ws";

const [program, ...args] = process.argv.slice(2);

const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
server.on("listening", () => console.log(`listening on ${server.address().port}`));
server.on("connection", (socket) => {
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
  createInterface({ input: child.stdout }).on("line", (line) => socket.send(line));
  child.on("exit", () => socket.close());
  socket.on("message", (message) => child.stdin.write(`${message}\n`));
  socket.on("close", () => child.kill());
});
