"""What an editor starts as if it were the agent: its stdin and stdout on this side, the gateway on the other.

The editor must get an answer whatever happens, so a gateway that can't be reached is an error to its `initialize`,
with the reason in `error.data.reason`. After that it must not notice more than a pause: editors don't start a shim
again that has ended. So the link below is kept up (`uplink`), and where the gateway has forgotten it, what is open is
taken up again on a new one (`protocol.conversation`).

The editor is read all the while, with a connection or without, and what it says waits in the link's outbox; in a
recovery it waits here. Downwards nothing waits but for the editor. What the editor doesn't take is not confirmed to the
gateway, which stops sending when its window is full.

Messages pass as they are, but for path maps. stdout carries messages only; stderr stays silent as long as all is well,
because there are editors that never read it and others that show every line of it as an error.
"""

import json
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import trio

from acp_gateway.client.dialing import Destination
from acp_gateway.client.recovery import Outcome, RecoveryState
from acp_gateway.client.uplink import ReconnectSettings, Uplink
from acp_gateway.errors import GatewayError, ProtocolError
from acp_gateway.protocol import json_text, spans
from acp_gateway.protocol.methods import PROMPT
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.transports.link import LOST
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import ByteStream, MessageTooLarge, is_utf8

log = logging.getLogger(__name__)

EDITOR_TIMEOUT: Final = 2.0
"""Seconds that the editor's first message is waited for when there is only an error to answer it with."""

REFUSED_SIZE: Final = 1024 * 1024
"""Bytes of a first request that is only read to be refused."""

BACKLOG: Final = 64 * 1024 * 1024
"""Bytes of the editor's that wait for a connection at most; past it the editor is not read. A prompt with pictures has
a few megabytes, and what a person says in a day without a connection fits as well."""

HIGH_WATER: Final = 256 * 1024
"""Bytes that the editor may not have taken yet and that count as passed on: more than a pipe holds, so that it always
has something to read."""

_PARSE_ERROR: Final = -32700


class Settings(NamedTuple):
    """What the command line and hosts.toml say, apart from the destination."""

    maps: PathMaps
    max_message_size: int
    """Bytes of one message from the editor."""
    persistence: ReconnectSettings
    backlog: int = BACKLOG


async def run(stdio: ByteStream, destination: Callable[[], Destination], settings: Settings) -> None:
    """Connect the editor with the gateway until the editor is gone; then say goodbye and return.

    Args:
        stdio: the editor; closed at the end.
        destination: called before each attempt to connect; may raise `GatewayError`, which ends it if nothing has
            succeeded before.
        settings: the rest.

    SIGTERM and SIGINT count as the editor being gone. Raises `GatewayError` when the gateway can't be reached at first,
    or says no at any time; what the editor has asked has been answered with that error then.
    """
    editor = LineStream(stdio, max_message_size=settings.max_message_size, size_setting="--max-message-size")
    try:
        with trio.CancelScope() as until_signal:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on_signal, until_signal)
                nursery.start_soon(editor.run)
                outcome = await _Shim(editor, destination, settings).serve()
                # What is being written must not be torn: cancelling comes after that.
                await editor.aclose()
                nursery.cancel_scope.cancel()
            if outcome is not None:
                log.error("%s", outcome)
                raise outcome
        log.info("the end")
    finally:
        with trio.CancelScope(shield=True):
            await editor.aclose()


async def refuse(stdio: ByteStream, error: GatewayError) -> None:
    """Answer the editor's first request with an error that was found before there was anything to connect to."""
    log.error("%s", error)
    editor = LineStream(stdio, max_message_size=REFUSED_SIZE)
    try:
        await _answer_first_request(editor, RecoveryState(), error)
    finally:
        await editor.aclose()


