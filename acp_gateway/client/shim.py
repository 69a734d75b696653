"""The shim: an editor starts it as its agent, and it relays stdin and stdout to a gateway.

Every request of the editor gets an answer. If the gateway can't be reached, `initialize` is answered with an error,
whose cause is in `error.data.reason`. Later outages must look like a pause, because editors don't restart a shim that
has ended. So `uplink` reconnects, and if the gateway has lost the link, `recovery` restores the sessions on a new one.

The editor is read at all times. Its messages wait in the link's outbox without a connection, and here during a
recovery. Messages to the editor are written at once; those it has not read are not confirmed to the gateway, which
stops sending when its window is full.

Messages are relayed unchanged, except for path maps. stdout carries messages only. stderr is silent unless there is an
error: some editors never read it, others show each line as an error.
"""

import json
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from acp_gateway.acp.worktrees import asking
from acp_gateway.client.dialing import Destination
from acp_gateway.client.editor_state import Outcome
from acp_gateway.client.feedback import NO_FEEDBACK, Feedback
from acp_gateway.client.recovery import RecoveryState
from acp_gateway.client.uplink import BACKOFF_MAX, ReconnectSettings, Uplink, backoff
from acp_gateway.errors import GatewayError
from acp_gateway.protocol.link_messages import Sent, without_marks
from acp_gateway.protocol.methods import NEWS, PROMPT
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.protocol.size_limit import TOO_LARGE
from acp_gateway.protocol.text import json_text, spans
from acp_gateway.protocol.text.json_text import ends_of, read_beginning, text_at
from acp_gateway.transports.link import LOST
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import ByteStream, MessageSkipped, MessageStream, is_utf8

if TYPE_CHECKING:
    from acp_gateway.client.ports.editor_forwards import EditorForwards

log = logging.getLogger(__name__)

EDITOR_TIMEOUT: Final = 2.0
"""Seconds to wait for the editor's first message when it can only be answered with an error."""

REFUSED_SIZE: Final = 1024 * 1024
"""Maximum bytes of a first request that is read only to be refused."""

BACKLOG: Final = 64 * 1024 * 1024
"""Bytes from the editor that wait for a connection, beyond which it is not read. A prompt with pictures has a few
megabytes, so a day's prompts fit."""

HIGH_WATER: Final = 256 * 1024
"""Bytes written but not yet read by the editor that still count as delivered: more than a pipe holds, so that the
editor always has something to read."""

FILE_TIMEOUT: Final = 10.0
"""Seconds to read the files that a prompt links to; then their links are sent: a disk of the network may be away."""

RETRIES: Final = 20
"""Recoveries after failed ones that no message of the editor began: for some four minutes, in which an agent behind
another gateway is back after most restarts. An agent that can't be started is not started for ever."""

_PARSE_ERROR: Final = -32700

_NEWS: Final = NEWS.encode()
_TURN_IS_OVER: Final = frozenset({"turn_ended", "closed", "deleted"})
"""News after which no turn runs."""


class LinkState(Enum):
    """The state of the link, as far as it concerns a client."""

    CONNECTED = "connected"
    LOST = "lost"
    """Disconnected; it will be connected again."""
    RESTING = "resting"
    """Disconnected until the client's next message: the agent has ended unused, or could not be started for minutes."""


class Settings(NamedTuple):
    """Settings from the command line and hosts.toml, apart from the destination."""

    maps: PathMaps
    max_message_size: int
    """Maximum bytes of one message from the editor."""
    reconnect: ReconnectSettings
    backlog: int = BACKLOG
    link_changed: Callable[[LinkState], None] = lambda _: None
    """Called with the state of the link whenever it has changed."""
    feedback: Feedback = NO_FEEDBACK
    """The user's feedback, which `reconnect` notifies too."""
    embeds_files: bool = False
    """True to embed files in prompts that only this machine has."""
    worktree: str | None = None
    """The name of the git working tree that each new session asks for, empty for any; None for none."""
    forwards: "EditorForwards | None" = None
    """Forwards the ports that agents offer; None where none are to be."""
    follows_turns: bool = False
    """True to notice a dead connection also in the turns of other clients, as the gateway's news tell of them."""


