"""One prompt for a script: it is sent to a session, and followed until the gateway has it, or until its answer."""

import math
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import trio

from acp_gateway.client.dialing import Destination
from acp_gateway.client.session_link import SessionLink
from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.errors import AccessError, AgentError, AgentRefused, GatewayError, LimitReached, TooOld, TurnStopped
from acp_gateway.printable import printable
from acp_gateway.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from acp_gateway.protocol.methods import AGENT_CHUNK, PROMPT
from acp_gateway.protocol.not_sent import QUESTION
from acp_gateway.terminal.content import block_text, text_of
from acp_gateway.terminal.dialogue import (
    Answered,
    Asked,
    Closed,
    Decided,
    Dialogue,
    Event,
    Failed,
    Opened,
    Question,
    Queued,
    TurnEnded,
    TurnStarted,
    Updated,
    Withdrawn,
)
from acp_gateway.terminal.questions import Questions
from acp_gateway.terminal.transcript import Block, Kind, Message, Transcript

_REFUSALS: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})
"""Codes by which a gateway refuses a prompt; with any other, its turn has failed."""

_OWN: Final = "[acp-gateway: "
"""Beginning of the lines that the gateway adds to a conversation."""


class Outcome(NamedTuple):
    """The end of a prompt for its client."""

    stop_reason: str = ""
    """The agent's reason for the end of the turn; empty if that has failed, or is not awaited."""
    error: GatewayError | None = None
    due: str = ""
    """The time at which it is to be sent, in RFC 3339, of one that waits for a time."""


class SentPrompt:
    """A prompt, from the opening of its session on.

    Args:
        text: its text.
        dialogue: the client of the session, which is not open yet.
        tell: called with each line for a person, which is untrusted.
        way: returns the command that shows the session of this name to a person.
        machine: the node of a new session; empty for the gateway itself.
        waits: False for one that is done when the gateway has it.
        queue: says when it is to be sent, as `Dialogue.prompt` has it; None for now.
    """

    def __init__(
        self,
        text: str,
        dialogue: Dialogue,
        tell: Callable[[str], None],
        way: Callable[[str], str],
        *,
        machine: str = "",
        waits: bool,
        queue: Mapping[str, Any] | None = None,
    ) -> None:
        self.dialogue = dialogue
        self.outcome: Outcome | None = None
        """Its end; None before."""
        self.is_sent = False
        self._text = text
        self._tell = tell
        self._way = way
        self._machine = machine
        self._waits = waits
        self._queue = queue
        self._joined = dialogue.session
        self._is_open = False
        # That of the turn that runs, or of the last one. The next update begins another one after its end.
        self._transcript = Transcript()
        self._is_past = False
        self._questions = Questions()
        self._has_arrived = self._was_queued = self._was_lost = False

    @property
    def session(self) -> str:
        """The id of the session in the gateway's list: `NODE/ID` for one of a node; empty until a new one is open."""
        its_id = self._joined or (self.dialogue.session if self._is_open else "")
        return f"{self._machine}/{its_id}" if self._machine and its_id and not self._joined else its_id

    @property
    def answer(self) -> str:
        """The agent's last message in the turn, without those of sub-agents."""
        return _last_message(self._transcript.blocks)

    @property
    def is_asked(self) -> bool:
        """True while the agent waits for a person."""
        return self._questions.current is not None or self._transcript.state == "requires_action"

    def receive(self, events: Sequence[Event]) -> list[Event]:
        """Take events, and send the prompt when the session is open; return the events since then."""
        told: list[Event] = []
        for event in events:
            if self.outcome is not None:
                break  # What follows is of later turns.
            if isinstance(event, Opened):
                self._is_open, self._transcript.state = True, event.state
                told.append(replace(event, session=self.session))
                if self._waits and not self._joined:
                    self._tell(f"session {self.session}")
                continue
            # What the agent asked before comes with the history.
            if self._is_open or isinstance(event, Asked | Withdrawn):
                self._take(event)
            told += [event] if self._is_open else []
        if self._is_open and not self.is_sent:
            self._send()
        return told

    def _send(self) -> None:
        if self._queue is not None and not self.dialogue.keeps_prompts:
            self._end(Outcome(error=TooOld("this gateway would send the prompt at once: upgrade acp-gateway there")))
            return
        self.is_sent = True
        self.dialogue.prompt(self._text, queue=self._queue)

    def link_changed(self, state: LinkState) -> None:
        """Note that the connection was lost, or is back."""
        if state is LinkState.LOST:
            self._tell("the connection was lost; connecting again")
        elif state is LinkState.CONNECTED and self._was_lost:
            self._tell("connected again")
        self._was_lost = state is LinkState.LOST

    def rest(self) -> str:
        """Return what goes on, and how a person does, if this client leaves now."""
        if not self.is_sent:
            return "the prompt was not sent"
        question = self._questions.current
        if self.is_asked:
            asked = "" if question is None else f": {self._title_of(question)}"
            return f"the agent waits for an answer{asked}; `{self._way(self.session)}` shows the question"
        session = self.session
        if not self._has_arrived:
            return f"the gateway may not have the prompt: `{self._way(session)}` shows session {session}"
        return f"the prompt stays in session {session}, and the agent goes on: `{self._way(session)}` shows it"

    def _take(self, event: Event) -> None:
        match event:
            case Updated():
                self._update(event)
            case Asked():
                self._questions.add(event.question, 0.0)
                self._transcript.apply(event.question.update, event.question.lane)
                title = self._title_of(event.question)
                self._tell(f"the agent asks: {title}; `{self._way(self.session)}` shows the question")
                if text_of(event.question.tool.get("toolCallId")).startswith(QUESTION):
                    # It waits for that answer, and neither for a turn nor in the queue.
                    self._note_arrival()
            case Withdrawn():
                self._questions.remove(event.id, 0.0)
            case Decided() if event.by:
                self._tell(f"{event.by} has decided: {self._questions.name_of(event.decision)}")
            case TurnStarted() if not event.running:
                self._transcript, self._is_past = Transcript(), False
                self._note_arrival()
            case TurnEnded():
                self._is_past = True
            case Queued() if event.count > len(event.kept) and self.is_sent:
                if not self._was_queued:
                    self._tell("the prompt waits for the end of the turn that runs")
                self._was_queued = True
                self._note_arrival()
            case Answered():
                self._end(_outcome_of(event))
            case Failed() if event.method == PROMPT:
                self._end(Outcome(error=_failure_of(event)))
            case Closed():
                self._end(Outcome(error=TurnStopped(event.text)))

    def _update(self, event: Updated) -> None:
        if self._is_past:
            self._transcript, self._is_past = Transcript(), False
        is_text = event.update.get("sessionUpdate") == AGENT_CHUNK
        text = block_text(event.update.get("content")) if is_text else ""
        if text.startswith(_OWN):
            self._tell(text)
        else:
            self._transcript.apply(event.update, event.lane)

    def _note_arrival(self) -> None:
        """Note that the gateway has the prompt: a turn has begun, or prompts wait."""
        self._has_arrived = self.is_sent
        if self.is_sent and not self._waits and self._queue is None:
            self._end(Outcome())

    def _end(self, outcome: Outcome) -> None:
        self.outcome = self.outcome or outcome

    def _title_of(self, question: Question) -> str:
        tool = self._transcript.tool(question.tool.get("toolCallId"), question.lane)
        return printable(text_of(question.tool.get("title")) or (tool.title if tool else "")) or "a tool"


