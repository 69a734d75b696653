"""Plays the agent's side of a recording, so that what a client does can be looked at without the agent.

`Player` decides what comes when, and does no I/O. It walks along the recording: what the agent said is said again until
something comes that the client had said; there it waits for the client to say that as well. A request counts as the
next recorded one of its method, an answer as the recorded one with its id; what else they say does not matter. So the
walk goes on as the client leads it:

- What the client does not ask this time is skipped as soon as it asks something that was recorded later, and the
  answers to it are left out. If it does ask it after all, only the answer is said again.
- What was never recorded is answered with an error. Notifications and answers that were not recorded are ignored.
- A request that had no answer by the end of the recording gets an error there: nothing is left to come.

The agent's own requests keep the ids of the recording. Its answers get the ids that the client uses this time.
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
from acp_gateway.protocol import jsonrpc, lookup, spans
from acp_gateway.protocol.jsonrpc import IdKey, InvalidMessage, Kind, Message, RawId
from acp_gateway.protocol.methods import CREATE_ELICITATION
from acp_gateway.transports.link import LOST
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import ByteStream

MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
"""Bytes of one message of the client's: what the gateway takes by default."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One message of a recording."""

    seconds: float
    """Since the recording began."""
    from_client: bool
    message: Message


@dataclass(frozen=True, slots=True)
class RecordedConnection:
    """A recording, as it was read."""

    header: dict[str, Any]
    """The first line."""
    messages: tuple[Recorded, ...]
    skipped_lines: int
    """Lines that hold no message: text, or the torn end of a recording that was cut off."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a recording. Raises `ConfigError` for what can't be read or is none."""
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
        header = _json_object(lines[0])
        version = header.get(FORMAT_MEMBER)
        if not isinstance(version, int):
            raise ConfigError("is no recording of acp-gateway: its first line does not say so", file=str(path))
        if version > VERSION:
            raise ConfigError("was written by a newer acp-gateway: update this one", file=str(path))
        recorded = [_recorded(line) for line in lines[1:] if line]
        messages = tuple(entry for entry in recorded if entry is not None)
        return cls(header, messages, len(recorded) - len(messages))


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """A message that the agent says."""

    pause: float
    """Seconds that passed in the recording since what was said before it, by either side."""
    message: bytes


class Player:
    """The agent of a recording."""

    def __init__(self, messages: Sequence[Recorded]) -> None:
        self._messages = messages
        # The first message that the walk has not passed.
        self._at = 0
        # When in the recording the last message was said that the walk has passed, by either side.
        self._last = messages[0].seconds if messages else 0.0
        # What the walk need not wait for: messages of the client's that came, or that it has gone on without.
        self._matched: set[int] = set()
        # Requests among them that did not come.
        self._skipped: list[int] = []
        # Which message answers which request, both ways; a request that had no answer is not in it.
        self._answers = _answers(messages)
        self._requests = {answer: request for request, answer in self._answers.items()}
        # The ids that recorded requests of the client's have this time, by the request and by the recorded id.
        self._client_ids: dict[int, RawId] = {}
        self._ids: dict[IdKey, RawId] = {}
        # Requests that came and had no answer in the recording.
        self._unanswerable: list[RawId] = []

    def begin(self) -> list[PlannedMessage]:
        """Send the messages that the agent sent before any of the client."""
        return self._advance()

    def receive(self, text: bytes) -> list[PlannedMessage]:
        """Take one message of the client's; what the agent says then. Never raises."""
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
        """The next recorded request of a method, or else the last of those that were skipped."""
        for index in range(self._at, len(self._messages)):
            if self._is_request(index, method) and index not in self._matched:
                return index
        return next((index for index in reversed(self._skipped) if self._is_request(index, method)), None)

    def _is_request(self, index: int, method: str) -> bool:
        recorded = self._messages[index]
        return recorded.from_client and recorded.message.kind is Kind.REQUEST and recorded.message.method == method

    def _skip_until(self, end: int) -> None:
        """Wait for nothing of the client's that was recorded before `end`."""
        for index in range(self._at, end):
            recorded = self._messages[index]
            if recorded.from_client and index not in self._matched:
                self._matched.add(index)
                if recorded.message.kind is Kind.REQUEST:
                    self._skipped.append(index)

    def _match_other(self, message: Message) -> None:
        """Wait no more for a notification or an answer, if it was recorded before the client's next request."""
        for index in range(self._at, len(self._messages)):
            recorded = self._messages[index]
            if recorded.from_client and index not in self._matched:
                if recorded.message.kind is Kind.REQUEST:
                    return
                if _is_same(recorded.message, message):
                    self._matched.add(index)
                    return

    def _advance(self) -> list[PlannedMessage]:
        """Say what the agent said up to the next message that the client still has to send."""
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
        """Check whether a message is the agent's, and if it is a response, whether its request was made this time."""
        recorded = self._messages[index]
        if recorded.message.kind is Kind.RESPONSE:
            return self._requests.get(index) in self._client_ids
        return not recorded.from_client

    def _message_at(self, index: int) -> bytes:
        """A message of the agent's with the ids of this time."""
        message = self._messages[index].message
        if message.kind is Kind.RESPONSE:
            return jsonrpc.with_id(message, self._client_ids[self._requests[index]])
        if message.method == CREATE_ELICITATION:
            # It may name a request of the client's.
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
    """Be the agent of a recording for the client at `stdio`, until that has ended; closes it.

    With `speed` 1 the agent takes the time that it took in the recording, with 2 half of that; with 0 it says
    everything at once.
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
        # A client that has gone need not be waited for.
        ended.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_lost, say, nursery.cancel_scope)
            nursery.start_soon(_until_lost, listen, nursery.cancel_scope)
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()


async def _until_lost(task: Callable[[], Awaitable[None]], everything: trio.CancelScope) -> None:
    """Run one side of the conversation. When the client is lost nothing is left to do for the other one either."""
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
    """Check whether a notification or a response equals the recorded one."""
    if recorded.kind is not message.kind:
        return False
    if message.kind is Kind.RESPONSE:
        return jsonrpc.id_key(recorded.id) == jsonrpc.id_key(message.id)
    return recorded.method == message.method
