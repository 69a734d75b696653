"""A recording's agent: what it says when a client says what it had said, and when it says something else."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.events.recording import Recorder
from acp_gateway.gateway.events.replay import Player, Recorded, RecordedConnection, play
from acp_gateway.protocol import jsonrpc
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import TrioBytes


def request(number: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"id": number, "method": method, "params": params}


def answer(number: Any, result: Any = None) -> dict[str, Any]:
    return {"id": number, "result": result}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


def update(text: str) -> dict[str, Any]:
    return notification("session/update", text=text)


def recorded(*said: tuple[str, dict[str, Any]]) -> list[Recorded]:
    """Messages that follow each other by a second; `>` is the client's, `<` the agent's."""
    return [
        Recorded(float(n), who == ">", jsonrpc.parse(json.dumps(message).encode()))
        for n, (who, message) in enumerate(said)
    ]


class Client:
    """A client of a player, with the messages that it sends and receives."""

    def __init__(self, messages: Sequence[Recorded]) -> None:
        self.player = Player(messages)

    def hears(self) -> list[dict[str, Any]]:
        return [json.loads(cue.message) for cue in self.player.begin()]

    def says(self, message: dict[str, Any] | bytes) -> list[dict[str, Any]]:
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        return [json.loads(cue.message) for cue in self.player.receive(text)]


TALK = recorded(
    (">", request(0, "initialize")),
    ("<", answer(0, "ready")),
    (">", request(1, "session/new")),
    ("<", update("commands")),
    ("<", answer(1, "s")),
    (">", request(2, "session/prompt")),
    ("<", update("one")),
    ("<", request("p", "session/request_permission")),
    (">", answer("p", "yes")),
    ("<", update("two")),
    (">", notification("session/cancel")),
    ("<", update("three")),
    ("<", answer(2, "cancelled")),
)


@pytest.fixture
def client() -> Client:
    return Client(TALK)


def test_a_client_that_does_the_same_hears_the_same(client: Client) -> None:
    assert client.hears() == []
    assert client.says(request(0, "initialize")) == [answer(0, "ready")]
    assert client.says(request(1, "session/new")) == [update("commands"), answer(1, "s")]
    permission = request("p", "session/request_permission")
    assert client.says(request(2, "session/prompt")) == [update("one"), permission]
    assert client.says(answer("p", "yes")) == [update("two")]
    assert client.says(notification("session/cancel")) == [update("three"), answer(2, "cancelled")]


def test_what_the_agent_says_first_is_said_first() -> None:
    assert Client(recorded(("<", update("hello")), (">", request(1, "x")))).hears() == [update("hello")]


def test_answers_have_the_ids_of_this_time_with_their_spelling() -> None:
    (cue,) = Client(TALK).player.receive(b'{"id":"a\\u0062","method":"initialize"}')
    assert cue.message == b'{"id": "a\\u0062", "result": "ready"}'


def test_what_a_client_does_not_ask_this_time_is_skipped_and_not_answered(client: Client) -> None:
    assert client.says(request(7, "session/prompt")) == [
        update("commands"),
        update("one"),
        request("p", "session/request_permission"),
    ]


def test_what_was_skipped_is_answered_when_it_is_asked_after_all(client: Client) -> None:
    client.says(request(7, "session/prompt"))
    assert client.says(request(8, "initialize")) == [answer(8, "ready")]
    assert client.says(request(9, "session/new")) == [answer(9, "s")]


def test_requests_that_come_in_another_order_are_answered_all_the_same() -> None:
    client = Client(
        recorded((">", request(1, "a")), (">", request(2, "b")), ("<", answer(1, "A")), ("<", answer(2, "B")))
    )
    assert client.says(request(5, "b")) == [answer(5, "B")]
    assert client.says(request(6, "a")) == [answer(6, "A")]


def test_a_skipped_request_that_comes_before_its_answer_has_passed_is_answered_in_its_place() -> None:
    client = Client(
        recorded(
            (">", request(1, "a")),
            (">", request(2, "b")),
            (">", notification("go")),
            ("<", answer(1, "A")),
            ("<", answer(2, "B")),
        )
    )
    assert client.says(request(5, "b")) == []
    assert client.says(request(6, "a")) == []
    assert client.says(notification("go")) == [answer(6, "A"), answer(5, "B")]


def test_the_same_request_again_is_the_next_one_that_was_recorded() -> None:
    client = Client(
        recorded((">", request(1, "a")), ("<", answer(1, "x")), (">", request(1, "a")), ("<", answer(1, "y")))
    )
    assert client.says(request(1, "a")) == [answer(1, "x")]
    assert client.says(request(1, "a")) == [answer(1, "y")]


def test_a_request_that_was_never_recorded_is_an_unknown_method(client: Client) -> None:
    assert client.says(request(5, "session/list")) == [
        {"jsonrpc": "2.0", "id": 5, "error": {"code": -32601, "message": "session/list was not recorded"}}
    ]
    assert client.says(request(0, "initialize")) == [answer(0, "ready")]


def test_a_prompt_after_the_last_recorded_one_is_told_that_there_is_none(client: Client) -> None:
    client.says(request(7, "session/prompt"))
    (refusal,) = client.says(request(8, "session/prompt"))
    assert (refusal["id"], refusal["error"]["code"]) == (8, -32603)
    assert refusal["error"]["message"] == (
        "the recording has no further session/prompt: what was recorded has been said"
    )


def test_what_the_recording_ends_before_is_answered_with_an_error_at_its_end() -> None:
    client = Client(
        recorded((">", request(1, "a")), (">", request(2, "b")), (">", notification("n")), ("<", update("u")))
    )
    assert client.says(request(5, "b")) == []
    said, refusal = client.says(notification("n"))
    assert said == update("u")
    assert (refusal["id"], refusal["error"]["message"]) == (5, "the recording ends before the answer to this")
    (late,) = client.says(request(6, "a"))
    assert (late["id"], late["error"]["message"]) == (6, "the recording ends before the answer to this")


def test_notifications_and_answers_that_were_not_recorded_are_ignored(client: Client) -> None:
    client.says(request(2, "session/prompt"))
    assert client.says(notification("unknown")) == []
    assert client.says(answer("q", "yes")) == []
    assert client.says(answer("p", "yes")) == [update("two")]


def test_a_notification_that_was_recorded_behind_a_later_request_does_not_skip_it(client: Client) -> None:
    assert client.says(notification("session/cancel")) == []
    assert client.says(request(0, "initialize")) == [answer(0, "ready")]


def test_an_answer_may_come_before_what_was_recorded_before_it() -> None:
    client = Client(
        recorded(("<", request(1, "a")), ("<", request(2, "b")), (">", answer(1)), (">", answer(2)), ("<", update("u")))
    )
    client.hears()
    assert client.says(answer(2)) == []
    assert client.says(answer(2)) == []
    assert client.says(answer(1)) == [update("u")]


def test_answers_to_what_is_not_a_message_are_not_repeated_but_made_again() -> None:
    client = Client(recorded((">", request(1, "a")), ("<", {"id": None, "error": {"code": -32700}}), ("<", answer(1))))
    (refusal,) = client.says(b"nothing")
    assert (refusal["id"], refusal["error"]["code"]) == (None, -32700)
    assert client.says(request(1, "a")) == [answer(1)]


def test_a_form_names_the_request_that_it_belongs_to_by_the_id_of_this_time() -> None:
    form = partial(request, "f", "elicitation/create")
    client = Client(
        recorded((">", request(1, "a")), *(("<", form(**p)) for p in ({"requestId": 1}, {"requestId": 9}, {})))
    )
    assert client.says(request("new", "a"))[:3] == [form(requestId="new"), form(requestId=9), form()]


def test_a_recording_of_nothing_answers_with_errors() -> None:
    client = Client([])
    assert client.hears() == []
    assert client.says(request(1, "initialize"))[0]["error"]["code"] == -32601


def test_pauses_are_those_of_the_agent_and_not_those_of_the_client() -> None:
    times = [0.0, 5.0, 6.5, 6.0, 60.0, 61.0]
    said = recorded(
        (">", request(1, "a")),
        ("<", update("x")),
        ("<", answer(1)),
        ("<", update("y")),
        (">", request(2, "b")),
        ("<", answer(2)),
    )
    player = Player([Recorded(t, r.from_client, r.message) for t, r in zip(times, said, strict=True)])
    assert [cue.pause for cue in player.receive(b'{"id":1,"method":"a"}')] == [5.0, 1.5, 0.0]
    assert [cue.pause for cue in player.receive(b'{"id":1,"method":"b"}')] == [1.0]


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_whatever_the_order_every_request_is_answered_once(order: list[int], unanswered: set[int]) -> None:
    asked = [(">", request(n, f"m{n}")) for n in range(5)]
    answered = [("<", answer(n, n)) for n in range(5) if n not in unanswered]
    early = answered[: 0 in {message["result"] for _, message in answered}]
    client = Client(recorded(*asked[:2], *early, *asked[2:], *answered[len(early) :]))
    heard = [message for n in order for message in client.says(request(f"new{n}", f"m{n}"))]
    assert sorted(message["id"] for message in heard) == [f"new{n}" for n in range(5)]
    for message in heard:
        assert message.get("result") == (None if int(message["id"][3:]) in unanswered else int(message["id"][3:]))


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


HEADER = '{"acp-gateway-recording":1,"agent":"opencode"}'


def test_what_the_gateway_records_can_be_read(tmp_path: Path) -> None:
    tape = Recorder(tmp_path, 10_000, clock=lambda: 5.0).open("c1", {"agent": "opencode"})
    tape.write("from_client", [b'{"id": 1e0, "method": "a", "params": {"token": "x", "n": 1.10}}', b"banner"])
    tape.write("to_client", [b'{"id":1e0,"result":null}'])
    (path,) = tmp_path.iterdir()
    recording = RecordedConnection.read(path)
    assert (recording.header["agent"], recording.skipped_lines) == ("opencode", 1)
    assert [(entry.seconds, entry.from_client, entry.message.text) for entry in recording.messages] == [
        (0.0, True, rb'{"id":1e0,"method":"a","params":{"token":"\u2026","n":1.10}}'),
        (0.0, False, b'{"id":1e0,"result":null}'),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "torn",
        "[]",
        " ",
        '{"t":1}',
        '{"t":"x","from":"agent","message":{"method":"a"}}',
        '{"t":1,"from":"agent","message":{}}',
        '{"t":1,"from":"agent","mess',
    ],
)
def test_a_line_without_a_message_is_passed_over(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "r", HEADER, line, '{"t":1,"from":"agent","message":{"method":"a"}}')
    recording = RecordedConnection.read(path)
    assert (len(recording.messages), recording.skipped_lines) == (1, 1)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("", "is not a recording"),
        ("[1]", "is not a recording"),
        ("{}", "is not a recording"),
        ("[" * 100_000, "is not a recording"),
        ('{"acp-gateway-recording":"1"}', "is not a recording"),
        ('{"acp-gateway-recording":2}', "newer acp-gateway"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_a_recording_is_an_error_in_words(tmp_path: Path, first: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        RecordedConnection.read(write(tmp_path / "r", first))


def test_a_recording_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        RecordedConnection.read(tmp_path / "r")


class Editor:
    """The other end of a player's stdio."""

    def __init__(self, messages: Sequence[Recorded], speed: float = 0.0) -> None:
        near, self.far = trio.testing.memory_stream_pair()
        self.lines = LineStream(TrioBytes(self.far), max_message_size=10_000)
        self.playing = partial(play, TrioBytes(near), RecordedConnection({}, tuple(messages), 0), speed=speed)

    async def hears(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.lines.receive())
        return message

    async def says(self, *messages: dict[str, Any]) -> None:
        await self.lines.send_batch([json.dumps(message).encode() for message in messages])