def _last_message(blocks: Iterable[Block]) -> str:
    """Return the last message of the agent itself, which may have several blocks."""
    texts: list[str] = []
    for block in reversed([*blocks]):
        if isinstance(block, Message) and block.kind is Kind.AGENT and not block.lane:
            texts.append(block.text)
            if not block.continued:
                break
    return "".join(reversed(texts))


def _outcome_of(event: Answered) -> Outcome:
    """Return the end of a prompt that was answered."""
    if event.is_kept:
        return Outcome(due=event.due)
    error: GatewayError | None = None
    match event.stop_reason:
        case "end_turn":
            pass
        case "cancelled" if not event.was_sent:
            error = TurnStopped("the prompt was taken back while it waited, and the agent never had it")
        case "cancelled":
            error = TurnStopped("the turn was stopped")
        case "refusal":
            error = AgentRefused("the agent refuses the prompt")
        case "max_tokens" | "max_turn_requests":
            error = LimitReached(f"the turn has ended at a limit of the agent: {event.stop_reason}")
        case other:
            error = AgentError(f"the turn has ended for an unknown reason: {printable(other) or 'none'}")
    return Outcome(event.stop_reason, error)


def _failure_of(event: Failed) -> GatewayError:
    """Return the error for a prompt that was answered with one."""
    text = printable(event.text, len(event.text))
    if event.code in _REFUSALS:
        return AccessError(f"the prompt was refused: {text}")
    return AgentError(f"the turn has failed: {text}")


async def follow_prompt(
    prompt: SentPrompt,
    destination: Callable[[], Destination],
    settings: Callable[[Callable[[LinkState], None]], Settings],
    show: Callable[[list[Event]], Awaitable[None]],
    timeout: float = math.inf,
) -> int | None:
    """Send a prompt, and follow it to its end, SIGINT, SIGTERM or a time; return the number of the signal, if one came.

    Args:
        prompt: has no `outcome` afterwards if it was left before its end.
        destination: called before each attempt to connect.
        settings: returns the settings of the link.
        show: called with the events since the session is open. Raises `OSError`.
        timeout: seconds until it is left.

    Raises `GatewayError` if the link fails for good, and `OSError` as `show`. Cancelling closes the link.
    """
    signals: list[int] = []
    failures: list[GatewayError | OSError] = []

    async def receive(events: list[Event]) -> None:
        told = prompt.receive(events)
        link.flush()
        try:
            await show(told)
        except OSError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()
        if prompt.outcome is not None:
            nursery.cancel_scope.cancel()

    async def connect() -> None:
        try:
            await link.run(receive)
        except GatewayError:
            pass  # It is the link's.
        nursery.cancel_scope.cancel()

    async def listen() -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            async for number in received:
                signals.append(number)
                nursery.cancel_scope.cancel()

    link = SessionLink(prompt.dialogue, destination, settings(prompt.link_changed))
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + timeout
        nursery.start_soon(listen)
        nursery.start_soon(connect)
    # What answers a prompt when the link has failed is that failure.
    if link.error is not None:
        failures.append(link.error)
    for failure in failures:
        raise failure
    return signals[0] if signals and prompt.outcome is None else None
