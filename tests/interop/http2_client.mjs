// A browser's tab, as far as a proxy can tell: all that it has with one origin is in one connection of HTTP/2.
//
//     node http2_client.mjs streams|websocket PORT CERTIFICATE CWD      with the token in TOKEN
//
// "streams" opens a session for each of eight event streams, has a prompt in each, and prints how many are open and how
// many have told an update. "websocket" opens a WebSocket within the connection, if the proxy offers that, and
// prints the answer to `initialize`, else null.
import { once } from "node:events";
import { readFileSync } from "node:fs";
import http2 from "node:http2";

const [, , what, port, certificate, cwd] = process.argv;
const SESSIONS = 8;
const browser = http2.connect(`https://127.0.0.1:${port}`, {
    ca: readFileSync(certificate),
    servername: "gpu.example",
});
const COMMON = { ":authority": "gpu.example", ":path": "/acp", authorization: `Bearer ${process.env.TOKEN}` };

async function answered(stream) {
    const [headers] = await once(stream, "response");
    return headers;
}

async function post(message, headers = {}) {
    const stream = browser.request({
        ...COMMON,
        ...headers,
        ":method": "POST",
        "content-type": "application/json",
    });
    stream.end(JSON.stringify({ jsonrpc: "2.0", ...message }));
    stream.resume();
    return answered(stream);
}

// Yields the messages of an event stream; the first value is its status.
async function* events(headers) {
    const stream = browser.request({ ...COMMON, ...headers, accept: "text/event-stream" });
    yield (await answered(stream))[":status"];
    let text = "";
    for await (const piece of stream.setEncoding("utf8")) {
        const lines = (text + piece).split("\n");
        text = lines.pop();
        for (const line of lines.filter((each) => each.startsWith("data: "))) {
            yield JSON.parse(line.slice("data: ".length));
        }
    }
}

async function opened(headers) {
    const stream = events(headers);
    if ((await stream.next()).value !== 200) {
        throw new Error("no event stream");
    }
    return stream;
}

async function streams() {
    const begun = await post({ id: 0, method: "initialize", params: { protocolVersion: 1 } });
    const connection = { "acp-connection-id": begun["acp-connection-id"] };
    const told = await opened(connection);
    const sessions = [];
    for (let id = 1; id <= SESSIONS; id += 1) {
        await post({ id, method: "session/new", params: { cwd, mcpServers: [] } }, connection);
        sessions.push((await told.next()).value.result.sessionId);
    }
    // All at once, and all stay open.
    const open = await Promise.all(sessions.map((name) => opened({ ...connection, "acp-session-id": name })));
    const prompt = [{ type: "text", text: "hello" }];
    for (const [index, sessionId] of sessions.entries()) {
        await post({ id: 100 + index, method: "session/prompt", params: { sessionId, prompt } }, connection);
    }
    const updates = await Promise.all(open.map((stream) => stream.next()));
    const of = (update) => update.value.method === "session/update" && update.value.params.sessionId;
    return { open: open.length, told: updates.filter((update, index) => of(update) === sessions[index]).length };
}

// A frame of text, masked as a client's must be; of less than 126 bytes.
function frame(text) {
    const mask = Buffer.from([1, 2, 3, 4]);
    const bytes = Buffer.from(text).map((byte, index) => byte ^ mask[index % 4]);
    return Buffer.concat([Buffer.from([0x81, 0x80 | bytes.length]), mask, bytes]);
}

async function websocket() {
    if (!browser.remoteSettings.enableConnectProtocol) {
        return null;
    }
    const stream = browser.request({
        ...COMMON,
        ":method": "CONNECT",
        ":scheme": "https",
        ":protocol": "websocket",
        "sec-websocket-version": "13",
    });
    const status = (await answered(stream))[":status"];
    stream.write(frame('{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'));
    let said = "";
    for await (const piece of stream.setEncoding("latin1")) {
        said += piece;
        if (said.includes('"protocolVersion"')) {
            return { status, answer: true };
        }
    }
    return { status, answer: false };
}

await once(browser, "remoteSettings");
if (browser.alpnProtocol !== "h2") {
    throw new Error(`the proxy speaks ${browser.alpnProtocol}`);
}
console.log(JSON.stringify(await { streams, websocket }[what]()));
browser.destroy();
