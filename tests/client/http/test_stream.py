"""The shim's side of Streamable HTTP, against a server in memory and a clock that jumps."""

import json
import re
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.client.http.events import QUIET
from acp_gateway.client.http.requests import ANSWER_TIMEOUT
from acp_gateway.client.http.stream import DELETE_TIMEOUT, INBOX
from acp_gateway.errors import ForeignRefusal, GatewayError, ProtocolError, Unreachable
from acp_gateway.transports.http.server import Request, Response
from acp_gateway.transports.streams import MessageTooLarge
from tests.client.http.foreign_agent import ForeignAgent, shim_of
from tests.client.http.foreign_server import CUT, END, Received, foreign_server, initialized, message, running

pytestmark = pytest.mark.jumps


def said(text: bytes) -> Any:
    return json.loads(text)


async def test_initialize_opens_a_connection_whose_id_and_cookies_each_later_request_shows() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        await stream.send(message("session/prompt", 1, sessionId="s"))
        await server.seen("session/prompt")
    first, second, post, _ = server.requests
    assert (first.method, second.method) == ("POST", "GET")
    assert "acp-connection-id" not in first.headers
    assert "cookie" not in first.headers
    assert second.headers["accept"] == "text/event-stream"
    for one in (second, post):
        assert one.headers["acp-connection-id"] == "c1"
        assert (one.headers["cookie"], one.headers["authorization"]) == ("node=7", "Bearer secret")
    assert post.headers["acp-session-id"] == "s"


async def test_a_response_names_the_session_of_its_request() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.event({"id": 5, "method": "session/request_permission", "params": {"sessionId": "s"}})
        await stream.receive()
        await stream.send(b'{"jsonrpc":"2.0","id":5,"result":{}}')
        await server.seen("response")
    assert server.posts[-1].headers["acp-session-id"] == "s"


async def test_the_stream_of_a_session_is_opened_after_session_new() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        await stream.send(message("session/new", 1))
        server.event({"id": 1, "result": {"sessionId": "s"}})
        assert said(await stream.receive())["id"] == 1
        server.event({"method": "session/update", "params": {"sessionId": "s"}}, "s")
        assert said(await stream.receive())["method"] == "session/update"
    assert [get.headers.get("acp-session-id") for get in server.gets] == [None, "s"]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_the_stream_of_a_session_is_opened_before_load_and_resume(method: str) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        await stream.send(message(method, 1, sessionId="s"))
        await server.seen(method)
        assert [one.method for one in server.requests] == ["POST", "GET", "GET", "POST"]


async def test_the_response_to_session_load_waits_for_the_history_in_the_sessions_stream() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        await stream.send(message("session/load", 1, sessionId="s"))
        await server.seen("session/load")
        server.event({"id": 1, "result": {}})
        for number in range(3):
            await trio.sleep(QUIET * 0.9)
            server.event({"method": "session/update", "params": {"sessionId": "s", "n": number}}, "s")
        got = [said(await stream.receive()) for _ in range(4)]
    assert [one.get("id") for one in got] == [None, None, None, 1]


async def test_session_load_works_where_sessions_have_no_streams_of_their_own() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.unknown_sessions = True
        await stream.send(message("session/load", 1, sessionId="s"))
        await server.seen("session/load")
        server.event({"method": "session/update", "params": {"sessionId": "s"}})
        server.event({"id": 1, "result": {}})
        assert [said(await stream.receive()).get("id") for _ in range(2)] == [None, 1]


async def test_a_stream_that_was_asked_for_before_its_session_existed_is_opened_after_the_404() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers_to = lambda one: one.method == "GET"
        server.answers = [Response.of_text(404, "no such session", delay=2 * ANSWER_TIMEOUT)]
        await stream.send(message("session/load", 1, sessionId="s"))
        await server.seen("session/load")
        server.event({"id": 1, "result": {}})
        assert said(await stream.receive())["id"] == 1
        server.event({"method": "session/update", "params": {"sessionId": "s"}}, "s")
        assert said(await stream.receive())["method"] == "session/update"
    assert [get.headers.get("acp-session-id") for get in server.gets] == [None, "s", "s"]