async def run(stdio: ByteStream, destination: Callable[[], Destination], settings: Settings) -> None:
    """Relay between the editor and the gateway until the editor closes its end; then close the link and return.

    Args:
        stdio: the editor; closed at the end.
        destination: called before each attempt to connect. A `GatewayError` that it raises is final before the first
            success.
        settings: the other settings.

    SIGTERM and SIGINT have the same effect as the editor closing. Raises `GatewayError` if the gateway can't be reached
    at first, or refuses at any time, after the editor's open requests were answered with that error.
    """
    size = settings.max_message_size
    editor = LineStream(stdio, max_message_size=size, size_setting="--max-message-size", skips=True)
    try:
        with trio.CancelScope() as until_signal:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on_signal, until_signal)
                nursery.start_soon(editor.run)
                outcome = await _Shim(editor, destination, settings).serve()
                # Close before cancelling, which could cut a message that is being written.
                await editor.aclose()
                nursery.cancel_scope.cancel()
            if outcome is not None:
                log.error("%s", outcome)
                raise outcome
        log.info("the end")
    finally:
        with trio.CancelScope(shield=True):
            await editor.aclose()


async def relay(editor: MessageStream, destination: Callable[[], Destination], settings: Settings) -> None:
    """Relay between a client in this process and the gateway, until the client closes its end; then close the link.

    `editor` is a stream in memory, or one that the caller runs. The other arguments and the errors are those of `run`.
    Cancelling closes the link, in bounded time.
    """
    outcome = await _Shim(editor, destination, settings).serve()
    if outcome is not None:
        raise outcome


async def refuse(stdio: ByteStream, error: GatewayError) -> None:
    """Answer the editor's first request with an error in the configuration."""
    log.error("%s", error)
    editor = LineStream(stdio, max_message_size=REFUSED_SIZE)
    try:
        await _answer_first_request(editor, RecoveryState(), error)
    finally:
        await editor.aclose()


