"""Tracks the editor's open requests and sessions, so that they can be restored on a new link.

On a new link the gateway knows nothing of this editor: `initialize` has to be sent again, its sessions have to be
restored, and its open requests answered. The editor should not notice. So its requests and sessions are recorded as
messages pass.

Outside of a recovery all messages pass unchanged. From the gateway, tens of thousands pass per second, most of them
notifications, which are not parsed. `editor_state` has what the editor has open.

A recovery has three steps, all driven by `from_gateway`:

    begin_recovery    requests in flight are answered with an error, except prompts; `initialize` is sent again
    its response      each session is restored: the gateway gets the editor's position in it, and the ids of its open
                      prompts and agent requests
    their responses   prompts that ended are answered as cancelled, agent requests that ended are cancelled

With an editor of version 2, a prompt is answered when its turn begins, and `state_update` tells when that ends. So the
turn is what is restored: the gateway gets the ids of its prompts too, and tells the state of the session. A turn that
has ended is ended for the editor by an idle state, with the reason.

The restore request of a session carries the editor's position in it. If the gateway still knows the epoch, it sends a
mark, and after it the missed updates. Otherwise it replays the session from the start or not at all. The editor has
seen part of a replay, so its updates are discarded until the session is restored.

Ids are kept as JSON text, spelled as they were received.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from acp_gateway.acp.worktrees import WORKTREE, is_ignored
from acp_gateway.client.editor_state import (
    IDLE,
    STATE_UPDATE,
    EditorState,
    Outcome,
    Position,
    is_cancel,
    speaks_new,
    told_state,
    updated_session,
)
from acp_gateway.printable import counted
from acp_gateway.protocol.gaps import (
    AGENT_LOST,
    MAY_BE_MISSING,
    PROMPT_NOT_SENT,
    SESSION_LOST,
    TURN_CUT,
    TURN_LOST,
    TURN_UNKNOWN,
    gap,
)
from acp_gateway.protocol.link_messages import Mark, Sent, without_marks
from acp_gateway.protocol.methods import (
    CANCEL_REQUEST,
    LOAD,
    META,
    NEW,
    PROMPT,
    RESERVED_PREFIX,
    RESUME,
    SESSION_UPDATE,
)
from acp_gateway.protocol.not_sent import name_prompt, was_not_sent
from acp_gateway.protocol.size_limit import TOO_LARGE
from acp_gateway.protocol.text.json_text import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    NOTHING,
    Beginning,
    elements_at,
    encode,
    error,
    has_valid_id,
    ids_in,
    may_be_id,
    object_at,
    raw_at,
    read_envelope,
    strings_in,
    text_at,
    whole_number,
    with_member,
    with_own_meta,
)

_RESTARTED: Final = "gateway_restarted"
"""The gateway's reason for a turn that its restart has ended."""

_CANCEL: Final = CANCEL_REQUEST.encode()
_STATE: Final = STATE_UPDATE.encode()
# Twice as fast as `in`, which stops at each quote.
_find_id: Final = re.compile(rb'"id"').search
# Part of every escaped spelling of `"id"`: i and d are U+0069 and U+0064.
_ESCAPED_ID: Final = b"\\u006"
# Each character of `state_update` may be escaped.
_find_escaped_state: Final = re.compile(rb"\\u00(?:5[fF]|6[145]|7[0345])").search


NO_WORKTREE: Final = (
    "the session is in the folder itself: other servers than acp-gateway, and its earlier versions, make no worktree; "
    "leave --worktree out"
)

MAX_FORMER: Final = 16
"""Maximum number of earlier links that the gateway is told beside the last one."""


class Failure(NamedTuple):
    """An error response of the gateway."""

    code: int
    message: str
    reason: str | None
    """The machine-readable `data.reason`."""


