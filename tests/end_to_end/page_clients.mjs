/**
 * Two clients made of the page's modules, without a browser: node page_clients.mjs ADDRESS FOLDER, with the token on stdin.
 *
 * They share a session of the demo agent, one of them loses its connection, and both tell on stdout what they know.
 */
import { createRpc } from "../../acp_gateway/web/app/net/rpc.js";
import { createStore } from "../../acp_gateway/web/app/state/store.js";

const [address, cwd] = process.argv.slice(2);
let token = "";
for await (const chunk of process.stdin) token += chunk;

function createClient() {
  const sockets = [];
  const rpc = createRpc({
    open: () => {
      sockets.push(new WebSocket(address, ["acp.v1", `acp.bearer.${token.trim()}`]));
      return sockets.at(-1);
    },
    onState: (state) => store.onState(state),
    onNotification: (method, params) => store.onNotification(method, params),
  });
  const store = createStore({ rpc, frame: (callback) => setImmediate(callback) });
  rpc.connect();
  return { rpc, store, sockets };
}

/** Waits until something holds of a client's state. */
function until({ store }, holds) {
  return new Promise((resolve) => {
    const look = () => {
      if (!holds(store.state)) return;
      end();
      resolve(store.state);
    };
    const end = store.subscribe(look);
    setImmediate(look);
  });
}

/** Returns what a client shows of its session, and up to which update. */
function shown({ store }) {
  const { blocks, lastSeq } = store.state.current.transcript;
  const texts = blocks.filter((block) => block.kind !== "end").map((block) => {
    if (block.parts) return [block.kind, block.parts.map((part) => part.text).join("")];
    return [block.kind, block.status, ...block.content.map((item) => item.part.text)];
  });
  return { texts, lastSeq };
}

const asked = (state) => state.current?.pending.length > 0;
const ended = (reason) => (state) => state.current.turn?.stopReason === reason;
const ready = (state) => state.current?.phase === "ready";

const ann = createClient();
const bob = createClient();
await until(ann, (state) => state.listed);
const id = await ann.store.newSession({ agentType: "demo", cwd });
await until(ann, ready);
await until(bob, (state) => state.listed && state.sessions.has(id));
bob.store.open(id);
await until(bob, ready);

// One prompts, the other one answers the agent's question.
await ann.store.prompt([{ type: "text", text: "first" }]);
await until(ann, asked);
const question = (await until(bob, asked)).current.pending[0];
const { status } = (await until(ann, (state) => state.sessions.get(id).status === "waiting")).sessions.get(id);
await bob.store.respond(question.requestId, {
  outcome: { outcome: "selected", optionId: question.params.options[0].optionId },
});
await until(ann, (state) => state.current.pending.length === 0);
// It goes after some seconds, which the rest of the turn may take.
const told = (await until(ann, (state) => state.toasts.length > 0)).toasts.map(({ text }) => text);
await until(ann, ended("end_turn"));

// One writes while its connection is lost.
ann.sockets.at(-1).close();
await until(ann, (state) => state.connection.phase !== "connected");
const prompt = ann.store.prompt([{ type: "text", text: "second" }]);
const { waiting } = ann.rpc.state;
await prompt;
await until(ann, asked);
await ann.store.cancel();
await until(ann, ended("cancelled"));
await until(bob, ended("cancelled"));

console.log(JSON.stringify({ status, told, waiting, ann: shown(ann), bob: shown(bob) }));
ann.rpc.close();
bob.rpc.close();
