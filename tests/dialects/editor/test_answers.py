"""The two forms of an answer, written to a connection."""

import json
from typing import Any, cast

import pytest
import trio

from acp_gateway.dialects.editor.answers import (
    HEAD_DELAY,
    KEEP_ALIVE_INTERVAL,
    AnswerInLines,
    AnswerInOnePiece,
    AnswerTooLarge,
    refusal,
)
from acp_gateway.protocol import jsonrpc
from acp_gateway.transports.http.server import HttpConnection, Response
from tests.dialects.editor.test_output import text, updating
from tests.kit.hub_scene import permission


class Written:
    """A connection that notes all that is written to it."""

    def __init__(self) -> None:
        self.head: tuple[int, dict[str, str]] | None = None
        self.data = b""
        self.response: Response | None = None
        self.ended = False

    async def start(self, status: int, headers: dict[str, str]) -> None:
        self.head = status, headers

    async def send(self, data: bytes) -> None:
        self.data += data

    async def end(self) -> bool:
        self.ended = True
        return True

    async def respond(self, response: Response) -> bool:
        assert self.head is None
        self.response = response
        return True

    @property
    def lines(self) -> list[Any]:
        return list(map(json.loads, self.data.splitlines()))

    def http(self) -> HttpConnection:
        return cast("HttpConnection", self)


def asked() -> jsonrpc.Message:
    return jsonrpc.parse(json.dumps(permission(1)).encode())


async def test_lines_begin_with_the_first_line_and_end_with_done(autojump_clock: trio.testing.MockClock) -> None:
    written = Written()
    answer = AnswerInLines(written.http(), "s")
    await answer.updates([updating({"sessionUpdate": "plan"})])
    assert written.head is None
    await answer.updates([updating(text("a")), updating(text("b"))])
    await answer.permission("k", asked())
    assert await answer.done("end_turn")
    assert written.head is not None
    assert (written.head[0], written.head[1]["Content-Type"]) == (200, "application/x-ndjson")
    assert [line["type"] for line in written.lines] == ["text", "text", "permission", "done"]
    assert written.ended


async def test_an_editor_without_a_token_is_told_in_text_where_to_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    written = Written()
    await AnswerInLines(written.http(), "s", explains=True).permission("k", asked())
    assert [(line["type"], line["seq"]) for line in written.lines] == [("permission", 1), ("text", 2)]


async def test_a_failure_before_the_first_line_has_a_status(autojump_clock: trio.testing.MockClock) -> None:
    written = Written()
    await AnswerInLines(written.http(), "s").failed("no login")
    assert written.response is not None
    assert written.response.status == 500
    assert json.loads(written.response.body) == {"error": True, "message": "no login"}


async def test_a_failure_behind_a_line_is_the_last_line(autojump_clock: trio.testing.MockClock) -> None:
    written = Written()
    answer = AnswerInLines(written.http(), "s")
    await answer.updates([updating(text("a"))])
    await answer.failed("the agent has ended")
    assert written.lines[1] == {"type": "error", "message": "the agent has ended", "seq": 2}
    assert written.ended


async def test_a_turn_without_a_line_has_a_head_soon_and_white_space_from_time_to_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    written = Written()
    answer = AnswerInLines(written.http(), "s")
    assert answer.deadline == trio.current_time() + HEAD_DELAY
    await answer.keep_alive()
    assert (written.head is not None, written.data) == (True, b"")
    assert answer.deadline == trio.current_time() + KEEP_ALIVE_INTERVAL
    await answer.keep_alive()
    await answer.updates([updating(text("a"))])
    # A line with white space before it is the same JSON.
    assert written.data.startswith(b" {")
    assert written.lines == [{"type": "text", "content": "a", "seq": 1}]


async def test_a_completion_is_one_response() -> None:
    written = Written()
    answer = AnswerInOnePiece(written.http(), "s", "demo", 100)
    await answer.updates([updating(text("a"))])
    await answer.permission("k", asked())
    await answer.keep_alive()
    assert await answer.done("cancelled")
    assert written.response is not None
    assert json.loads(written.response.body)["choices"][0]["message"]["content"] == "a"
    failed = Written()
    assert await AnswerInOnePiece(failed.http(), "s", "demo", 100).failed("no")
    assert failed.response is not None
    assert failed.response.status == 500


async def test_a_completion_is_bounded_by_message_size() -> None:
    answer = AnswerInOnePiece(Written().http(), "s", "demo", 10)
    await answer.updates([updating(text("x" * 10))])
    with pytest.raises(AnswerTooLarge, match="message_size"):
        await answer.updates([updating(text("y"))])


def test_a_refusal_may_be_read_by_no_cache_and_sniffed_by_no_browser() -> None:
    headers = refusal(403, "no", {"Acp-Gateway": "forbidden"}).headers
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert headers["Acp-Gateway"] == "forbidden"
