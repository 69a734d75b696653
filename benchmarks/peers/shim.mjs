// A hand-written shim between an editor and an agent behind a WebSocket: shim.mjs URL, with the token in LOAD_TOKEN
//
// Sends each line of stdin as a message and prints each message as a line.

import { createInterface } from "node:readline";
import { WebSocket } from "ws";

const socket = new WebSocket(process.argv[2], { headers: { Authorization: `Bearer ${process.env.LOAD_TOKEN}` } });

socket.on("open", () => {
  const lines = createInterface({ input: process.stdin });
  lines.on("line", (line) => socket.send(line));
  lines.on("close", () => socket.close());
});
socket.on("message", (message) => process.stdout.write(`${message}\n`));
socket.on("close", () => process.exit(0));
socket.on("error", (error) => {
  console.error(error.message);
  process.exit(1);
});
