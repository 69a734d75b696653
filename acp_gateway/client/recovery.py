"""What an editor and its agent have open with each other, seen from beside the stream, and how it is taken up again.

A link that can't be resumed is replaced by a new one, and on that the gateway knows nothing of this editor: it has to
be introduced again, its sessions have to be opened again, and what waited for an answer has to get one. The editor must
notice as little of it as can be. So what it opens is remembered while messages pass.

Before a recovery everything passes as it is. Downwards, messages come by the tens of thousands in a second, and most of
them are notifications, which are not read. Where the editor is in its sessions is found out when somebody wants to know
(`positions`); what it is asked has a place of its own as well (`asked`), and so has what is known of a session that is
not open again yet (`reopening`).

A recovery has three steps, all driven by `from_gateway`:

    begin_recovery    requests in flight get an error, but for prompts; `initialize` goes up again
    its answer        each session is opened again; the gateway is told how much of it the editor has seen, and which
                      prompts and questions are open in it
    their answers     prompts that don't go on are cancelled, questions that are no more are withdrawn

Until its session is open again, an update may be one that the editor has seen: it passes only behind a mark that says
that the gateway counts as it did before. Ids are the very text that they were spelled with.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from acp_gateway.client.pending_requests import PendingRequests
from acp_gateway.client.positions import Positions, updated_session
from acp_gateway.client.reopening import SessionRestore, restore_method
from acp_gateway.protocol.gaps import MAY_BE_MISSING, SESSION_LOST, gap
from acp_gateway.protocol.json_text import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    NOTHING,
    elements_at,
    encode,
    error,
    ids_in,
    may_be_id,
    object_at,
    raw_at,
    read_envelope,
    text_at,
    whole_number,
    with_member,
    with_own_meta,
)
from acp_gateway.protocol.methods import (
    CANCEL_REQUEST,
    CLOSE,
    DELETE,
    FORK,
    INITIALIZE,
    LOAD,
    META,
    NEW,
    PROMPT,
    RESERVED_PREFIX,
    RESUME,
    SESSION_UPDATE,
)
from acp_gateway.protocol.outbox import Mark, read_control

_AGENT_ENDED: Final = frozenset({"agent_ended", "agent_not_started", "agent_silent", "agent_stalled"})
"""Reasons that are not about what was asked."""

_RESERVED: Final = RESERVED_PREFIX.encode()
_CANCEL: Final = CANCEL_REQUEST.encode()
# Twice as fast as `in`: where quotes are frequent, that stops at each of them.
_find_id: Final = re.compile(rb'"id"').search
# What every spelling of `"id"` with escapes contains: i and d are U+0069 and U+0064.
_ESCAPED_ID: Final = b"\\u006"


@dataclass(slots=True)
class Outcome:
    """What is to be sent now, in order, and what there is to say about it."""

    to_gateway: list[bytes] = field(default_factory=list)
    to_editor: list[bytes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines for the log; nothing that was said in a session is in them."""


class Failure(NamedTuple):
    """An error that the gateway has answered."""

    code: int
    message: str
    reason: str | None
    """`data.reason`: a word for programs."""


@dataclass(slots=True)
class _Request:
    """What the editor has asked."""

    method: str
    session: str | None
    params: bytes
    """An object; empty unless the answer may open a session."""
    repeats: int = 0
    """How often its id was used again, for which an error is the answer."""


