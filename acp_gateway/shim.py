"""What an editor starts as if it were the agent: its stdin and stdout on this side, the gateway on the other.

The editor must get an answer whatever happens, so a gateway that can't be reached is an error to its `initialize`,
with the reason in `error.data.reason`. Messages pass as they are, but for path maps. stdout carries messages only;
stderr stays silent as long as all is well, because there are editors that never read it and others that show every
line of it as an error.
"""

import json
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from acp_gateway.dialing import Destination, dial, printable
from acp_gateway.errors import AgentError, Forbidden, GatewayError, ProtocolError, Unreachable
from acp_gateway.protocol import spans
from acp_gateway.protocol.paths import PathMaps
from acp_gateway.protocol.spans import MalformedJson
from acp_gateway.protocol.unanswered import Unanswered
from acp_gateway.transports.base import ByteStream, MessageStream, MessageTooLarge, is_utf8
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.websocket import Timing, WebSocketStream

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 2.0
"""Seconds between two attempts to reach a gateway; doubled from the first to the longest."""

PATIENCE_FOR_EDITOR: Final = 2.0
"""Seconds that the editor's first message is waited for when there is only an error to answer it with."""

REFUSED_SIZE: Final = 1024 * 1024
"""Bytes of a first request that is only read to be refused."""

PATIENCE_FOR_REASON: Final = 2.0
"""Seconds that a broken connection's reason is waited for on the receiving side."""

PROMPT: Final = "session/prompt"

_PARSE_ERROR: Final = -32700
_INTERNAL_ERROR: Final = -32603


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line and hosts.toml say, apart from the destination."""

    maps: PathMaps
    connect_timeout: float
    """Seconds within which the first connection must succeed."""
    max_message_size: int
    """Bytes of one message from the editor."""
    timing: Timing = field(default_factory=Timing)


async def run(stdio: ByteStream, destination: Callable[[], Destination], settings: Settings) -> None:
    """Connect the editor with the gateway until the editor is gone; then say goodbye and return.

    Args:
        stdio: the editor; closed at the end.
        destination: called before each attempt to connect; may raise `GatewayError`, which ends them.
        settings: the rest.

    SIGTERM and SIGINT count as the editor being gone. Raises `GatewayError` when the gateway can't be reached or says
    no; the editor's first request has been answered with that error then. Raises it too when the gateway ends the
    connection, or the connection is lost.
    """
    editor = LineStream(stdio, max_message_size=settings.max_message_size, size_setting="--max-message-size")
    try:
        with trio.CancelScope() as until_signal:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on_signal, until_signal)
                outcome = await _serve_editor(editor, destination, settings)
                nursery.cancel_scope.cancel()
            if outcome is not None:
                log.error("%s", outcome)
                raise outcome
    finally:
        with trio.CancelScope(shield=True):
            await editor.aclose()


async def refuse(stdio: ByteStream, error: GatewayError) -> None:
    """Answer the editor's first request with an error that was found before there was anything to connect to."""
    log.error("%s", error)
    editor = LineStream(stdio, max_message_size=REFUSED_SIZE)
    try:
        await _answer_first_request(editor, [], error)
    finally:
        await editor.aclose()


async def _serve_editor(
    editor: LineStream, destination: Callable[[], Destination], settings: Settings
) -> GatewayError | None:
    """Everything between start and end; returns why it ended, None where the editor wanted it."""
    early: list[bytes] = []
    try:
        gateway = await _connect(editor, early, destination, settings)
    except GatewayError as error:
        await _answer_first_request(editor, early, error)
        return error
    if gateway is None:
        return None
    link = _Link(editor, gateway, settings)
    try:
        outcome = await link.relay(early)
    finally:
        with trio.CancelScope(shield=True):
            await gateway.aclose()
    if outcome is not None:
        link.answer_open_requests(outcome)
    return outcome


async def _connect(
    editor: LineStream, early: list[bytes], destination: Callable[[], Destination], settings: Settings
) -> MessageStream | None:
    """Reach the gateway, trying again for as long as it may take; None where the editor has gone meanwhile.

    What the editor sends meanwhile is put into `early`, one batch at most; the rest waits in the pipe.
    """
    found: list[MessageStream] = []
    failures: list[GatewayError] = []

    async def listen() -> None:
        try:
            early.extend(await editor.receive_batch())
        except MessageTooLarge:
            pass  # Comes again when it can be answered.
        except (trio.EndOfChannel, trio.BrokenResourceError):
            nursery.cancel_scope.cancel()

    async def attempt() -> None:
        try:
            found.append(await _dial_until(trio.current_time() + settings.connect_timeout, destination, settings))
        except GatewayError as error:
            failures.append(error)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        nursery.start_soon(attempt)
    if failures:
        raise failures[0]
    return found[0] if found else None


async def _dial_until(deadline: float, destination: Callable[[], Destination], settings: Settings) -> MessageStream:
    pause = FIRST_PAUSE
    failure: Unreachable | None = None
    while True:
        target = destination()
        with trio.move_on_at(deadline):
            try:
                stream = await dial(target, settings.timing)
            except Unreachable as error:
                log.info("%s", error)
                failure = error
            else:
                log.info("connected to %s", target.address)
                return stream
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        if trio.current_time() >= deadline:
            silence = f"{target.address}: no answer; is it the gateway's port, and does no firewall drop connections?"
            raise Unreachable(f"{failure or silence} (tried for {settings.connect_timeout:g} s)")