@dataclass(slots=True)
class SessionRestore:
    """A session that is being restored."""

    session_id: str
    position: Position | None
    """The editor's position in it."""
    prompts: list[bytes] = field(default_factory=list)
    """Ids of open prompts that may have reached the agent."""
    has_turn: bool = False
    """True if the editor, of version 2, knows of a turn."""
    answered: list[bytes] = field(default_factory=list)
    """Ids of prompts of version 2 that were answered when they were accepted, and whose end is not known."""
    state: bytes | None = None
    """The last `state_update` of version 2 before the session is restored, which does not pass by itself."""
    agent_requests: list[bytes] = field(default_factory=list)
    """Ids of agent requests without a response, or with one that was not sent."""
    method: str = ""
    """The method of the restore request, see `restore_method`."""
    raw_id: bytes = b""
    """The id of the restore request; empty before it."""
    marked: bool = False
    """True after a mark with a position in this session."""
    continues: bool = False
    """True after a mark that continues the epoch of `position`."""
    discarded: int = 0
    """Number of updates that did not pass."""

    def request(self, raw_id: bytes, method: str, params: bytes, links: Sequence[str]) -> bytes:
        """Return the restore request.

        Args:
            raw_id: the id of the request.
            method: see `restore_method`.
            params: the params object with which the editor opened the session.
            links: the ids of the lost links, the last one first.
        """
        self.raw_id, self.method = raw_id, method
        params = with_member(params, "sessionId", encode(self.session_id))
        if method == LOAD and raw_at(params, "mcpServers") is None:
            params = with_member(params, "mcpServers", b"[]")
        if method == RESUME and raw_at(params, "replayFrom") is not None:
            # The editor has the history: what it has missed comes by its position.
            params = with_member(params, "replayFrom", b"null")
        params = with_own_meta(params, self._own_meta(links))
        return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (raw_id, encode(method), params)

    def _own_meta(self, links: Sequence[str]) -> bytes:
        """Return what the gateway is told of the session: its former links, position, requests and prompts."""
        members: dict[str, Any] = {"connection": links[0]}
        if len(links) > 1:
            members["former"] = links[1:]
        if self.position is not None:
            members["epoch"], members["position"] = self.position
        text = with_member(encode(members), "questions", b"[%b]" % b",".join(self.agent_requests))
        return with_member(text, "prompts", b"[%b]" % b",".join([*self.answered, *self.prompts]))

    def mark(self, epoch: str) -> None:
        """Record a mark with a position in this session."""
        self.marked = True
        self.continues |= self.position is not None and self.position[0] == epoch

    def discard(self) -> bool:
        """Return whether to drop an update of the session, and count it if so."""
        if self.continues:
            return False
        self.discarded += 1
        return True


def restore_method(response: bytes) -> str | None:
    """Return the method that restores sessions, by the response to `initialize`; None if the agent has none."""
    if speaks_new(response):
        return RESUME
    resumes = raw_at(response, "result", "agentCapabilities", "sessionCapabilities", "resume")
    if resumes not in (None, b"null", b"false"):
        return RESUME
    return LOAD if raw_at(response, "result", "agentCapabilities", "loadSession") == b"true" else None


