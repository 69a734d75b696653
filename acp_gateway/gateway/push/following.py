"""Tells another gateway of open questions and of the ends of turns, for browsers that have signed in there.

That gateway decides what a browser is told and when, and sends it. What it is told names sessions and agents as this
gateway does; `read_notices` names them as a node's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any, Final, Literal

import msgspec

from acp_gateway.core.sessions.session import SESSION_ID_SIZE
from acp_gateway.gateway.push.deciding import MAX_OPTIONS, TEXT_LENGTH, Question, TurnNotice, as_json, short
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.protocol.methods import NOTICES
from acp_gateway.transports.timers import Signal

MAX_QUESTIONS: Final = 100
"""Maximum questions in a message, the latest ones, and maximum turns. With texts of `TEXT_LENGTH` they take 1 MiB."""

_Id = Annotated[str, msgspec.Meta(max_length=SESSION_ID_SIZE)]
_Text = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Option(msgspec.Struct, frozen=True, rename="camel"):
    option_id: _Text
    name: _Text
    kind: _Text | None = None


class _Question(msgspec.Struct, frozen=True, rename="camel"):
    session_id: _Id
    request_id: _Id
    agent: _Text
    age: _Seconds
    attended: bool
    title: _Text | None = None
    asked: _Text | None = None
    options: Annotated[tuple[_Option, ...], msgspec.Meta(max_length=MAX_OPTIONS)] = ()


class _Turn(msgspec.Struct, frozen=True, rename="camel"):
    session_id: _Id
    running: bool
    agent: _Text = ""
    title: _Text | None = None
    end: Literal["done", "failed", "stopped"] | None = None
    words: _Text = ""
    seconds: _Seconds = 0.0


class _Notices(msgspec.Struct, frozen=True):
    time: Annotated[int, msgspec.Meta(ge=0)]
    questions: Annotated[tuple[_Question, ...], msgspec.Meta(max_length=MAX_QUESTIONS)]
    turns: Annotated[tuple[_Turn, ...], msgspec.Meta(max_length=MAX_QUESTIONS)] = ()


class _Message(msgspec.Struct, frozen=True):
    method: Literal["_acp-gateway/notices"]
    params: _Notices


class Turn(msgspec.Struct, frozen=True):
    """A turn of a session that has ended or begun."""

    session: str
    ended: TurnNotice | None
    running: bool


class Notices(msgspec.Struct, frozen=True):
    """A message of a node."""

    time: int
    """Time there, in milliseconds since 1970: a later request asks for the turns that have ended since."""
    questions: Sequence[Question]
    """All open questions."""
    turns: Sequence[Turn]
    """The sessions whose turns have ended or begun since the message before."""


class Follower:
    """A control connection that is told, a `Watcher`.

    Args:
        viewer: returns what it may see.
        since: see `Watcher`.
        with_content: returns whether it is told what agents ask and say.
        is_current: returns False when it has to connect again, since it may use other agents by now.
    """

    def __init__(
        self,
        viewer: Callable[[], Viewer | None],
        since: int | None,
        with_content: Callable[[], bool],
        is_current: Callable[[], bool],
    ) -> None:
        self.viewer = viewer
        self.since = since
        self._with_content = with_content
        self._is_current = is_current
        # The open questions as of the last look, and without the times of their arrival as told last; None before.
        self._questions: list[Question] | None = None
        self._told: list[Question] | None = None
        self._turns: dict[str, Turn] = {}
        self._now = 0.0
        self._ended = False
        self._signal = Signal()

    def __str__(self) -> str:
        return "another gateway"

    def turn(self, session: str, ended: TurnNotice | None, *, running: bool) -> None:
        """Note a turn, see `Watcher`."""
        self._turns.pop(session, None)
        self._turns[session] = Turn(session, ended, running)
        if len(self._turns) > MAX_QUESTIONS:
            del self._turns[next(iter(self._turns))]

    def look(self, questions: list[Question], now: float) -> float:
        """Note all open questions, see `Watcher`."""
        self._questions, self._now = questions[-MAX_QUESTIONS:], now
        self._ended = not self._is_current()
        if self._ended or self._has_news:
            self._signal.notify()
        return inf

    @property
    def _has_news(self) -> bool:
        return self._questions is not None and (bool(self._turns) or _timeless(self._questions) != self._told)

    async def take(self) -> bytes | None:
        """Wait for something that was not told yet; return the notification, or None if it has to connect again."""
        while not (self._ended or self._has_news):
            await self._signal.wait()
        if self._ended or self._questions is None:
            return None
        self._told, turns, self._turns = _timeless(self._questions), self._turns, {}
        full = self._with_content()
        params = {
            "time": int(1000 * self._now),
            "questions": [_describe(question, self._now, full=full) for question in self._questions],
            "turns": [_describe_turn(turn, full=full) for turn in turns.values()],
        }
        return as_json({"jsonrpc": "2.0", "method": NOTICES, "params": params})


def _timeless(questions: Sequence[Question]) -> list[Question]:
    return [replace(question, arrived=0.0) for question in questions]


def _describe(question: Question, now: float, *, full: bool) -> dict[str, Any]:
    described = {
        "sessionId": question.session,
        "requestId": question.request,
        "agent": short(question.agent),
        "age": max(0.0, now - question.arrived),
        "attended": question.attended,
    }
    if not full:
        return described
    options = [
        {"optionId": option, "name": short(name), "kind": kind if kind is None else short(kind)}
        for option, name, kind in question.options[:MAX_OPTIONS]
        if len(option) <= TEXT_LENGTH
    ]
    words = {"title": short(question.title) or None, "asked": short(question.asked) or None}
    return described | words | {"options": options}


def _describe_turn(turn: Turn, *, full: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"sessionId": turn.session, "running": turn.running}
    ended = turn.ended
    if ended is None:
        return described
    described |= {"agent": short(ended.agent), "end": ended.end, "seconds": ended.seconds}
    words = {"title": short(ended.title) or None, "words": short(ended.words)}
    return described | (words if full else {})


def read_notices(text: bytes, node: str, now: float) -> Notices:
    """Return what a node tells in a notification, with its sessions and agents as this gateway names them.

    Raises `ValueError`.
    """
    told = msgspec.json.decode(text, type=_Message).params
    # Others can't be asked for through this gateway.
    longest = SESSION_ID_SIZE - len(node) - 1
    return Notices(
        told.time,
        [
            Question(
                f"{node}/{each.session_id}",
                each.request_id,
                f"{node}/{each.agent}",
                each.title,
                each.asked,
                tuple((option.option_id, option.name, option.kind) for option in each.options),
                now - each.age,
                each.attended,
                machine=node,
            )
            for each in told.questions
            if len(each.session_id) <= longest
        ],
        [
            Turn(f"{node}/{each.session_id}", _ended_turn(each, node), each.running)
            for each in told.turns
            if len(each.session_id) <= longest
        ],
    )


def _ended_turn(turn: _Turn, node: str) -> TurnNotice | None:
    if turn.end is None:
        return None
    agent = f"{node}/{turn.agent}"
    return TurnNotice(f"{node}/{turn.session_id}", agent, turn.title, turn.end, turn.words, turn.seconds)