async def test_an_editor_hears_the_recorded_agent() -> None:
    editor = Editor([*recorded(("<", update("hello"))), *TALK])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(editor.playing)
        assert await editor.hears() == update("hello")
        await editor.says(request("i", "initialize"), request("n", "session/new"))
        assert [await editor.hears() for _ in range(3)] == [answer("i", "ready"), update("commands"), answer("n", "s")]
        await editor.far.send_eof()
        with pytest.raises(trio.EndOfChannel):
            await editor.hears()


async def test_at_a_speed_the_agent_takes_its_time(autojump_clock: trio.testing.MockClock) -> None:
    editor = Editor(TALK, speed=0.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(editor.playing)
        await editor.says(request(0, "initialize"))
        await editor.hears()
        assert trio.current_time() == pytest.approx(2.0)
        await editor.says(request(1, "session/new"))
        await editor.hears()
        await editor.hears()
        assert trio.current_time() == pytest.approx(6.0)
        nursery.cancel_scope.cancel()


async def test_without_a_speed_nothing_takes_time(autojump_clock: trio.testing.MockClock) -> None:
    editor = Editor(TALK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(editor.playing)
        await editor.says(request(0, "initialize"))
        await editor.hears()
        assert trio.current_time() == 0.0
        nursery.cancel_scope.cancel()


async def test_an_editor_that_has_said_all_gets_the_rest_at_once(autojump_clock: trio.testing.MockClock) -> None:
    editor = Editor(TALK, speed=1e-6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(editor.playing)
        await editor.says(request(0, "initialize"))
        await editor.far.send_eof()
        assert await editor.hears() == answer(0, "ready")
    assert trio.current_time() == 0.0


async def test_an_editor_that_is_gone_ends_it() -> None:
    editor = Editor(TALK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(editor.playing)
        await editor.says(request(0, "initialize"))
        await editor.far.aclose()
    assert math.isfinite(trio.current_time())