async def test_the_stream_of_a_session_is_closed_after_session_close() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        await stream.send(message("session/resume", 1, sessionId="s"))
        await server.opened(2)
        server.event({"id": 1, "result": {}}, "s")
        await stream.send(message("session/close", 2, sessionId="s"))
        await server.seen("session/resume", "session/close")
        server.event({"id": 2, "result": {}}, "s")
        assert [said(await stream.receive())["id"] for _ in range(2)] == [1, 2]
        await stream.send(message("session/resume", 3, sessionId="s"))
        await server.opened(3)


# Order


async def test_posts_come_in_order_one_after_the_other() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.held["first"] = trio.Event()
        stream.send_nowait([message("first", 1), message("second", 2), message("third", 3)])
        await server.seen("first")
        await trio.testing.wait_all_tasks_blocked()
        await server.seen("first")
        server.held["first"].set()
        await server.seen("first", "second", "third")


async def test_a_response_does_not_wait_for_a_slow_post() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.held["session/prompt"] = trio.Event()
        stream.send_nowait([message("session/prompt", 1, sessionId="s")])
        await server.seen("session/prompt")
        stream.send_nowait([b'{"id":7,"result":{}}'])
        await server.seen("session/prompt", "response")


async def test_a_cancel_follows_its_prompt_and_does_not_wait_for_a_slow_answer_to_it() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.held["session/prompt"] = trio.Event()
        began = trio.current_time()
        stream.send_nowait([message("session/prompt", 1, sessionId="s"), message("session/cancel", sessionId="s")])
        await server.seen("session/prompt", "session/cancel")
        assert 1 <= trio.current_time() - began < 2


async def test_requests_share_connections_that_were_used_just_now() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        for number in range(10):
            await stream.send(message("ask", number))
            await server.seen(*["ask"] * (number + 1))
            await trio.testing.wait_all_tasks_blocked()
        assert server.connections == 2
        await trio.sleep(60)
        await stream.send(message("ask", 11))
        await server.seen(*["ask"] * 11)
        assert server.connections == 3


async def test_drain_waits_until_a_post_is_written() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.held["first"] = trio.Event()
        stream.send_nowait([message("first", 1), message("second", 2)])
        with trio.move_on_after(5) as waiting:
            await stream.drain()
        assert waiting.cancelled_caught
        assert stream.pending_bytes == len(message("second", 2))
        server.held["first"].set()
        await stream.drain()
        assert stream.pending_bytes == 0


# Refusals


async def test_a_request_that_is_refused_is_answered_with_an_error() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response.of_text(400, "not like this"))
        await stream.send(message("ask", 9))
        response = said(await stream.receive())
    assert response["id"] == 9
    assert "HTTP 400 (not like this)" in response["error"]["message"]


async def test_an_error_of_json_rpc_in_a_refusal_is_passed_on() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        refusal = b'{"jsonrpc":"2.0","id":9,"error":{"code":-32600,"message":"no"}}'
        server.answers.append(Response(500, refusal))
        await stream.send(message("ask", 9))
        assert await stream.receive() == refusal


async def test_a_response_in_the_body_of_200_is_passed_on() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response(200, b'{"id":9,"result":1}\n'))
        await stream.send(message("ask", 9))
        assert await stream.receive() == b'{"id":9,"result":1}'


@pytest.mark.parametrize("status", [429, 503])
async def test_a_post_is_repeated_after_429_and_503_as_retry_after_says(status: int) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response(status, headers={"Retry-After": "7"}))
        began = trio.current_time()
        await stream.send(message("ask", 9))
        await server.seen("ask", "ask")
        assert trio.current_time() - began == pytest.approx(7)


async def test_a_session_that_a_server_does_not_know_yet_is_named_in_the_params_alone() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response(404))
        await stream.send(message("session/prompt", 9, sessionId="s"))
        await server.seen("session/prompt", "session/prompt")
    assert ["acp-session-id" in one.headers for one in server.posts] == [False, True, False]


