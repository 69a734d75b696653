"""Replays the agent's side of a recording or a fixture, to test a client without the agent.

`Player` selects the messages and does no I/O. It sends the agent's messages in order, and waits at each message of the
client until the client sends a matching one: a request matches the next recorded request of its method, a response the
recorded one with its id. The content is not compared.

- A recorded request that the client does not send is skipped when it sends a later one. Its response is left out, or
  sent if the request comes after all.
- A request that was not recorded gets an error. Notifications and responses that were not recorded are ignored.
- A request without a recorded response gets an error at the end of the recording.

The agent's requests keep the ids of the recording. Its responses get the ids of the client's present requests.
"""

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import trio

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.events.recording import FORMAT_MEMBER, VERSION
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.fixtures import is_fixture_line, read_line
from acp_gateway.protocol.jsonrpc import IdKey, InvalidMessage, Kind, Message, RawId
from acp_gateway.protocol.methods import CREATE_ELICITATION
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.transports.link import LOST
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import ByteStream

MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
"""Maximum bytes of one message of the client: the default of the gateway."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One message of a recording."""

    seconds: float
    """Seconds since the recording began."""
    from_client: bool
    message: Message


@dataclass(frozen=True, slots=True)
class RecordedConnection:
    """A recording that was read from its file."""

    header: dict[str, Any]
    """The first line; empty for a fixture."""
    messages: tuple[Recorded, ...]
    skipped_lines: int
    """Number of lines without a message: text, or the incomplete last line of a recording that was cut off."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a recording or a fixture.

        Raises `ConfigError` if the file can't be read or is neither of them.
        """
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
        if is_fixture_line(lines[0]):
            return cls._of(lines, {}, _from_fixture)
        header = _json_object(lines[0])
        version = header.get(FORMAT_MEMBER)
        if not isinstance(version, int):
            raise ConfigError("is not a recording of acp-gateway: its first line does not say so", file=str(path))
        if version > VERSION:
            raise ConfigError("was written by a newer acp-gateway: update this one", file=str(path))
        return cls._of(lines[1:], header, _recorded)

    @classmethod
    def _of(cls, lines: Sequence[bytes], header: dict[str, Any], read: Callable[[bytes], Recorded | None]) -> Self:
        recorded = [read(line) for line in lines if line]
        messages = tuple(entry for entry in recorded if entry is not None)
        return cls(header, messages, len(recorded) - len(messages))


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """A message of the agent, to be sent after a pause."""

    pause: float
    """Seconds since the previous message in the recording, of either side."""
    message: bytes


class Player:
    """The agent of a recording."""

    def __init__(self, messages: Sequence[Recorded]) -> None:
        self._messages = messages
        # Index of the next message.
        self._at = 0
        # Time of the message before that, in seconds of the recording.
        self._last = messages[0].seconds if messages else 0.0
        # Indexes of the client's messages that have come or were skipped.
        self._matched: set[int] = set()
        # Indexes of the skipped requests.
        self._skipped: list[int] = []
        # Indexes of responses by request, and of requests by response.
        self._answers = _answers(messages)
        self._requests = {answer: request for request, answer in self._answers.items()}
        # Present ids of the client's recorded requests, by index and by recorded id.
        self._client_ids: dict[int, RawId] = {}
        self._ids: dict[IdKey, RawId] = {}
        # Present ids of requests without a recorded response.
        self._unanswerable: list[RawId] = []

    def begin(self) -> list[PlannedMessage]:
        """Return the messages of the agent before the first one of the client."""
        return self._advance()

    def receive(self, text: bytes) -> list[PlannedMessage]:
        """Take a message of the client, and return the agent's next messages. Never raises."""
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage as error:
            return [PlannedMessage(0.0, jsonrpc.error(jsonrpc.NO_ID, error.code, str(error)))]
        if message.kind is Kind.REQUEST:
            return self._receive_request(message)
        self._match_other(message)
        return self._advance()

    def _receive_request(self, message: Message) -> list[PlannedMessage]:
        index = self._find_request(message.method)
        if index is None:
            return [PlannedMessage(0.0, self._refusal(message))]
        self._client_ids[index] = message.id
        self._ids[jsonrpc.id_key(self._messages[index].message.id)] = message.id
        answer = self._answers.get(index)
        if answer is None:
            self._unanswerable.append(message.id)
        if index in self._matched:
            self._skipped.remove(index)
        else:
            self._skip_until(index)
            self._matched.add(index)
        late = [] if answer is None or answer >= self._at else [PlannedMessage(0.0, self._message_at(answer))]
        return late + self._advance()

    def _find_request(self, method: str) -> int | None:
        """Return the index of the next recorded request of a method, or else of the last skipped one."""
        for index in range(self._at, len(self._messages)):
            if self._is_request(index, method) and index not in self._matched:
                return index
        return next((index for index in reversed(self._skipped) if self._is_request(index, method)), None)

    def _is_request(self, index: int, method: str) -> bool:
        recorded = self._messages[index]
        return recorded.from_client and recorded.message.kind is Kind.REQUEST and recorded.message.method == method

    def _skip_until(self, end: int) -> None:
        """Skip the client's messages before the index `end`."""
        for index in range(self._at, end):
            recorded = self._messages[index]
            if recorded.from_client and index not in self._matched:
                self._matched.add(index)
                if recorded.message.kind is Kind.REQUEST:
                    self._skipped.append(index)

    def _match_other(self, message: Message) -> None:
        """Match a notification or a response, if it was recorded before the client's next request."""
        for index in range(self._at, len(self._messages)):
            recorded = self._messages[index]
            if recorded.from_client and index not in self._matched:
                if recorded.message.kind is Kind.REQUEST:
                    return
                if _is_same(recorded.message, message):
                    self._matched.add(index)
                    return

    def _advance(self) -> list[PlannedMessage]:
        """Return the agent's messages up to the next message that the client still has to send."""
        plan: list[PlannedMessage] = []
        while self._at < len(self._messages):
            recorded = self._messages[self._at]
            if recorded.from_client and self._at not in self._matched:
                return plan
            if self._is_due(self._at):
                plan.append(PlannedMessage(max(0.0, recorded.seconds - self._last), self._message_at(self._at)))
            self._last = recorded.seconds
            self._at += 1
        over = "the recording ends before the answer to this"
        plan += [PlannedMessage(0.0, jsonrpc.error(to, jsonrpc.INTERNAL_ERROR, over)) for to in self._unanswerable]
        self._unanswerable.clear()
        return plan

    def _is_due(self, index: int) -> bool:
        """Return True for a message of the agent, unless it is a response whose request has not come."""
        recorded = self._messages[index]
        if recorded.message.kind is Kind.RESPONSE:
            return self._requests.get(index) in self._client_ids
        return not recorded.from_client

    def _message_at(self, index: int) -> bytes:
        """Return a message of the agent with the present ids."""
        message = self._messages[index].message
        if message.kind is Kind.RESPONSE:
            return jsonrpc.with_id(message, self._client_ids[self._requests[index]])
        if message.method == CREATE_ELICITATION:
            # It may name a request of the client.
            at = spans.find(message.text, "params", "requestId")
            raw = RawId(message.text[at[0] : at[1]]) if at is not None else jsonrpc.NO_ID
            if at is not None and jsonrpc.id_key(raw) in self._ids:
                return spans.splice(message.text, [(*at, self._ids[jsonrpc.id_key(raw)])])
        return message.text

    def _refusal(self, message: Message) -> bytes:
        if any(self._is_request(index, message.method) for index in range(len(self._messages))):
            why = f"the recording has no further {message.method}: what was recorded has been said"
            return jsonrpc.error(message.id, jsonrpc.INTERNAL_ERROR, why)
        return jsonrpc.error(message.id, jsonrpc.METHOD_NOT_FOUND, f"{message.method} was not recorded")