class RecoveryState:
    """Passes messages between one editor and the gateway, and recovers the editor's state on a new link.

    Paths in messages are remote ones: path maps are applied between this and the editor. Messages from the editor must
    be UTF-8.
    """

    def __init__(self, *, tells_outages: bool = False) -> None:
        # Each turn that an outage has ended is told in its conversation.
        self._tells_outages = tells_outages
        self.failure: Failure | None = None
        """The error response that ended the last recovery; None if it succeeded."""
        self._editor = EditorState()
        # During a recovery: the id of the repeated `initialize`, and the sessions not restored yet. Then the number of
        # all requests that restored a session, for their ids.
        self._initializing: bytes | None = None
        self._reopening: dict[str, SessionRestore] = {}
        # Links that were lost since the oldest open prompt was sent, the last one first.
        self._lost_links: list[str] = []
        self._reopened = 0
        # In version 2: prompts that were answered, and that the gateway answers again at the end of their turn, with
        # their sessions. Then the number of messages of the shim's own, for their ids.
        self._returned: dict[bytes, str] = {}
        self._made = 0

    @property
    def started(self) -> bool:
        """True after the editor's `initialize` was answered with a result."""
        return self._editor.started

    @property
    def recovering(self) -> bool:
        """True during a recovery: messages of the editor have to wait, except those that `may_be_sent`."""
        return self._initializing is not None or bool(self._reopening)

    def waiting(self) -> list[str]:
        """Return the methods of the editor's open requests, oldest first."""
        return [request.method for request in self._editor.requests.values()]

    def turns(self) -> list[str]:
        """Return the sessions with an open prompt or a turn."""
        requests = self._editor.requests.values()
        found = (request.session for request in requests if request.method == PROMPT)
        return list(dict.fromkeys([*self._editor.running, *(session for session in found if session is not None)]))

    def speaks(self, version: int) -> bool:
        """Return whether messages to the editor are of this version."""
        return self._editor.is_new == (version > 1)

    def note(self, session_id: str, words: str) -> bytes:
        """Return an update that tells the user something in a session's conversation."""
        if not self._editor.is_new:
            return gap(session_id, words)
        return gap(session_id, words, self._made_id())

    def _made_id(self) -> str:
        """Return an id for a message that is told by the shim."""
        self._made += 1
        return f"acp-gateway-shim-{self._made}"

    @property
    def session_count(self) -> int:
        """Number of open sessions."""
        return len(self._editor.sessions)

    # From the editor

    def from_editor(self, batch: Sequence[bytes]) -> Outcome:
        """Process messages of the editor. They pass unchanged, except reserved methods and responses that come late."""
        return self._editor.from_editor(batch)

    def aimed(self, messages: Sequence[bytes], held: Sequence[bytes]) -> list[bytes]:
        """Return messages that are to wait behind the held ones, as a `session/cancel` says what is open now."""
        found: list[bytes] = []
        for message in messages:
            aims = is_cancel(message)
            found.append(self._editor.aimed(message, ids_in([*held, *found])[0]) if aims else message)
        return found

    @property
    def takes(self) -> frozenset[str]:
        """Names of what the agent takes in prompts beside text and links."""
        return self._editor.takes

    def directories(self, session_id: str) -> list[str] | None:
        """Return the directories of a session, `cwd` first; None for one that is not open."""
        params = self._editor.sessions.get(session_id)
        if params is None:
            return None
        more = raw_at(params, "additionalDirectories") or b"[]"
        cwd = text_at(params, "cwd")
        return [*([] if cwd is None else [cwd]), *strings_in(more)]

    def refusal(self, names: Beginning, why: str) -> bytes:
        """Return what tells the editor that its message, with these names, is refused: an error, or, of a notification,
        an update that tells the user."""
        if names.raw_id is None and names.session in self._editor.sessions:
            return self.note(names.session or "", f"[acp-gateway: {why}; it was left out.]")
        is_free = names.raw_id is not None and names.raw_id not in self._editor.requests
        return error(names.raw_id if is_free and names.raw_id else b"null", INVALID_REQUEST, why, TOO_LARGE)

    def close(self, raw_id: bytes) -> bool:
        """Forget an open request of the editor; return False if there is none."""
        is_open = raw_id in self._editor.requests
        if is_open:
            self._editor.close(raw_id)
        return is_open

    # From the gateway

    def from_gateway(self, batch: Sequence[Sent]) -> Outcome:
        """Process messages of the gateway; a `Mark` is consumed.

        This may end a recovery: `recovering` is False then, and `failure` is not None if it failed.
        """
        outcome = Outcome()
        start = 0
        # Most batches have a mark, and the messages between marks are rarely parsed.
        marks = [(at, mark) for at, mark in enumerate(batch) if isinstance(mark, Mark)]
        for end, mark in marks:
            self._process_messages(without_marks(batch[start:end]), outcome)
            self._mark(mark)
            start = end + 1
        self._process_messages(without_marks(batch[start:]), outcome)
        return outcome

    def _process_messages(self, run: Sequence[bytes], outcome: Outcome) -> None:
        """Process messages of the gateway that contain no mark."""
        if not self.recovering and not self._worth_reading(run):
            self._editor.positions.delivered(run)
            outcome.to_editor += run
            return
        for message in run:
            if self._passes_to_editor(message, outcome):
                outcome.to_editor.append(message)

    def _worth_reading(self, messages: Sequence[bytes]) -> bool:
        """Return whether any message may be more than a passing notification. One search through all is fastest."""
        text = b"\n".join(messages)
        return (
            _find_id(text) is not None
            or (b"\\" in text and _ESCAPED_ID in text)
            or (bool(self._editor.pending) and b"$" in text and _CANCEL in text)
            or (self._editor.is_new and (_STATE in text or (b"\\" in text and _find_escaped_state(text) is not None)))
        )

    def _mark(self, mark: Mark) -> None:
        for session_id, (epoch, _) in self._editor.positions.apply_mark(mark).items():
            if session_id in self._reopening:
                self._reopening[session_id].mark(epoch)

    def _passes_to_editor(self, message: bytes, outcome: Outcome) -> bool:
        envelope = read_envelope(message) if self.recovering or self._worth_reading([message]) else None
        raw_id, method, failed = envelope or NOTHING
        if raw_id is None:
            if method is not None and self._discards(method, message):
                return False
            if method == CANCEL_REQUEST:
                self._editor.pending.cancel(raw_at(message, "params", "requestId") or b"")
            elif self._editor.is_new and method == SESSION_UPDATE:
                self._note_state(message, outcome)
            self._editor.positions.delivered([message])
        elif method is None:
            return self._is_answered(raw_id, message, outcome, failed=failed)
        elif may_be_id(raw_id):
            self._editor.pending.add(raw_id, text_at(message, "params", "sessionId"))
        return True

    def _is_answered(self, raw_id: bytes, message: bytes, outcome: Outcome, *, failed: bool) -> bool:
        """Process a response; return whether it is for the editor."""
        if raw_id == self._initializing:
            self._initializing = None
            if raw_id not in self._editor.requests:
                self._initialized(message, outcome, failed=failed)
                return False
        for session_id, reopening in self._reopening.items():
            if raw_id == reopening.raw_id:
                self._restored(session_id, message, outcome, failed=failed)
                return False
        if raw_id not in self._editor.requests and self._ends_turn(raw_id, message, outcome, failed=failed):
            return False
        asked = self._editor.requests.get(raw_id)
        if asked is not None and asked.method == NEW and not failed and is_ignored(asked.params, message):
            self._editor.close(raw_id)
            outcome.to_editor.append(error(raw_id, INTERNAL_ERROR, NO_WORKTREE, WORKTREE))
            return False
        request = self._editor.answered(raw_id, message, failed=failed)
        if failed and request is not None and request.method == PROMPT and request.session is not None:
            _log_agent_ended(request.session, _failure(message).reason, outcome)
        return True

    def _note_state(self, message: bytes, outcome: Outcome) -> None:
        """Record the state that an update of version 2 tells."""
        told = told_state(message)
        if told is not None:
            self._editor.state_told(*told)
            _log_agent_ended(told[0], text_at(message, "params", "update", "error", "data", "reason"), outcome)

    def _ends_turn(self, raw_id: bytes, response: bytes, outcome: Outcome, *, failed: bool) -> bool:
        """Process a response to a prompt that was answered over an earlier link, when its turn began.

        The gateway sends it at the end of the turn. Return False if it is not one.
        """
        session_id = self._returned.pop(raw_id, None)
        if session_id is None:
            return False
        if was_not_sent(response):
            outcome.to_editor.append(self.note(session_id, PROMPT_NOT_SENT))
        if session_id in self._editor.running:
            if failed:
                end = {"stopReason": b'"error"', "error": raw_at(response, "error") or b"{}"}
            else:
                end = {"stopReason": raw_at(response, "result", "stopReason") or b"null"}
            self._editor.state_told(session_id, IDLE)
            outcome.to_editor.append(_idle(session_id, end))
        return True

    # Recovery

    def begin_recovery(self, connection_id: str, unsent: Sequence[bytes], why: str) -> Outcome:
        """Start a recovery on a new link, over which `to_gateway` is to be sent.

        Args:
            connection_id: the id of the lost link.
            unsent: messages that passed `from_editor` and were certainly not sent. The caller keeps them, and sends
                those that are `still_valid` when `recovering` is False, which may be at once.
            why: why the link was lost, for the errors of requests in flight.

        A recovery may be started during another one, and after one has failed.
        """
        outcome = Outcome()
        former = [link for link in self._lost_links if link != connection_id] if self.turns() or self._returned else []
        self._lost_links = [connection_id, *former[:MAX_FORMER]]
        self._initializing = self.failure = None
        self._abandon()
        self._reopening = {
            session_id: SessionRestore(session_id, self._editor.positions.at(session_id))
            for session_id in (self._editor.sessions if self.started else ())
        }
        self._take_turns()
        requests, answers = ids_in(unsent)
        self._settle_requests(requests, why, outcome)
        for raw_id, session_id in self._editor.pending.unsettled(answers).items():
            if session_id in self._reopening:
                self._reopening[session_id].agent_requests.append(raw_id)
            else:
                self._withdraw(raw_id, outcome)
        if self.started:
            assert self._editor.initialize is not None
            self._initializing = self._editor.unused_id("initialize")
            params = with_own_meta(
                object_at(self._editor.initialize, "params"), encode({"lastId": self._editor.pending.last_id})
            )
            text = with_member(self._editor.initialize, "params", params)
            outcome.to_gateway.append(with_member(text, "id", self._initializing))
        return outcome

    def _take_turns(self) -> None:
        """Move what is known of turns of version 2 to the sessions that are to be restored."""
        for session_id, prompts in list(self._editor.running.items()):
            if session_id in self._reopening:
                self._reopening[session_id].has_turn = True
                self._reopening[session_id].answered += prompts
            else:
                # Opening the session was in flight, and is answered with an error.
                del self._editor.running[session_id]
        for raw_id, session_id in self._returned.items():
            if session_id in self._reopening and raw_id not in self._reopening[session_id].answered:
                self._reopening[session_id].answered.append(raw_id)

    def _settle_requests(self, unsent: Collection[bytes], why: str, outcome: Outcome) -> None:
        """Answer requests in flight with an error, but send `initialize` again and keep prompts that may continue."""
        text = f"the link to the gateway was lost ({why}): it is unknown whether this request was carried out"
        for raw_id, request in list(self._editor.requests.items()):
            if raw_id in unsent:
                continue
            if request.method == PROMPT:
                if request.session in self._reopening:
                    self._reopening[request.session].prompts.append(raw_id)
                else:
                    self._cancel(raw_id, outcome)
            elif self._editor.is_initializing(raw_id):
                assert self._editor.initialize is not None
                self._initializing = raw_id
                outcome.to_gateway.append(self._editor.initialize)
            else:
                self._editor.close(raw_id)
                outcome.to_editor.append(error(raw_id, INTERNAL_ERROR, text, "outage"))
                outcome.log_messages.append(f"{request.method[:80]!r} was in flight and is answered with an error")

    def still_valid(self, unsent: Sequence[bytes]) -> list[bytes]:
        """Return the kept messages that are still valid after a recovery.

        Responses to cancelled requests are not, nor requests that were given up, nor cancellations of requests that
        are not open.
        """
        return [message for message in unsent if self._is_valid(message)]

    def may_be_sent(self, message: bytes) -> bool:
        """Return whether a message of the editor need not wait for the end of the recovery.

        Responses to requests made over the new link are sent at once: the agent may need them to open a session.
        Messages for a restored session don't wait for the other sessions.
        """
        raw_id, method, _ = read_envelope(message) or NOTHING
        if method is None:
            waits = any(raw_id in one.agent_requests for one in self._reopening.values())
            return raw_id is not None and raw_id in self._editor.pending and not waits
        if self._initializing is not None or method == CANCEL_REQUEST:
            return False
        session_id = text_at(message, "params", "sessionId")
        return session_id in self._editor.sessions and session_id not in self._reopening

    def give_up(self, message: str, reason: str) -> list[bytes]:
        """Return an error response for each open request of the editor, also prompts and unsent ones, and forget them.

        Turns are ended with that error. Sessions are kept: a recovery may start later.
        """
        if not self.started:
            self._initializing = None
        ended = [_idle(session_id, _failed_turn(message, reason)) for session_id in self._editor.running]
        self._editor.running.clear()
        self._returned.clear()
        return [*self._editor.close_all(message, reason), *ended]

    def _abandon(self) -> None:
        """End a recovery early; the editor keeps its position in sessions without a passed message."""
        for session_id, reopening in self._reopening.items():
            if not reopening.continues:
                self._editor.positions.put(session_id, reopening.position)
        self._reopening.clear()

    def _initialized(self, response: bytes, outcome: Outcome, *, failed: bool) -> None:
        """Process the response to the repeated `initialize`: request the restore of each session."""
        if failed:
            self.failure = _failure(response)
            self._abandon()
            return
        method = restore_method(response)
        for session_id, reopening in list(self._reopening.items()):
            if method is None or session_id not in self._editor.sessions:
                outcome.log_messages.append(f"session {session_id:.80} is lost: the agent can't restore sessions")
                self._lose_session(session_id, outcome)
                continue
            self._reopened += 1
            raw_id = self._editor.unused_id(f"attach:{self._reopened}")
            opening = reopening.request(raw_id, method, self._editor.sessions[session_id], self._lost_links)
            outcome.to_gateway.append(opening)

    def _restored(self, session_id: str, response: bytes, outcome: Outcome, *, failed: bool) -> None:
        """Process the response to the restore of a session."""
        reopening = self._reopening[session_id]
        if reopening.discarded:
            many = counted(reopening.discarded, "update")
            outcome.log_messages.append(f"discarded {many} of session {session_id:.80}: already seen, or missed")
        if failed:
            code, _, reason = _failure(response)
            if reason in AGENT_LOST:
                # The session itself may still exist.
                self.failure = _failure(response)
                self._abandon()
                return
            # Imported here to keep start-up fast: compiling its patterns takes time.
            from acp_gateway.protocol.reasons import reason_of

            said = f"{code}{f' ({reason[:80]!r})' if reason else ''}: {reason_of(response)}"
            outcome.log_messages.append(f"session {session_id:.80} is lost: {said}")
            self._lose_session(session_id, outcome)
            return
        if not reopening.continues:
            outcome.log_messages.append(
                f"session {session_id:.80}: the gateway does not know the editor's position: missed updates are lost"
            )
            if reopening.method == LOAD or (self._editor.is_new and reopening.discarded):
                # The replay was discarded. After session/resume, the gateway itself reports the gap, unless it had to
                # load the session for an editor of version 2.
                outcome.to_editor.append(self.note(session_id, MAY_BE_MISSING))
        if not reopening.marked:
            self._editor.positions.forget(session_id)
        cut = text_at(response, "result", "_meta", META, "cut")
        if cut is not None:
            what = "the gateway was restarted" if cut == _RESTARTED else f"{cut[:80]!r}"
            outcome.log_messages.append(f"{what}: the turn in session {session_id:.80} was ended")
        prompts = elements_at(response, "result", "_meta", META, "prompts")
        agent_requests = elements_at(response, "result", "_meta", META, "questions")
        self._settle(session_id, prompts, agent_requests, outcome, cut)

    def _lose_session(self, session_id: str, outcome: Outcome) -> None:
        self._editor.forget(session_id)
        self._reopening[session_id].state = None
        # An observer sends no requests, so no error would report the loss.
        outcome.to_editor.append(self.note(session_id, SESSION_LOST))
        self._settle(session_id, (), (), outcome, None)

    def _settle(
        self,
        session_id: str,
        prompts: Collection[bytes],
        agent_requests: Collection[bytes],
        outcome: Outcome,
        cut: str | None,
    ) -> None:
        """End a session's prompts and agent requests, except these, which are still open.

        `cut` is the gateway's reason for the end of a turn.
        """
        reopening = self._reopening.pop(session_id)
        over = [raw_id for raw_id in reopening.prompts if raw_id not in prompts and raw_id in self._editor.requests]
        gone = [raw_id for raw_id in reopening.agent_requests if raw_id not in agent_requests]
        words = TURN_UNKNOWN if cut is None else TURN_CUT if cut == _RESTARTED else TURN_LOST
        turn_is_over = _is_turn_over(reopening, prompts, cut)
        if (over or turn_is_over) and self._tells_outages:
            outcome.to_editor.append(self.note(session_id, words))
        for raw_id in over:
            self._cancel(raw_id, outcome, words, cut)
        if self._editor.is_new:
            end = _failed_turn(_plain(words), cut or "outage") if turn_is_over else None
            self._settle_turn(reopening, prompts, end, outcome)
        for raw_id in gone:
            self._withdraw(raw_id, outcome)
        if session_id in self._editor.sessions:
            outcome.log_messages.append(
                f"session {session_id:.80} is restored: {len(over)} of {len(reopening.prompts)} prompts and "
                f"{len(gone)} of {len(reopening.agent_requests)} agent requests cancelled"
            )

    def _settle_turn(
        self,
        reopening: SessionRestore,
        prompts: Collection[bytes],
        end: Mapping[str, bytes] | None,
        outcome: Outcome,
    ) -> None:
        """Tell an editor of version 2 the state of a restored session.

        `prompts` are those that the gateway answers at the end of their turn, and `end` is why the turn has ended that
        the editor knows; None if it goes on.
        """
        session_id, state = reopening.session_id, reopening.state
        self._returned = {raw_id: at for raw_id, at in self._returned.items() if at != session_id}
        self._returned |= dict.fromkeys((raw_id for raw_id in reopening.answered if raw_id in prompts), session_id)
        if end is not None:
            self._editor.state_told(session_id, IDLE)
            has_reason = state is not None and raw_at(state, "params", "update", "stopReason") not in (None, b"null")
            outcome.to_editor.append(state if state is not None and has_reason else _idle(session_id, end))
        for raw_id in reopening.prompts:
            if raw_id in self._editor.requests:
                blocks = raw_at(self._editor.requests[raw_id].params, "prompt") or b"[]"
                self._editor.accept(raw_id, session_id)
                self._returned[raw_id] = session_id
                message_id = encode(self._made_id())
                outcome.to_editor.append(b'{"jsonrpc":"2.0","id":%b,"result":{"messageId":%b}}' % (raw_id, message_id))
                shown = {"sessionUpdate": b'"user_message"', "messageId": message_id, "content": blocks}
                outcome.to_editor.append(_update(session_id, shown))
        if state is not None and _state_of(state) != IDLE and (end is not None or not reopening.has_turn):
            self._editor.state_told(session_id, _state_of(state))
            outcome.to_editor.append(state)

    def _discards(self, method: str, message: bytes) -> bool:
        """Return whether to drop a notification: an update that may have been seen, or an extension not asked for."""
        if not self.recovering:
            return False
        if method != SESSION_UPDATE:
            return method.startswith(RESERVED_PREFIX) and not self._editor.wants_extensions()
        reopening = self._reopening.get(updated_session(message) or "")
        if reopening is None:
            return False
        if self._editor.is_new and told_state(message) is not None:
            reopening.state = message
        elif not reopening.discard():
            return False
        if reopening.marked:
            # Counted, because the gateway counts it too.
            self._editor.positions.delivered([message])
        return True

    def _cancel(self, raw_id: bytes, outcome: Outcome, words: str = TURN_UNKNOWN, cut: str | None = None) -> None:
        """Answer a prompt that was lost: with an error that names it if the agent or the gateway has ended, as when
        the agent ends over a link, and in version 2, in which no turn of it has begun; else as cancelled."""
        request = self._editor.requests.pop(raw_id)
        if cut is not None:
            ended = "the gateway was restarted" if cut == _RESTARTED else "the agent was stopped"
            why = name_prompt(f"{ended} before this prompt was done", request.text)
            outcome.to_editor.append(error(raw_id, INTERNAL_ERROR, why, cut))
            return
        if self._editor.is_new:
            outcome.to_editor.append(error(raw_id, INTERNAL_ERROR, _plain(words), "outage"))
            return
        outcome.to_editor.append(b'{"jsonrpc":"2.0","id":%b,"result":{"stopReason":"cancelled"}}' % raw_id)

    def _withdraw(self, raw_id: bytes, outcome: Outcome) -> None:
        """Cancel an agent request, or drop the response to it that was not sent."""
        if self._editor.pending.withdraw(raw_id):
            outcome.to_editor.append(
                b'{"jsonrpc":"2.0","method":%b,"params":{"requestId":%b}}' % (encode(CANCEL_REQUEST), raw_id)
            )

    def _is_valid(self, message: bytes) -> bool:
        raw_id, method, _ = read_envelope(message) or NOTHING
        if raw_id is None:
            return method != CANCEL_REQUEST or raw_at(message, "params", "requestId") in self._editor.requests
        if method is None:
            return raw_id in self._editor.pending
        return raw_id in self._editor.requests or not has_valid_id(message, raw_id)