class _Shim:
    """An editor, which is being run, and what passes between it and the gateway. It owns the uplink."""

    def __init__(self, editor: LineStream, destination: Callable[[], Destination], settings: Settings) -> None:
        self._editor = editor
        self._maps = settings.maps
        self._backlog = settings.backlog
        self._patience = settings.persistence.connect_timeout
        self._conversation = RecoveryState()
        self._uplink = Uplink(self, destination, settings.persistence)
        # Whether the editor has said anything, and whether it takes nothing any more.
        self._heard = False
        self._editor_gone = False
        # In a recovery: the link that was lost, what had not left on it, and what the editor has said since.
        self._lost_link = ""
        self._unsent: list[bytes] = []
        self._held: list[bytes] = []
        self._kept_bytes = 0
        # Whether the last recovery failed, so that there is no link before the editor wants something.
        self._failed = False
        # Unparked when something came from the gateway or the link's state is another; and when the editor is behind.
        self._change = trio.lowlevel.ParkingLot()
        self._editor_behind = trio.lowlevel.ParkingLot()

    async def serve(self) -> GatewayError | None:
        """Everything between start and end; returns why it ended, None where the editor wanted it."""
        outcomes: list[GatewayError | None] = []
        async with trio.open_nursery() as nursery:

            async def until_end(task: Awaitable[GatewayError | None]) -> None:
                outcomes.append(await task)
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_end, self._uplink.run())
            nursery.start_soon(until_end, self._read_editor())
            nursery.start_soon(until_end, self._settle_later())
        outcome = outcomes[0]
        if outcome is not None and self._heard:
            self._tell(self._conversation.give_up(str(outcome), outcome.reason))
        elif outcome is not None:
            await _answer_first_request(self._editor, self._conversation, outcome)
        return outcome

    # Editor to gateway

    async def _read_editor(self) -> GatewayError | None:
        while True:
            try:
                batch = await self._editor.receive_batch()
            except trio.EndOfChannel:
                await self._wait_for_answers()
                log.info("the editor has closed the connection")
                return None
            except MessageTooLarge as error:
                self._refuse_message(str(error))
                return ProtocolError(str(error))
            except LOST as error:
                log.info("the editor: %s", error)
                return None
            self._hear(batch)
            while self._waiting_bytes >= self._backlog:
                await self._change.park()

    def _hear(self, batch: list[bytes]) -> None:
        """The editor has said something."""
        self._heard = True
        messages = []
        for message in batch:
            if is_utf8(message):
                messages.append(self._maps.to_remote(message))
            else:
                # A text frame with it would end the whole connection.
                self._refuse_message("not UTF-8")
        if self._failed:
            self._failed = False
            self._uplink.begin()
            self._recover("the agent had ended, or could not be started")
        if self._conversation.recovering:
            self._held += messages
            self._kept_bytes += sum(map(len, messages))
            self._send_what_may_go()
        else:
            self._do(self._conversation.from_editor(messages))
        self._uplink.wake()

    @property
    def _waiting_bytes(self) -> int:
        """Bytes of the editor's that have not left."""
        return self._uplink.link.outbox.unwritten_bytes + self._kept_bytes

    async def _wait_for_answers(self) -> None:
        """Wait for what a script that has ended its input still wants to read; not for the end of a turn.

        Where the link was lost, nobody is kept waiting. Who has said nothing at all wants to know whether there is a
        gateway: the end of its input is no success before there was a connection.
        """
        self._uplink.hurry()
        while not (self._uplink.up or self.started) and (self._busy or not self._heard):
            await self._change.park()
        with trio.move_on_after(self._patience):
            while self._uplink.up and self._busy:
                await self._change.park()

    @property
    def _busy(self) -> bool:
        """Whether anything has to be sent or answered, but for prompts."""
        asked = any(method != PROMPT for method in self._conversation.waiting())
        return asked or self._uplink.link.behind or bool(self._unsent or self._held)

    # Gateway to editor: what the uplink calls

    @property
    def started(self) -> bool:
        """Whether `initialize` was answered with a result."""
        return self._conversation.started

    @property
    def waiting(self) -> bool:
        """Whether the editor waits for an answer."""
        return bool(self._conversation.waiting())

    def changed(self) -> None:
        """The link's state is another."""
        self._change.unpark_all()

    def receive(self, batch: list[bytes]) -> None:
        """The gateway has said something."""
        recovering = self._conversation.recovering
        self._do(self._conversation.from_gateway(batch))
        if recovering and self._conversation.recovering:
            self._send_what_may_go()
        elif recovering:
            self._end_recovery()
        if self._editor.pending_bytes <= HIGH_WATER:
            self._uplink.link.settle()
        else:
            self._editor_behind.unpark_all()
        self._change.unpark_all()

    def start_over(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """There is a new link."""
        if not self._conversation.recovering:
            # What a recovery has said itself is said again by the next one.
            self._lost_link, self._unsent = connection_id, unsent
            self._kept_bytes = sum(map(len, unsent))
        self._recover(why)

    def lose_agent(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """The agent has ended. There is another one when the editor wants something, or does already."""
        if not self._conversation.recovering:
            self._lost_link, self._unsent = connection_id, unsent
            self._kept_bytes = sum(map(len, unsent))
        if self.waiting or self._unsent or self._held:
            self._uplink.begin()
            self._recover(why)
        else:
            self._failed = True

    def give_up(self, error: GatewayError) -> None:
        """Nobody knows when what is asked can be answered."""
        self._unsent.clear()
        self._held.clear()
        self._kept_bytes = 0
        self._tell(self._conversation.give_up(str(error), error.reason))

    async def taken(self) -> None:
        """Wait until the editor has taken what there was for it, but for a little."""
        try:
            await self._editor.drain(HIGH_WATER)
        except LOST:
            pass  # Its end shows where it is written to.

    def _send_what_may_go(self) -> None:
        """In a recovery: send what need not wait for its end, in order for each session."""
        unsent, self._unsent = self._parted(self._unsent)
        held, self._held = self._parted(self._held)
        if unsent or held:
            outcome = self._conversation.from_editor(held)
            outcome.to_gateway = self._conversation.still_meant([*unsent, *outcome.to_gateway])
            self._kept_bytes = sum(map(len, self._unsent)) + sum(map(len, self._held))
            self._do(outcome)

    def _parted(self, messages: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Those that need not wait for the end of a recovery, and the others."""
        going: list[bytes] = []
        waiting: list[bytes] = []
        for message in messages:
            (going if self._conversation.may_go(message) else waiting).append(message)
        return going, waiting

    def _recover(self, why: str) -> None:
        self._do(self._conversation.begin_recovery(self._lost_link, self._unsent, why))
        if not self._conversation.recovering:
            self._end_recovery()

    def _end_recovery(self) -> None:
        """All that can be taken up again is; or nothing is, and the editor's next message is a reason to try again."""
        unsent, self._unsent = self._unsent, []
        held, self._held = self._held, []
        self._kept_bytes = 0
        outcome = self._conversation.from_editor(held)
        failure = self._conversation.failure
        if failure is None:
            log.info("recovered: the new link is in use")
            outcome.to_gateway = self._conversation.still_meant([*unsent, *outcome.to_gateway])
            self._do(outcome)
            return
        log.error("the agent can't be reached again: %s", failure.message)
        self._failed = True
        self._tell(outcome.to_editor)
        self._tell(self._conversation.give_up(failure.message, failure.reason or "agent"))
        self._uplink.rest("the gateway answered initialize with an error")

    def _do(self, outcome: Outcome) -> None:
        for note in outcome.notes:
            log.info("%s", note)
        self._tell(outcome.to_editor)
        if outcome.to_gateway:
            self._uplink.link.send(outcome.to_gateway)

    def _tell(self, messages: Sequence[bytes]) -> None:
        """Say something to the editor; does not wait for it to listen."""
        if self._maps:
            messages = [_explain_missing(self._maps.to_local(message), self._maps) for message in messages]
        try:
            self._editor.send_nowait(messages)
        except LOST as error:
            log.info("the editor: %s", error)
            self._editor_gone = True
            self._editor_behind.unpark_all()

    def _refuse_message(self, what: str) -> None:
        """Answer something that is no message."""
        self._tell([json_text.error(b"null", _PARSE_ERROR, what, "protocol")])

    async def _settle_later(self) -> None:
        """Confirm what a slow editor has taken. Returns when it takes nothing any more."""
        while not self._editor_gone:
            if self._editor.pending_bytes <= HIGH_WATER:
                await self._editor_behind.park()
                continue
            try:
                await self._editor.drain(HIGH_WATER // 2)
            except LOST as error:
                log.info("the editor: %s", error)
                return
            self._uplink.link.settle()


def _explain_missing(message: bytes, maps: PathMaps) -> bytes:
    """A session's refusal because of its directory, in the editor's names: a map that is wrong can't be added to."""
    if b'"no_such_directory"' not in message:
        return message
    try:
        response = json.loads(message)
        remote = response["error"]["data"]["cwd"]
        local = maps.local_path(remote)
        raw_id = spans.find(message, "id")
    except (ValueError, LookupError, TypeError, AttributeError):
        return message
    if local == remote or raw_id is None:
        return message
    why = (
        f"there is no directory {remote} on the gateway's machine, which is what your map makes of {local}: "
        f"make it there, or correct the map (--map, or maps in hosts.toml)"
    )
    to, code = message[raw_id[0] : raw_id[1]], response["error"]["code"]
    return json_text.error(to, code, why, "no_such_directory", cwd=local, remote=remote)


async def _answer_first_request(editor: LineStream, conversation: RecoveryState, error: GatewayError) -> None:
    """Answer what the editor is about to ask first with the reason why there is no agent for it."""
    try:
        with trio.move_on_after(EDITOR_TIMEOUT):
            conversation.from_editor(await editor.receive_batch())
        await editor.send_batch(conversation.give_up(str(error), error.reason))
    except (trio.EndOfChannel, *LOST):
        pass  # The editor has gone.


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("received %s", signal.Signals(number).name)
            scope.cancel()
            return
