"""The page in a browser over HTTP/2, beside ten event streams of the same origin."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.web.browser.end_to_end.conftest import PageGateway

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STREAMS = 10

OPEN_STREAMS = """async ({ token, cwd, count }) => {
  const known = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const post = (message, headers) => fetch("/acp", {
    method: "POST", headers: { ...known, ...headers }, body: JSON.stringify({ jsonrpc: "2.0", ...message }),
  });
  const begun = await post({ id: 0, method: "initialize", params: { protocolVersion: 1 } }, {});
  const connection = { "acp-connection-id": begun.headers.get("acp-connection-id") };
  // The text of a stream grows, and the streams stay open.
  const open = async (headers) => {
    const response = await fetch("/acp", { headers: { ...known, ...headers, accept: "text/event-stream" } });
    const stream = { status: response.status, text: "", headers };
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    (async () => {
      for (let part; !(part = await reader.read()).done; ) stream.text += part.value;
      stream.ended = true;
    })();
    return stream;
  };
  const until = async (found) => {
    while (!found()) await new Promise((done) => setTimeout(done, 10));
    return found();
  };
  const messages = (stream) => stream.text.split("\\n").slice(0, -1)
    .filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6)));
  const main = await open(connection);
  const streams = [];
  for (let id = 1; id <= count; id += 1) {
    await post({ id, method: "session/new", params: { cwd, mcpServers: [] } }, connection);
    const answer = await until(() => messages(main).find((message) => message.id === id));
    const session = answer.result.sessionId;
    streams.push(await open({ ...connection, "acp-session-id": session }));
    streams.at(-1).session = session;
  }
  for (const { session } of streams) {
    await post({ id: session, method: "session/prompt",
      params: { sessionId: session, prompt: [{ type: "text", text: "hello" }] } }, connection);
  }
  const answered = (stream) => messages(stream).some((message) => message.id === stream.session);
  await until(() => streams.every(answered));
  const another = await fetch("/healthz");
  return {
    open: streams.filter((stream) => stream.status === 200 && !stream.ended).length,
    sessions: new Set(streams.map((stream) => stream.session)).size,
    another: another.status,
    protocols: [...new Set(performance.getEntriesByType("resource").map((entry) => entry.nextHopProtocol))],
  };
}"""


@pytest.fixture
def page(chromium: "Browser") -> Iterator["Page"]:
    """A page that accepts the gateway's own certificate."""
    context = chromium.new_context(ignore_https_errors=True)
    yield context.new_page()
    context.close()


def test_the_page_works_over_http_2_beside_ten_event_streams(gateway: PageGateway, page: "Page") -> None:
    url = re.sub("^wss(.*)/acp$", r"https\1/", gateway.running.urls["wss"])
    page.goto(f"{url}#{gateway.code()}")
    navigation = page.get_by_role("navigation", name="Sessions")
    expect(navigation).to_be_visible()
    told: dict[str, Any] = page.evaluate(
        OPEN_STREAMS, {"token": gateway.running.token, "cwd": str(gateway.folder), "count": STREAMS}
    )
    # With HTTP/1.1 the sixth request to an origin waits until one has ended.
    assert (told["open"], told["sessions"], told["another"]) == (STREAMS, STREAMS, 200)
    assert told["protocols"] == ["h2"]
    # Its own WebSocket is a second connection, over HTTP/1.1.
    gateway.session("Seen at once")
    expect(navigation.get_by_text("Seen at once")).to_be_visible()
