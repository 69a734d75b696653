// Makes any server listen on loopback only, on a free port, and log the port; for servers without such options.
//
// node --import ./loopback.mjs SERVER [ARGUMENT...]

import { Server } from "node:net";

const { listen } = Server.prototype;

Server.prototype.listen = function (...args) {
  this.once("listening", () => console.error(`listening on ${this.address().port}`));
  const callback = args.at(-1);
  return listen.call(this, { host: "127.0.0.1", port: 0 }, typeof callback === "function" ? callback : undefined);
};