async def test_404_without_a_session_ends_the_stream() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers += [Response(404), Response(404)]
        await stream.send(message("session/prompt", 9, sessionId="s"))
        with pytest.raises(trio.BrokenResourceError, match="HTTP 404"):
            await stream.receive()


async def test_404_for_the_session_alone_is_an_error_of_the_request() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers += [Response.of_text(404, "no such session"), Response(400)]
        await stream.send(message("session/prompt", 9, sessionId="s"))
        assert "HTTP 404 (no such session)" in said(await stream.receive())["error"]["message"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Response.of_text(401, "who are you?"),
            r"^server.example: .* is HTTP 401 \(who are you\?\); is its token right\?",
        ),
        (Response(200, b'{"id":0,"result":{}}'), "names no connection"),
        (Response(200, b"hello", {"Acp-Connection-Id": "c"}), "names no connection"),
    ],
)
async def test_an_unusable_answer_to_initialize_ends_the_stream(answer: Response, words: str) -> None:
    async with foreign_server() as server, running(server) as stream:
        server.answers.append(answer)
        await stream.send(message("initialize", 0))
        with pytest.raises(trio.BrokenResourceError, match=words):
            await stream.receive()


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("headers", [{}, {"Acp-Connection-Id": "c0"}])
async def test_an_error_for_initialize_is_passed_on_and_initialize_may_come_again(
    status: int, headers: dict[str, str]
) -> None:
    async with foreign_server() as server, running(server) as stream:
        server.answers.append(Response(status, b'{"id":0,"error":{"code":1,"message":"no"}}', headers))
        await stream.send(message("initialize", 0))
        assert said(await stream.receive())["error"]["message"] == "no"
        await stream.send(message("ask", 1))
        assert "initialize comes first" in said(await stream.receive())["error"]["message"]
        assert server.gets == []
        await stream.send(message("initialize", 2))
        assert "result" in said(await stream.receive())
        await server.opened(1)
        ended = [one.headers["acp-connection-id"] for one in server.requests if one.method == "DELETE"]
        assert ended == (["c0"] if headers and status == 200 else [])


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Response.of_text(401, "who are you?"), ForeignRefusal, r"HTTP 401 \(who are you\?\); is its token right\?"),
        (Response.of_text(403, "not you"), ForeignRefusal, r"HTTP 403 \(not you\); is its token right\?"),
        (Response(403, b'{"id":null,"error":{"code":1,"message":"no"}}'), ForeignRefusal, "HTTP 403"),
        (Response(307, headers={"Location": "/acp/"}), ProtocolError, r"a redirect to /acp/, which is not followed"),
        (Response.of_text(404, "nothing here"), ProtocolError, "HTTP 404"),
        (Response.of_text(405, "no"), ProtocolError, "HTTP 405"),
        (Response.of_text(200, "<html>"), ProtocolError, "does it speak ACP"),
        (Response.of_text(500, "oh"), Unreachable, "HTTP 500"),
        (Response.of_text(502, "oh"), Unreachable, "HTTP 502"),
        (Response.of_text(504, "oh"), Unreachable, "HTTP 504"),
    ],
)
async def test_connect_ends_by_the_cause_if_initialize_is_refused(
    answer: Response, kind: type[GatewayError], words: str
) -> None:
    server = ForeignAgent(answer=lambda *_: answer)
    async with shim_of(server, raises=kind) as editor:
        refused = (await editor.ask("initialize", protocolVersion=1))["error"]
        assert re.search(words, refused["message"])
        assert refused["data"]["reason"] == kind.reason


async def test_connect_ends_by_the_cause_after_the_end_of_stdin_too() -> None:
    server = ForeignAgent(answer=lambda *_: Response.of_text(401, "who are you?"))
    async with shim_of(server, raises=ForeignRefusal) as editor:
        refused = await editor.begin("initialize", protocolVersion=1)
        await editor.close()
        assert "HTTP 401" in (await editor.answer(refused))["error"]["message"]