class RecoveryState:
    """What one editor has open with its agent.

    Messages come and go in the names of one side: where paths are translated on the way, all of it is done on the same
    side of this. What comes from the editor must be UTF-8.
    """

    def __init__(self) -> None:
        self.started = False
        """Whether the editor's `initialize` was answered with a result once."""
        self.failure: Failure | None = None
        """Why the last recovery could not be done: what the gateway has answered to `initialize`."""
        # The editor's `initialize` that succeeded, or is in flight, and its id.
        self._initialize: bytes | None = None
        self._initialize_id: bytes | None = None
        # What the editor has asked, by id, the oldest first.
        self._open: dict[bytes, _Request] = {}
        # What the editor is asked.
        self._asked = PendingRequests()
        # The sessions that the editor has open: the params that it opened each with, an object.
        self._sessions: dict[str, bytes] = {}
        self._positions = Positions()
        # In a recovery: the id of the `initialize` that waits for its answer, the sessions that are not open again, the
        # connection that was lost, and how many sessions were ever opened again.
        self._initializing: bytes | None = None
        self._reopening: dict[str, SessionRestore] = {}
        self._lost_connection = ""
        self._reopened = 0

    @property
    def recovering(self) -> bool:
        """Whether a recovery is under way: what the editor says now has to wait."""
        return self._initializing is not None or bool(self._reopening)

    def waiting(self) -> list[str]:
        """The methods of the editor's requests that are open, the oldest first."""
        return [request.method for request in self._open.values()]

    # The way up

    def from_editor(self, batch: Sequence[bytes]) -> Outcome:
        """Messages came from the editor. They go up as they are, but for the gateway's own methods and late answers."""
        outcome = Outcome()
        for message in batch:
            if self._goes_up(message, outcome):
                outcome.to_gateway.append(message)
        return outcome

    def _goes_up(self, message: bytes, outcome: Outcome) -> bool:
        if b'"id"' not in message and b"\\" not in message and _RESERVED not in message:
            return True
        envelope = read_envelope(message)
        if envelope is None:
            # The gateway says what is wrong with it, unless it is less strict about what is for the link itself.
            if read_control(message) is None:
                return True
            outcome.notes.append("dropped a message of the editor that only the two ends of a link may send")
            return False
        raw_id, method, _ = envelope
        if method is None:
            if raw_id is None or self._asked.answer(raw_id):
                return True
            outcome.notes.append("dropped the editor's answer to a question that was withdrawn")
            return False
        if method.startswith(RESERVED_PREFIX):
            if raw_id is None:
                outcome.notes.append(f"dropped a notification of the editor: {method[:80]!r} is the gateway's own")
            else:
                to = raw_id if may_be_id(raw_id) else b"null"
                why = "methods that begin with _acp-gateway/ are the gateway's own"
                outcome.to_editor.append(error(to, METHOD_NOT_FOUND, why))
            return False
        if raw_id is not None and may_be_id(raw_id):
            self._asks(raw_id, method, message)
        return True

    def _asks(self, raw_id: bytes, method: str, message: bytes) -> None:
        if raw_id in self._open:
            self._open[raw_id].repeats += 1
            return
        session_id = text_at(message, "params", "sessionId")
        params = object_at(message, "params") if method in (NEW, LOAD, RESUME, FORK) else b"{}"
        self._open[raw_id] = _Request(method, session_id, params)
        if method == INITIALIZE and self._initialize is None:
            self._initialize, self._initialize_id = message, raw_id
        elif method in (LOAD, RESUME) and session_id is not None:
            self._positions.loads(session_id)

    # The way down

    def from_gateway(self, batch: Sequence[bytes]) -> Outcome:
        """Messages came from the gateway; those that are a `Mark` end here.

        A recovery may be over after that: `recovering` is False then, and `failure` is not None where it failed.
        """
        outcome = Outcome()
        start = 0
        # Marks come in most batches, and what is between them is mostly not worth reading.
        marks = [at for at, kind in enumerate(map(type, batch)) if kind is Mark]
        for end in (*marks, len(batch)):
            self._go_down(batch[start:end], outcome)
            start = end + 1
            if end < len(batch):
                mark = batch[end]
                assert type(mark) is Mark
                self._mark(mark)
        return outcome

    def _go_down(self, run: Sequence[bytes], outcome: Outcome) -> None:
        """Messages came from the gateway, none of them a mark."""
        if not self.recovering and not self._worth_reading(run):
            self._positions.passed(run)
            outcome.to_editor += run
            return
        for message in run:
            if self._goes_down(message, outcome):
                outcome.to_editor.append(message)

    def _worth_reading(self, messages: Sequence[bytes]) -> bool:
        """Whether any of these may be more than a notification that passes. One search through all is the fastest."""
        text = b"\n".join(messages)
        return (
            _find_id(text) is not None
            or (b"\\" in text and _ESCAPED_ID in text)
            or (bool(self._asked) and b"$" in text and _CANCEL in text)
        )

    def _mark(self, mark: Mark) -> None:
        for session_id, (epoch, _) in self._positions.marked(mark).items():
            if session_id in self._reopening:
                self._reopening[session_id].mark(epoch)

    def _goes_down(self, message: bytes, outcome: Outcome) -> bool:
        envelope = read_envelope(message) if self.recovering or self._worth_reading([message]) else None
        raw_id, method, failed = envelope or NOTHING
        if raw_id is None:
            if method is not None and self._swallows(method, message):
                return False
            if method == CANCEL_REQUEST:
                self._asked.cancel(raw_at(message, "params", "requestId") or b"")
            self._positions.passed([message])
        elif method is None:
            return self._is_answered(raw_id, message, outcome, failed=failed)
        elif may_be_id(raw_id):
            self._asked.ask(raw_id, text_at(message, "params", "sessionId"))
        return True

    def _is_answered(self, raw_id: bytes, message: bytes, outcome: Outcome, *, failed: bool) -> bool:
        """A response came; whether it is for the editor."""
        if raw_id == self._initializing:
            self._initializing = None
            if raw_id not in self._open:
                self._introduced(message, outcome, failed=failed)
                return False
        for session_id, reopening in self._reopening.items():
            if raw_id == reopening.raw_id:
                self._opened_again(session_id, message, outcome, failed=failed)
                return False
        request = self._open.get(raw_id)
        if request is None:
            return True
        if failed and request.repeats:
            request.repeats -= 1
            return True
        self._close(raw_id)
        if request.method == INITIALIZE and raw_id == self._initialize_id and not self.started:
            self.started = not failed
            if failed:
                self._initialize = None
        elif failed and request.method == PROMPT:
            reason = _failure(message).reason
            if reason in _AGENT_ENDED and request.session is not None:
                outcome.notes.append(
                    f"the agent has ended ({reason}): the turn in session {request.session:.80} was ended"
                )
        elif not failed:
            self._succeeded(request, message)
        return True

    def _close(self, raw_id: bytes) -> None:
        """A request is answered, or given up."""
        request = self._open.pop(raw_id)
        if request.method in (LOAD, RESUME) and request.session is not None:
            self._positions.loaded(request.session)

    def _succeeded(self, request: _Request, response: bytes) -> None:
        session_id = request.session
        if request.method in (NEW, FORK):
            session_id = text_at(response, "result", "sessionId")
        if session_id is None:
            return
        if request.method in (NEW, FORK, LOAD, RESUME):
            self._sessions[session_id] = request.params
        elif request.method in (CLOSE, DELETE):
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)
        self._positions.forget(session_id)

    # Recovery

    def begin_recovery(self, connection_id: str, unsent: Sequence[bytes], why: str) -> Outcome:
        """The link is lost and a new one has been made, which `to_gateway` is for.

        Args:
            connection_id: of the link that was lost.
            unsent: what came through `from_editor` and certainly never left. It is kept by the caller and sent, as far
                as it is `still_meant`, when `recovering` is False, as it may be at once.
            why: what became of the link, in words, for the errors that requests in flight get.

        Another recovery may begin before this one is over, and after it has failed.
        """
        outcome = Outcome()
        self._lost_connection = connection_id
        self._initializing = self.failure = None
        self._abandon()
        self._reopening = {
            session_id: SessionRestore(session_id, self._positions.at(session_id))
            for session_id in (self._sessions if self.started else ())
        }
        requests, answers = ids_in(unsent)
        self._settle_requests(requests, why, outcome)
        for raw_id, session_id in self._asked.unsettled(answers).items():
            if session_id in self._reopening:
                self._reopening[session_id].questions.append(raw_id)
            else:
                self._withdraw(raw_id, outcome)
        if self.started:
            assert self._initialize is not None
            self._initializing = self._own_id("initialize")
            params = with_own_meta(object_at(self._initialize, "params"), encode({"lastId": self._asked.last_id}))
            text = with_member(self._initialize, "params", params)
            outcome.to_gateway.append(with_member(text, "id", self._initializing))
        return outcome

    def _settle_requests(self, unsent: Collection[bytes], why: str, outcome: Outcome) -> None:
        """See to what the gateway was asked over the lost link, but not to prompts that may go on."""
        text = f"the link to the gateway was lost ({why}): whether this request was carried out is not known"
        for raw_id, request in list(self._open.items()):
            if raw_id in unsent:
                continue
            if request.method == PROMPT:
                if request.session in self._reopening:
                    self._reopening[request.session].prompts.append(raw_id)
                else:
                    self._cancel(raw_id, outcome)
            elif request.method == INITIALIZE and raw_id == self._initialize_id and not self.started:
                assert self._initialize is not None
                self._initializing = raw_id
                outcome.to_gateway.append(self._initialize)
            else:
                self._close(raw_id)
                outcome.to_editor.append(error(raw_id, INTERNAL_ERROR, text, "outage"))
                outcome.notes.append(f"{request.method[:80]!r} was in flight and is answered with an error")

    def still_meant(self, unsent: Sequence[bytes]) -> list[bytes]:
        """After a recovery: which of the messages that were kept for it still mean something.

        An answer to a question that is no more does not, nor does a request that was given up, nor a cancellation of
        a request that is not open.
        """
        return [message for message in unsent if self._still_means_something(message)]

    def may_go(self, message: bytes) -> bool:
        """In a recovery: whether a message of the editor's need not wait for the end of it.

        What is asked on the new link is answered at once: the agent may wait for that before it opens a session. What
        is about a session that is open again does not wait for the others.
        """
        raw_id, method, _ = read_envelope(message) or NOTHING
        if method is None:
            waits = any(raw_id in one.questions for one in self._reopening.values())
            return raw_id is not None and raw_id in self._asked and not waits
        if self._initializing is not None or method == CANCEL_REQUEST:
            return False
        session_id = text_at(message, "params", "sessionId")
        return session_id in self._sessions and session_id not in self._reopening

    def give_up(self, message: str, reason: str) -> list[bytes]:
        """Return an error for each request of the editor that is open, prompts and unsent ones too, and forget them.

        Sessions stay known: a recovery may begin later.
        """
        errors = [error(raw_id, INTERNAL_ERROR, message, reason) for raw_id in self._open]
        for raw_id in list(self._open):
            self._close(raw_id)
        if not self.started:
            self._initialize = self._initializing = None
        return errors

    def _abandon(self) -> None:
        """A recovery is not finished: where nothing has passed, the editor is where it was before."""
        for session_id, reopening in self._reopening.items():
            if not reopening.goes_on:
                self._positions.put(session_id, reopening.told)
        self._reopening.clear()

    def _introduced(self, response: bytes, outcome: Outcome, *, failed: bool) -> None:
        """`initialize` was answered again."""
        if failed:
            self.failure = _failure(response)
            self._abandon()
            return
        method = restore_method(response)
        for session_id, reopening in list(self._reopening.items()):
            if method is None or session_id not in self._sessions:
                outcome.notes.append(f"session {session_id:.80} is lost: the agent can't open a session again")
                self._lose(session_id, outcome)
                continue
            self._reopened += 1
            raw_id = self._own_id(f"attach:{self._reopened}")
            opening = reopening.request(raw_id, method, self._sessions[session_id], self._lost_connection)
            outcome.to_gateway.append(opening)

    def _opened_again(self, session_id: str, response: bytes, outcome: Outcome, *, failed: bool) -> None:
        """A session was opened again, or could not be."""
        reopening = self._reopening[session_id]
        if reopening.swallowed:
            outcome.notes.append(
                f"swallowed {reopening.swallowed} updates of session {session_id:.80}: already seen, or missed"
            )
        if failed:
            code, _, reason = _failure(response)
            if reason in _AGENT_ENDED:
                # That says nothing about the session.
                self.failure = _failure(response)
                self._abandon()
                return
            # Its patterns take time to compile, which an editor that starts need not wait for.
            from acp_gateway.protocol.reasons import reason_of

            said = f"{code}{f' ({reason[:80]!r})' if reason else ''}: {reason_of(response)}"
            outcome.notes.append(f"session {session_id:.80} is lost: {said}")
            self._lose(session_id, outcome)
            return
        if not reopening.goes_on:
            outcome.notes.append(
                f"session {session_id:.80}: what was seen of it is not known there: what came meanwhile is missing"
            )
            if reopening.method == LOAD:
                # It was told from its beginning, and none of that has passed. Who resumes is told by the gateway.
                outcome.to_editor.append(gap(session_id, MAY_BE_MISSING))
        if not reopening.marked:
            self._positions.forget(session_id)
        cut = text_at(response, "result", "_meta", META, "cut")
        if cut is not None:
            what = "the gateway was restarted" if cut == "gateway_restarted" else f"{cut[:80]!r}"
            outcome.notes.append(f"{what}: the turn in session {session_id:.80} was ended")
        prompts = elements_at(response, "result", "_meta", META, "prompts")
        questions = elements_at(response, "result", "_meta", META, "questions")
        self._settle(session_id, prompts, questions, outcome)

    def _lose(self, session_id: str, outcome: Outcome) -> None:
        self._forget(session_id)
        # An editor that only looks on asks for nothing, and would never learn that nothing comes any more.
        outcome.to_editor.append(gap(session_id, SESSION_LOST))
        self._settle(session_id, (), (), outcome)

    def _settle(
        self, session_id: str, prompts: Collection[bytes], questions: Collection[bytes], outcome: Outcome
    ) -> None:
        """See to what was open in a session; these prompts and questions still are."""
        reopening = self._reopening.pop(session_id)
        over = [raw_id for raw_id in reopening.prompts if raw_id not in prompts and raw_id in self._open]
        gone = [raw_id for raw_id in reopening.questions if raw_id not in questions]
        for raw_id in over:
            self._cancel(raw_id, outcome)
        for raw_id in gone:
            self._withdraw(raw_id, outcome)
        if session_id in self._sessions:
            outcome.notes.append(
                f"session {session_id:.80} is open again: {len(over)} of {len(reopening.prompts)} prompts cancelled, "
                f"{len(gone)} of {len(reopening.questions)} questions withdrawn"
            )

    def _swallows(self, method: str, message: bytes) -> bool:
        """Whether a notification is not for the editor: an update it may have seen, or news it did not want."""
        if not self.recovering:
            return False
        if method != SESSION_UPDATE:
            return method.startswith(RESERVED_PREFIX) and not self._wants_news()
        reopening = self._reopening.get(updated_session(message) or "")
        if reopening is None or not reopening.swallow():
            return False
        if reopening.marked:
            # The gateway counts it, and the position is to be the gateway's.
            self._positions.passed([message])
        return True

    def _wants_news(self) -> bool:
        asked = raw_at(self._initialize or b"", "params", "clientCapabilities", "_meta", META)
        return asked not in (None, b"null", b"false")

    def _cancel(self, raw_id: bytes, outcome: Outcome) -> None:
        """End a prompt that nobody will answer."""
        del self._open[raw_id]
        outcome.to_editor.append(b'{"jsonrpc":"2.0","id":%b,"result":{"stopReason":"cancelled"}}' % raw_id)

    def _withdraw(self, raw_id: bytes, outcome: Outcome) -> None:
        """Take a question back, or the answer to it that has not left."""
        if self._asked.withdraw(raw_id):
            outcome.to_editor.append(
                b'{"jsonrpc":"2.0","method":%b,"params":{"requestId":%b}}' % (encode(CANCEL_REQUEST), raw_id)
            )

    def _still_means_something(self, message: bytes) -> bool:
        raw_id, method, _ = read_envelope(message) or NOTHING
        if raw_id is None:
            return method != CANCEL_REQUEST or raw_at(message, "params", "requestId") in self._open
        if method is None:
            return raw_id in self._asked
        return raw_id in self._open or not may_be_id(raw_id)

    def _own_id(self, purpose: str) -> bytes:
        """An id for a request of our own, which the editor does not use."""
        raw_id = b'"acp-gateway:%b"' % purpose.encode()
        while raw_id in self._open:
            raw_id = raw_id[:-1] + b'+"'
        return raw_id


def _failure(response: bytes) -> Failure:
    code = whole_number(raw_at(response, "error", "code"))
    return Failure(
        INTERNAL_ERROR if code is None else code,
        text_at(response, "error", "message") or "the gateway answered initialize with an error",
        text_at(response, "error", "data", "reason"),
    )