class _Link:
    """An editor and a gateway that are connected, and what passes between them."""

    def __init__(self, editor: LineStream, gateway: MessageStream, settings: Settings) -> None:
        self._editor = editor
        self._gateway = gateway
        self._maps = settings.maps
        self._patience = settings.connect_timeout
        self._unanswered = Unanswered()
        # Set whenever something came from the gateway while the editor's end is waited out.
        self._answer = trio.Event()

    async def relay(self, early: list[bytes]) -> GatewayError | None:
        """Pass messages both ways until one side is gone; returns why, None where it is the editor.

        `early` is what the editor has said already.
        """
        outcomes: list[GatewayError | None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._gateway.run)

            async def until_end(pump: Awaitable[GatewayError | None]) -> None:
                outcomes.append(await pump)
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_end, self._pump_up(early))
            nursery.start_soon(until_end, self._pump_down())
        return outcomes[0]

    def answer_open_requests(self, error: GatewayError) -> None:
        """Tell the editor why what it has asked will not be answered."""
        try:
            self._editor.send_nowait(
                [
                    _error(raw_id, _INTERNAL_ERROR, str(error), {"reason": error.reason})
                    for raw_id in self._unanswered.take()
                ]
            )
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # It has gone as well.

    async def _pump_up(self, batch: list[bytes]) -> GatewayError | None:
        """Editor to gateway, until one of them is gone; returns why, None where it is the editor."""
        while True:
            try:
                await self._send_up(batch)
            except trio.BrokenResourceError as error:
                # Why it is so is said to the one that receives.
                await trio.sleep(PATIENCE_FOR_REASON)
                return Unreachable(str(error))
            try:
                batch = await self._editor.receive_batch()
            except trio.EndOfChannel:
                await self._wait_for_answers()
                return None
            except MessageTooLarge as error:
                self._tell_editor(str(error))
                return ProtocolError(str(error))
            except trio.BrokenResourceError as error:
                log.info("the editor: %s", error)
                return None

    async def _send_up(self, batch: list[bytes]) -> None:
        outgoing = []
        for message in batch:
            if is_utf8(message):
                self._unanswered.asked(message)
                outgoing.append(self._maps.to_remote(message))
            else:
                # A text frame with it would end the whole connection.
                self._tell_editor("not UTF-8")
        if outgoing:
            await self._gateway.send_batch(outgoing)

    async def _wait_for_answers(self) -> None:
        """Wait for what a script that has ended its input still wants to read; not for the end of a turn."""
        with trio.move_on_after(self._patience):
            while any(method != PROMPT for method in self._unanswered.methods()):
                await self._answer.wait()
                self._answer = trio.Event()

    async def _pump_down(self) -> GatewayError | None:
        """Gateway to editor, until one of them is gone; returns why, None where it is the editor."""
        while True:
            try:
                batch = await self._gateway.receive_batch()
            except trio.EndOfChannel:
                return _why_closed(self._gateway)
            except trio.BrokenResourceError as error:
                return Unreachable(str(error))
            if self._maps:
                batch = [_explain_missing(self._maps.to_local(message), self._maps) for message in batch]
            try:
                await self._editor.send_batch(batch)
            except trio.BrokenResourceError:
                return None
            for message in batch:
                self._unanswered.answered(message)
            self._answer.set()

    def _tell_editor(self, what: str) -> None:
        """Answer something that is no message."""
        try:
            self._editor.send_nowait([_error(b"null", _PARSE_ERROR, what, {"reason": "protocol"})])
        except trio.BrokenResourceError:
            pass  # It doesn't read any more, which shows elsewhere.


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
    data = {"reason": "no_such_directory", "cwd": local, "remote": remote}
    return _error(message[raw_id[0] : raw_id[1]], response["error"]["code"], why, data)


def _why_closed(gateway: MessageStream) -> GatewayError:
    """The error for a gateway that has closed the connection, as far as it said why."""
    code = gateway.close_code if isinstance(gateway, WebSocketStream) else None
    said = printable(gateway.close_text) if isinstance(gateway, WebSocketStream) else ""
    text = f"the gateway closed the connection{': ' if said else ''}{said}"
    match code:
        case 1008:
            return Forbidden(text)
        case 1009:
            return ProtocolError(text)
        case 1011:
            return AgentError(text)
        case _:
            return Unreachable(text)


async def _answer_first_request(editor: LineStream, early: list[bytes], error: GatewayError) -> None:
    """Answer what the editor asked first, or is about to ask, with the reason why there is no agent for it."""
    try:
        if not early:
            with trio.move_on_after(PATIENCE_FOR_EDITOR):
                early += await editor.receive_batch()
        for message in early:
            raw_id = _request_id(message)
            if raw_id is not None:
                await editor.send(_error(raw_id, _INTERNAL_ERROR, str(error), {"reason": error.reason}))
    except (trio.EndOfChannel, trio.BrokenResourceError):
        pass  # The editor has gone.


def _request_id(message: bytes) -> bytes | None:
    """The JSON text of a request's id, None for anything else."""
    try:
        at = spans.find(message, "id")
        if at is None or spans.find(message, "method") is None:
            return None
    except MalformedJson:
        return None
    return message[at[0] : at[1]]


def _error(raw_id: bytes, code: int, message: str, data: dict[str, str]) -> bytes:
    body = json.dumps({"code": code, "message": message, "data": data}, separators=(",", ":")).encode()
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, body)


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("received %s", signal.Signals(number).name)
            scope.cancel()
            return
