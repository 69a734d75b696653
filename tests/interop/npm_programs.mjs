// A short conversation by a program from npm: node npm_programs.mjs PROGRAM MODULES CWD TARGET…
//
// MODULES is where npm has installed them. TARGET is the command that leads to the agent, or the address for one that
// speaks WebSocket. The prompt is "ask", for which the agent asks for a permission: it is granted. What the agent has
// said is printed.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [, , program, modules, cwd, ...target] = process.argv;
const [command, ...args] = target;
const from = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(from.resolve(name)));
const allow = ({ options }) => ({
    outcome: { outcome: "selected", optionId: options.find(({ kind }) => kind === "allow_once").optionId },
});

async function acpAiProvider() {
    const { createACPProvider } = await load("@mcpc-tech/acp-ai-provider");
    const { generateText } = await load("ai");
    const provider = createACPProvider({ command, args, session: { cwd, mcpServers: [] } });
    // It grants all permissions by itself.
    const { text } = await generateText({ model: provider.languageModel(), prompt: "ask" });
    provider.cleanup();
    return text;
}

async function acpFactory() {
    const { AgentFactory } = await load("acp-factory");
    AgentFactory.register("gateway", { command, args });
    const agent = await AgentFactory.spawn("gateway", {
        permissionMode: "callback",
        onPermissionRequest: async (request) => allow(request),
    });
    const session = await agent.createSession(cwd, { mcpServers: [] });
    let said = "";
    for await (const update of session.prompt("ask")) {
        said += update.sessionUpdate === "agent_message_chunk" ? update.content.text : "";
    }
    await agent.close();
    return said;
}

// Its hook for React does these steps; marimo has it whole.
async function useAcp() {
    const folder = `${modules}/node_modules/use-acp`;
    const { MultiWebSocketManager } = await import(`${folder}/dist/connection/websocket-manager.js`);
    const { AcpClient } = await import(`${folder}/dist/client/acp-client.js`);
    const sdk = await import(
        pathToFileURL(createRequire(`${folder}/dist/`).resolve("@agentclientprotocol/sdk"))
    );
    const manager = new MultiWebSocketManager({ onConnectionStateChange() {}, onError() {} });
    const { readable, writable } = await manager.connect(target[0]);
    let said = "";
    const client = new AcpClient(undefined, {
        onSessionNotification({ update }) {
            said += update.sessionUpdate === "agent_message_chunk" ? update.content.text : "";
        },
        onRequestPermission(request) {
            client.resolvePermission(request.deferredId, allow(request));
        },
    });
    const agent = new sdk.ClientSideConnection(() => client, sdk.ndJsonStream(writable, readable));
    await agent.initialize({ protocolVersion: 1, clientCapabilities: {} });
    const { sessionId } = await agent.newSession({ cwd, mcpServers: [] });
    await agent.prompt({ sessionId, prompt: [{ type: "text", text: "ask" }] });
    manager.disconnect();
    return said;
}

console.log(await { "acp-ai-provider": acpAiProvider, "acp-factory": acpFactory, "use-acp": useAcp }[program]());
process.exit();