class _Shim:
    """The relay between an editor, whose stream is being run, and an uplink that it owns."""

    def __init__(self, editor: MessageStream, destination: Callable[[], Destination], settings: Settings) -> None:
        self._editor = editor
        self._maps = settings.maps
        self._backlog = settings.backlog
        self._answer_timeout = settings.reconnect.connect_timeout
        self._jitter = settings.reconnect.jitter
        self._link_changed = settings.link_changed
        self._link_state: LinkState | None = None
        self._feedback = settings.feedback
        self._embeds = settings.embeds_files
        self._worktree = settings.worktree
        self._forwards = settings.forwards
        self._max_message_size = settings.max_message_size
        self._recovery = RecoveryState(tells_outages=settings.feedback.tells_outages)
        self._uplink = Uplink(self, destination, settings.reconnect)
        # Sessions with a turn, as news tell; None if they are not followed.
        self._at_work: set[str] | None = set() if settings.follows_turns else None
        # True after the editor's first message; true after its stdout has closed.
        self._received = False
        self._editor_gone = False
        # During a recovery: the id of the lost link, messages not sent over it, and later messages of the editor.
        self._lost_link = ""
        self._unsent: list[bytes] = []
        self._held: list[bytes] = []
        self._kept_bytes = 0
        # True after a failed recovery: the editor's next message begins another. Number of those begun without one.
        self._failed = False
        self._retries = 0
        # Unparked by messages from the gateway and by changes of the link; unparked when the editor is behind.
        self._change = trio.lowlevel.ParkingLot()
        self._editor_slow = trio.lowlevel.ParkingLot()

    async def serve(self) -> GatewayError | None:
        """Relay until one side ends; return the error, None if the editor has closed its end."""
        outcomes: list[GatewayError | None] = []
        async with trio.open_nursery() as self._nursery:
            nursery = self._nursery

            async def until_end(task: Awaitable[GatewayError | None]) -> None:
                outcomes.append(await task)
                nursery.cancel_scope.cancel()

            nursery.start_soon(self._feedback.run, self._recovery.turns, self._send_to_editor, self._recovery.note)
            if self._forwards is not None:
                can_ask = partial(self._recovery.speaks, 1)
                nursery.start_soon(self._forwards.run, self._send_to_editor, self._recovery.note, can_ask)
            nursery.start_soon(until_end, self._uplink.run())
            nursery.start_soon(until_end, self._read_editor())
            nursery.start_soon(until_end, self._confirm_later())
        outcome = outcomes[0]
        self._feedback.end(outcome)
        if outcome is not None and self._received:
            self.give_up(outcome)
        elif outcome is not None:
            await _answer_first_request(self._editor, self._recovery, outcome)
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
            except MessageSkipped as skipped:
                batch = self._refuse_large(skipped.begun, skipped.ended, str(skipped))
            except LOST as error:
                log.info("the editor: %s", error)
                return None
            if self._embeds:
                batch = [await self._with_files(message) for message in batch]
            self._receive_from_editor(batch)
            while self._waiting_bytes >= self._backlog:
                await self._change.park()

    async def _with_files(self, message: bytes) -> bytes:
        """Return a prompt with the files in it that its links name and only this machine has, any other message as it
        is; the user is told of those that are not in it."""
        if b'"resource_link"' not in message or b"file:" not in message or text_at(message, "method") != PROMPT:
            return message
        session_id = text_at(message, "params", "sessionId") or ""
        directories = self._recovery.directories(session_id)
        if directories is None:
            return message
        # Imported here to keep start-up fast: most prompts have no links.
        from acp_gateway.client.embedding import embed

        limit = self._max_message_size if self._uplink.limit is None else self._uplink.limit.size
        here = [self._maps.local_path(directory) for directory in directories]
        read = partial(embed, message, here, self._maps.has_uri, self._recovery.takes, limit)
        notes = [f"[acp-gateway: a file that the prompt links to was not read within {FILE_TIMEOUT:g} s.]"]
        with trio.move_on_after(FILE_TIMEOUT):
            message, notes = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        self._send_to_editor([self._recovery.note(session_id, words) for words in notes])
        return message

    def _receive_from_editor(self, batch: list[bytes]) -> None:
        """Relay messages of the editor, or hold them during a recovery."""
        self._received = True
        if self._forwards is not None:
            batch = [message for message in batch if not self._forwards.take_response(message)]
        messages = []
        limit = self._uplink.limit
        for message in batch:
            if not is_utf8(message):
                # In a text frame it would end the connection.
                self._refuse_message("not UTF-8")
                continue
            mapped = self._maps.to_remote(message)
            if self._worktree is not None:
                mapped = asking(mapped, self._worktree)
            if limit is None or len(mapped) <= limit.size:
                messages.append(mapped)
            else:
                messages += self._refuse_large(*ends_of(mapped), limit.describe(len(mapped)))
        if self._failed:
            self._recover_failed()
        if self._recovery.recovering:
            self._held += self._recovery.aimed(messages, self._held)
            self._kept_bytes += sum(map(len, messages))
            self._send_allowed()
        else:
            self._apply(self._recovery.from_editor(messages))
        self._uplink.wake()

    @property
    def _waiting_bytes(self) -> int:
        """Bytes from the editor that have not been sent."""
        return self._uplink.link.outbox.unwritten_bytes + self._kept_bytes

    async def _wait_for_answers(self) -> None:
        """After the end of stdin, wait until open requests other than prompts are answered: a script reads them.

        Does not wait if the link was lost after the first success; a loss before it is the answer. Without any input,
        waits for a connection: `connect TARGET </dev/null` tests whether a gateway can be reached.
        """
        self._uplink.use_short_timeout()
        while not (self._uplink.up or self.started) and (self._busy or not self._received):
            await self._change.park()
        with trio.move_on_after(self._answer_timeout):
            while (self._uplink.up or not self.started) and self._busy:
                await self._change.park()

    @property
    def _busy(self) -> bool:
        """True while messages have to be sent, or requests other than prompts are open."""
        asked = any(method != PROMPT for method in self._recovery.waiting())
        return asked or self._uplink.link.behind or bool(self._unsent or self._held)

    # Gateway to editor: what the uplink calls

    @property
    def started(self) -> bool:
        """True after `initialize` was answered with a result."""
        return self._recovery.started

    @property
    def waiting(self) -> bool:
        """True while a request of the editor is open, or a turn runs."""
        return self._is_asked or bool(self._at_work)

    @property
    def _is_asked(self) -> bool:
        """True while a request of the editor is open, or a turn that it knows."""
        return bool(self._recovery.waiting() or self._recovery.turns())

    def _follow_turns(self, at_work: set[str], batch: Sequence[bytes]) -> None:
        for message in batch:
            if _NEWS in message:
                session = text_at(message, "params", "sessionId") or ""
                event = text_at(message, "params", "event")
                if event == "turn_started":
                    at_work.add(session)
                elif event in _TURN_IS_OVER:
                    at_work.discard(session)

    def changed(self) -> None:
        """Wake the tasks that wait for a change of the link, and report it."""
        self._change.unpark_all()
        if self._uplink.up and not self._uplink.silent:
            self._report(LinkState.CONNECTED)
        elif self._link_state is LinkState.CONNECTED:
            self._report(LinkState.LOST)

    def _report(self, state: LinkState) -> None:
        if state is not self._link_state:
            self._link_state = state
            self._link_changed(state)

    def receive(self, batch: Sequence[Sent]) -> None:
        """Relay messages of the gateway, and continue or end a recovery."""
        recovering = self._recovery.recovering
        if self._at_work is not None:
            self._follow_turns(self._at_work, without_marks(batch))
        self._apply(self._recovery.from_gateway(batch))
        if recovering and self._recovery.recovering:
            self._send_allowed()
        elif recovering:
            self._end_recovery()
        if self._editor.pending_bytes <= HIGH_WATER:
            self._uplink.link.acknowledge()
        else:
            self._editor_slow.unpark_all()
        self._change.unpark_all()

    def start_over(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """Restore the sessions on a new link."""
        log.warning("starting over on a new link: %s", why)
        self._forget_turns()
        if not self._recovery.recovering:
            # During a recovery, the unsent messages are its own; the next recovery makes new ones.
            self._lost_link, self._unsent = connection_id, unsent
            self._kept_bytes = sum(map(len, unsent))
        self._recover(why)

    def agent_lost(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        """Rest until the editor's next message, which starts another agent; at once if requests are open."""
        self._forget_turns()
        if not self._recovery.recovering:
            self._lost_link, self._unsent = connection_id, unsent
            self._kept_bytes = sum(map(len, unsent))
        if self._is_asked or self._unsent or self._held:
            self._uplink.resume_attempts()
            self._recover(why)
        else:
            self._failed = True
            self._report(LinkState.RESTING)

    def _forget_turns(self) -> None:
        """Expect nothing more of turns whose end may not be told."""
        if self._at_work:
            self._at_work.clear()

    def give_up(self, error: GatewayError) -> None:
        """Answer open and held requests with an error, and drop held messages."""
        self._unsent.clear()
        held, self._held = self._held, []
        self._kept_bytes = 0
        self._send_to_editor(self._recovery.from_editor(held).to_editor)
        self._send_to_editor(self._recovery.give_up(str(error), error.reason))
        self.changed()

    async def drain(self) -> None:
        """Wait until the editor has read all but `HIGH_WATER` bytes."""
        try:
            await self._editor.drain(HIGH_WATER)
        except LOST:
            pass  # The next write to the editor reports it.

    def _send_allowed(self) -> None:
        """During a recovery, send the messages that need not wait for its end, in order within each session."""
        unsent, self._unsent = self._partition(self._unsent)
        held, self._held = self._partition(self._held)
        if unsent or held:
            outcome = self._recovery.from_editor(held)
            outcome.to_gateway = self._recovery.still_valid([*unsent, *outcome.to_gateway])
            self._kept_bytes = sum(map(len, self._unsent)) + sum(map(len, self._held))
            self._apply(outcome)

    def _partition(self, messages: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Split messages into those that need not wait for the end of a recovery, and the others."""
        going: list[bytes] = []
        waiting: list[bytes] = []
        for message in messages:
            (going if self._recovery.may_be_sent(message) else waiting).append(message)
        return going, waiting

    def _recover(self, why: str) -> None:
        self._apply(self._recovery.begin_recovery(self._lost_link, self._unsent, why))
        if not self._recovery.recovering:
            self._end_recovery()

    def _end_recovery(self) -> None:
        """Send the held messages after a recovery; after a failed one, answer them and try again later."""
        unsent, self._unsent = self._unsent, []
        held, self._held = self._held, []
        self._kept_bytes = 0
        outcome = self._recovery.from_editor(held)
        failure = self._recovery.failure
        if failure is None:
            log.info("recovered: the new link is in use")
            self._retries = 0
            outcome.to_gateway = self._recovery.still_valid([*unsent, *outcome.to_gateway])
            self._apply(outcome)
            return
        log.error("the agent can't be reached again: %s", failure.message)
        self._failed = True
        self._send_to_editor(outcome.to_editor)
        self._send_to_editor(self._recovery.give_up(failure.message, failure.reason or "agent"))
        self._uplink.suspend("the gateway answered initialize with an error")
        if self._retries < RETRIES:
            self._retries += 1
            self._nursery.start_soon(self._try_again, self._retries)
        else:
            self._report(LinkState.RESTING)

    async def _try_again(self, number: int) -> None:
        """Recover after a backoff: who only watches sends no message, and would miss what follows."""
        await trio.sleep(backoff(number - 1, BACKOFF_MAX, self._jitter()))
        if self._failed and self._retries == number:
            self._recover_failed()

    def _recover_failed(self) -> None:
        """Begin another recovery after one that has failed."""
        self._failed = False
        self._uplink.resume_attempts()
        self._recover("the agent had ended, or could not be started")

    def _apply(self, outcome: Outcome) -> None:
        for log_message in outcome.log_messages:
            log.info("%s", log_message)
        self._send_to_editor(outcome.to_editor)
        if self._forwards is not None:
            self._forwards.receive(outcome.to_editor, self._recovery.turns())
        if outcome.to_gateway:
            self._uplink.link.send(outcome.to_gateway)
        self._feedback.set_sessions(self._recovery.session_count)

    def _send_to_editor(self, messages: Sequence[bytes]) -> None:
        """Write messages to the editor, without waiting for it to read them."""
        if self._maps:
            messages = [_explain_missing(self._maps.to_local(message), self._maps) for message in messages]
        try:
            self._editor.send_nowait(messages)
        except LOST as error:
            log.info("the editor: %s", error)
            self._editor_gone = True
            self._editor_slow.unpark_all()

    def too_large(self, message: bytes, why: str) -> None:
        """Answer a request that the gateway has refused to receive, as its end is not to be asked for."""
        raw_id = read_beginning(*ends_of(message)).raw_id
        if raw_id is not None and self._recovery.close(raw_id):
            self._send_to_editor(
                [json_text.error(raw_id, json_text.INVALID_REQUEST, f"{why}; it has {len(message):,} bytes", TOO_LARGE)]
            )

    def _refuse_large(self, begun: bytes, ended: bytes, why: str) -> list[bytes]:
        """Answer a message of the editor that is too large, by its first and last bytes; return what is sent in its
        place."""
        names = read_beginning(begun, ended)
        log.warning("refused a message of the editor: %s", why)
        if names.method is None and names.raw_id is not None:
            return [json_text.error(names.raw_id, json_text.INTERNAL_ERROR, why, TOO_LARGE)]
        self._send_to_editor([self._recovery.refusal(names, why)])
        return []

    def _refuse_message(self, what: str) -> None:
        """Answer invalid input with a parse error."""
        self._send_to_editor([json_text.error(b"null", _PARSE_ERROR, what, "protocol")])

    async def _confirm_later(self) -> None:
        """Confirm messages to the gateway as a slow editor reads them. Returns when its stdout is closed."""
        while not self._editor_gone:
            if self._editor.pending_bytes <= HIGH_WATER:
                await self._editor_slow.park()
                continue
            try:
                await self._editor.drain(HIGH_WATER // 2)
            except LOST as error:
                log.info("the editor: %s", error)
                return
            self._uplink.link.acknowledge()


def _explain_missing(message: bytes, maps: PathMaps) -> bytes:
    """Rewrite the error for a directory that can't be used in terms of the path map that may be wrong."""
    if b'"no_such_directory"' not in message and b'"outside_workspaces"' not in message:
        return message
    try:
        response = json.loads(message)
        data = response["error"]["data"]
        remote, reason = data["cwd"], data["reason"]
        local = maps.local_path(remote)
        raw_id = spans.find(message, "id")
    except (ValueError, LookupError, TypeError, AttributeError):
        return message
    if local == remote or raw_id is None or reason not in ("no_such_directory", "outside_workspaces"):
        return message
    if reason == "no_such_directory":
        what, remedy = "is not there", "create it there, or correct the map"
    else:
        allowed = [str(each) for each in data.get("allowed") or ()]
        what = "is in no workspace that may be used" + (f" ({', '.join(allowed)})" if allowed else "")
        remedy = "correct the map"
    why = (
        f"{remote} on the gateway's machine, to which your path map maps {local}, {what}: {remedy} (--map, or maps in "
        "hosts.toml)"
    )
    to, code = message[raw_id[0] : raw_id[1]], response["error"]["code"]
    return json_text.error(to, code, why, reason, cwd=local, remote=remote)


async def _answer_first_request(editor: MessageStream, recovery: RecoveryState, error: GatewayError) -> None:
    """Wait for the editor's first request, and answer it with an error."""
    try:
        with trio.move_on_after(EDITOR_TIMEOUT):
            recovery.from_editor(await editor.receive_batch())
        await editor.send_batch(recovery.give_up(str(error), error.reason))
    except (trio.EndOfChannel, *LOST):
        pass  # The editor has closed its end.


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("received %s", signal.Signals(number).name)
            scope.cancel()
            return