def _log_agent_ended(session_id: str, reason: str | None, outcome: Outcome) -> None:
    if reason in AGENT_LOST:
        outcome.log_messages.append(f"the agent has ended ({reason}): the turn in session {session_id:.80} was ended")


def _is_turn_over(reopening: SessionRestore, prompts: Collection[bytes], cut: str | None) -> bool:
    """Return whether the turn of version 2 that the editor knows is over, and no response will tell its end."""
    if not reopening.has_turn or any(raw_id in prompts for raw_id in reopening.answered):
        return False
    return cut is not None or reopening.state is None or _state_of(reopening.state) == IDLE


def _plain(words: str) -> str:
    """Return the words of a note as those of an error."""
    return words.removeprefix("[acp-gateway: ").removesuffix(".]")


def _state_of(update: bytes) -> str:
    return text_at(update, "params", "update", "state") or ""


def _failed_turn(message: str, reason: str) -> dict[str, bytes]:
    """Return the members of the state that ends a turn of version 2 with an error."""
    failure = {"code": INTERNAL_ERROR, "message": message, "data": {"reason": reason}}
    return {"stopReason": b'"error"', "error": encode(failure)}


def _idle(session_id: str, end: Mapping[str, bytes]) -> bytes:
    """Return the update of version 2 that ends a turn."""
    return _update(session_id, {"sessionUpdate": b'"state_update"', "state": b'"idle"', **end})


def _update(session_id: str, members: Mapping[str, bytes]) -> bytes:
    """Return an update of a session from its members, which are JSON texts."""
    update = b",".join(b"%b:%b" % (encode(name), value) for name, value in members.items())
    params = b'{"sessionId":%b,"update":{%b}}' % (encode(session_id), update)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(SESSION_UPDATE), params)


def _failure(response: bytes) -> Failure:
    code = whole_number(raw_at(response, "error", "code"))
    return Failure(
        INTERNAL_ERROR if code is None else code,
        text_at(response, "error", "message") or "the gateway answered initialize with an error",
        text_at(response, "error", "data", "reason"),
    )