async def play(stdio: ByteStream, recording: RecordedConnection, *, speed: float) -> None:
    """Replay a recording for the client at `stdio` until the client has ended; closes the stream.

    Cancelling closes it as well. The pauses of the recording are divided by `speed`; with 0 there are none.
    """
    client = LineStream(stdio, max_message_size=MAX_MESSAGE_SIZE, size_setting="what a replay takes")
    player = Player(recording.messages)
    ended = trio.Event()
    plan, outgoing = trio.open_memory_channel[PlannedMessage](math.inf)

    async def say() -> None:
        async with outgoing:
            async for planned in outgoing:
                if speed and planned.pause:
                    with trio.move_on_after(planned.pause / speed):
                        await ended.wait()
                await client.send(planned.message)

    async def listen() -> None:
        async with plan:
            for planned in player.begin():
                plan.send_nowait(planned)
            async for batch in client:
                for message in batch:
                    for planned in player.receive(message):
                        plan.send_nowait(planned)
        # No pause is needed for a client that has ended.
        ended.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_lost, say, nursery.cancel_scope)
            nursery.start_soon(_until_lost, listen, nursery.cancel_scope)
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()


async def _until_lost(task: Callable[[], Awaitable[None]], everything: trio.CancelScope) -> None:
    """Run one direction; if the client is lost, cancel both."""
    try:
        await task()
    except LOST:
        everything.cancel()


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _recorded(line: bytes) -> Recorded | None:
    try:
        members = lookup.members_at(line)
        return Recorded(float(members["t"]), members["from"] == b'"client"', jsonrpc.parse(members["message"]))
    except (ValueError, LookupError):
        return None


def _from_fixture(line: bytes) -> Recorded | None:
    try:
        from_client, message = read_line(line)
        return Recorded(0.0, from_client, jsonrpc.parse(message))
    except ValueError:
        return None


def _answers(messages: Sequence[Recorded]) -> dict[int, int]:
    """Map the positions of the client's requests to those of their responses."""
    answers = {}
    waiting: dict[IdKey, int] = {}
    for index, recorded in enumerate(messages):
        if recorded.from_client and recorded.message.kind is Kind.REQUEST:
            waiting[jsonrpc.id_key(recorded.message.id)] = index
        elif not recorded.from_client and recorded.message.kind is Kind.RESPONSE:
            request = waiting.pop(jsonrpc.id_key(recorded.message.id), None)
            if request is not None:
                answers[request] = index
    return answers


def _is_same(recorded: Message, message: Message) -> bool:
    """Return True if a notification or a response matches the recorded one."""
    if recorded.kind is not message.kind:
        return False
    if message.kind is Kind.RESPONSE:
        return jsonrpc.id_key(recorded.id) == jsonrpc.id_key(message.id)
    return recorded.method == message.method