async def test_initialize_is_repeated_while_the_server_has_no_room_for_it() -> None:
    answers = [Response(503), Response(429)]
    server = ForeignAgent(answer=lambda *_: answers.pop() if answers else None)
    async with shim_of(server) as editor:
        await editor.start()
    assert not answers


async def test_requests_get_an_error_while_a_server_that_was_restarted_refuses_the_token() -> None:
    server = ForeignAgent()
    async with shim_of(server) as editor:
        session = await editor.start()
        turn = await editor.begin_prompt(session, "wait")
        await server.until(server.prompts)
        server.answer = lambda *_: Response.of_text(401, "expired")
        server.kill()
        server.start()
        assert "HTTP 401 (expired)" in (await editor.answer(turn))["error"]["message"]
        assert "HTTP 401 (expired)" in (await editor.prompt(session, "early"))["error"]["message"]
        server.answer = lambda *_: None
        await trio.sleep(60)
        assert (await editor.prompt(session, "late"))["result"] == {"stopReason": "end_turn"}
    assert server.prompts() == ["wait", "late"]


async def test_a_prompt_is_not_repeated_after_503_without_retry_after() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response.of_text(503, "reset before headers"))
        await stream.send(message("session/prompt", 9, sessionId="s"))
        assert "HTTP 503 (reset before headers)" in said(await stream.receive())["error"]["message"]
        await server.seen("session/prompt")


@pytest.mark.parametrize("method", ["session/cancel", "$/cancel_request"])
async def test_a_cancel_is_repeated_after_503(method: str) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response(503))
        await stream.send(message(method, sessionId="s"))
        await server.seen(method, method)


async def test_a_cancel_does_not_overtake_a_prompt_that_the_server_has_no_room_for() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response(429, headers={"Retry-After": "20"}))
        prompt, cancel = message("session/prompt", 9, sessionId="s"), message("session/cancel", sessionId="s")
        stream.send_nowait([prompt, cancel])
        await server.seen("session/prompt", "session/prompt", "session/cancel")


# Streams that end


async def test_a_stream_that_ends_is_opened_again() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.event({"n": 1})
        server.send(END)
        server.event({"n": 2})
        assert [said(await stream.receive())["n"] for _ in range(2)] == [1, 2]
    assert len(server.gets) == 2
    assert "last-event-id" not in server.gets[1].headers


async def test_a_stream_with_ids_that_is_cut_goes_on_behind_last_event_id() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.send(b'id: e.1\ndata: {"n":1}\n\nid: e.2\ndata: {"n"')
        server.send(CUT)
        server.send(b'id: e.2\ndata: {"n":2}\n\n')
        assert [said(await stream.receive())["n"] for _ in range(2)] == [1, 2]
    assert server.gets[1].headers["last-event-id"] == "e.1"


async def test_last_event_id_that_is_refused_ends_the_stream() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers_to = lambda one: one.method == "GET"
        server.answers.append(Response(409))
        server.send(b'id: e.1\ndata: {"n":1}\n\n')
        server.send(CUT)
        await stream.receive()
        with pytest.raises(trio.BrokenResourceError, match="HTTP 409"):
            await stream.receive()


@pytest.mark.parametrize("end", [CUT, END])
async def test_a_stream_without_ids_that_is_cut_within_an_event_ends_it_all(end: bytes) -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.event({"n": 1})
        server.send(b'data: {"n":')
        server.send(end)
        await stream.receive()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive()
        await server.ended()


async def test_a_conflict_is_waited_out_where_the_server_has_not_noticed_a_loss() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers_to = lambda one: one.method == "GET"
        server.answers += [Response(409), Response(409)]
        server.send(END)
        server.event({"n": 2})
        assert said(await stream.receive())["n"] == 2


async def test_a_stream_that_can_not_be_opened_again_ends_it_all() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.send(b'id: 1\ndata: {"n":1}\n\n')
        server.send(CUT)
        await stream.receive()
        server.down = True
        with pytest.raises(trio.BrokenResourceError, match="could not be opened again"):
            await stream.receive()
        with pytest.raises(trio.BrokenResourceError):
            stream.send_nowait([message("ask", 1)])


async def test_the_end_does_not_wait_for_a_server_that_is_silent() -> None:
    def is_delete(one: Received) -> bool:
        return one.method == "DELETE"

    async with foreign_server() as server, initialized(server) as stream:
        server.answers_to = is_delete
        server.answers.append(Response(202, delay=100))
        server.send(CUT)
        began = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive()
        assert trio.current_time() - began == pytest.approx(DELETE_TIMEOUT)


async def test_a_message_above_the_limit_ends_it_all() -> None:
    async with foreign_server() as server, initialized(server, 1000) as stream:
        server.event({"n": 1})
        server.send(b"data: " + bytes(3000))
        await stream.receive()
        with pytest.raises(MessageTooLarge, match="the limit"):
            await stream.receive()


@pytest.mark.parametrize("endless", [b"data: ", b": ", b"", b"data:\n" * 5000])
async def test_a_line_or_an_event_without_end_ends_connect_with_the_name_of_the_limit(endless: bytes) -> None:
    body = endless + bytes(150_000) if len(endless) < 10 else endless * 40
    server = ForeignAgent()
    async with shim_of(server, raises=ProtocolError) as editor:
        session = await editor.start()
        server.raw(session, body)
        turn = await editor.begin_prompt(session, "wait")
        assert "is larger than the limit" in (await editor.answer(turn))["error"]["message"]


async def test_requests_get_an_error_if_event_streams_are_compressed_and_the_server_is_not_stormed() -> None:
    asked = []

    def answer(request: Request, body: object) -> Response | None:
        if request.method != "GET":
            return None
        asked.append(trio.current_time())
        return Response(200, b"\x1f\x8b", {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"})

    async with shim_of(ForeignAgent(answer=answer)) as editor:
        assert "result" in await editor.ask("initialize", protocolVersion=1)
        refused = await editor.ask("session/new", cwd="/", mcpServers=[])
        assert "is encoded (gzip), unasked" in refused["error"]["message"]
        await trio.sleep(1000)
    assert len(asked) < 100


async def test_a_redirect_of_a_message_is_an_error_and_not_followed() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.answers.append(Response(308, headers={"Location": "https://server.example/elsewhere"}))
        await stream.send(message("session/prompt", 9, sessionId="s"))
        words = "HTTP 308 (a redirect to https://server.example/elsewhere, which is not followed)"
        assert words in said(await stream.receive())["error"]["message"]
        await server.seen("session/prompt")


async def test_events_that_are_not_messages_are_dropped() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.send(b": hello\r\n\r\ndata: ping\n\nevent: ping\ndata: {}\n\ndata:{\rdata:}\r\r")
        assert await stream.receive() == b"{\n}"


async def test_no_stream_is_read_while_nothing_is_taken() -> None:
    async with foreign_server() as server, initialized(server, INBOX) as stream:
        for _ in range(30):
            server.event({"text": "x" * (INBOX // 10)})
        await trio.testing.wait_all_tasks_blocked()
        sizes: list[int] = []
        while sum(sizes) < 30:
            sizes.append(len(await stream.receive_batch()))
            await trio.testing.wait_all_tasks_blocked()
    assert max(sizes) < 15


# The end


async def test_aclose_sends_what_waits_and_ends_the_connection() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        stream.send_nowait([message("first", 1), message("second")])
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive()
        with pytest.raises(trio.ClosedResourceError):
            stream.send_nowait([b"{}"])
    assert [one.name for one in server.posts] == ["initialize", "first", "second"]
    assert server.requests[-1].method == "DELETE"
    assert server.requests[-1].headers["acp-connection-id"] == "c1"


async def test_aclose_is_bounded_in_time() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        server.held["first"] = trio.Event()
        stream.send_nowait([message("first", 1), message("second")])
        await server.seen("first")
        began = trio.current_time()
        await stream.aclose()
        assert trio.current_time() - began <= 5


async def test_abort_closes_at_once() -> None:
    async with foreign_server() as server, initialized(server) as stream:
        await stream.abort()
    assert all(one.method != "DELETE" for one in server.requests)
