"""Prompts that wait without a request of a client: for a time, or for a person.

A prompt with a time is one from the start. One that waits for the end of a turn becomes one when the agent or the
gateway ends before: it is sent by itself only if its sender has chosen that.

To send one, a client sends `session/prompt` with its key. That request takes the place of the kept prompt, once: a
second one finds none. Before the agent gets it, the archive has stored that it may have it (`Turns.when_marked`).
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import KeptPrompt
from acp_gateway.core.sessions.own_meta import may_have_own_meta
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Request, Session
from acp_gateway.core.turns.queue import NOT_OWN, NOT_WAITING
from acp_gateway.core.turns.queued_prompts import kept, left
from acp_gateway.core.turns.steering import TakesPrompt
from acp_gateway.core.turns.turns import Turns
from acp_gateway.gateway.kept.due_times import NoTime, due_time
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.not_sent import CANCELLED
from acp_gateway.protocol.text import lookup
from acp_gateway.versions.old_agent import restated
from acp_gateway.versions.parts import Untranslatable

TERMS_SIZE: Final = 1024
"""Maximum bytes of `queue` that are read: a time, or the key of a prompt."""

LOST: Final = "the agent may have this prompt already: look into the session, and send another one if it has not"

_NOT_OF_GUESTS: Final = "nothing of a guest waits for a time: send the prompt when it is to begin"


class KeptPrompts:
    """The kept prompts in the sessions of one agent process."""

    def __init__(self, agent: AgentState, turns: Turns) -> None:
        self._agent = agent
        self._turns = turns

    def takes(self, session: Session, request: Request) -> bool:
        """Handle a prompt whose `queue` says more than `auto`; return False for any other."""
        message = request.message
        terms = lookup.param(message, "_meta", META, "queue") if may_have_own_meta(message.text) else None
        if terms is None or len(terms) > TERMS_SIZE or terms[:1] != b"{":
            return False
        at, release, remove = (lookup.text_at(terms, name) for name in ("at", "release", "remove"))
        offset = lookup.raw_at(terms, "offset") or b"0"
        if release is not None:
            self.release(session, request, release)
        elif remove is not None:
            self.remove(session, request, remove)
        elif at is not None:
            is_number = len(offset) < 6 and offset.removeprefix(b"-").isdigit()
            self.wait(session, request, at, int(offset) if is_number else 0)
        return at is not None or release is not None or remove is not None

    def wait(self, session: Session, request: Request, at: str, offset: int) -> None:
        """Keep a prompt for a time, as `due_time` reads it, and answer its request once it is stored."""
        agent, now = self._agent, self._agent.clock.wall_time or 0
        if request.client.reach.guest:
            agent.refuse(request, jsonrpc.INVALID_REQUEST, _NOT_OF_GUESTS)
            return
        try:
            due = due_time(at, now, offset, session.limited_until)
        except NoTime as flaw:
            agent.refuse(request, jsonrpc.INVALID_PARAMS, str(flaw))
            return
        why = self._turns.too_many(session, request)
        if why is not None:
            agent.refuse(request, jsonrpc.INVALID_REQUEST, why)
            return
        request.queued = replace(self._turns.describe(request), state="timed", due=due)
        agent.registry.keep_prompt(session, kept(request))
        told = {"promptId": request.queued.key, "due": f"{datetime.fromtimestamp(due // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"}
        answer = jsonrpc.encode({"stopReason": "cancelled", "_meta": {META: {"waits": told}}})
        self._turns.when_stored(request.queued.key, partial(self._accept, request, answer))

    def _accept(self, request: Request, answer: bytes) -> None:
        # What becomes of the prompt is not the request's any more.
        request.queued = None
        self._agent.answer(request, answer)

    def _find(self, session: Session, request: Request, key: str) -> KeptPrompt | None:
        """Return a kept prompt that the client of a request may change, or refuse the request."""
        prompt = session.kept.get(key)
        if prompt is None:
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, NOT_WAITING, {"reason": "not_waiting"})
        elif request.client.reach.guest:
            self._agent.refuse(request, jsonrpc.INVALID_REQUEST, NOT_OWN)
            return None
        return prompt

    def remove(self, session: Session, request: Request, key: str) -> None:
        """Remove a kept prompt, and answer the request once it is not stored any more."""
        prompt = self._find(session, request, key)
        if prompt is not None:
            remove_kept(self._agent.registry, session, key)
            about = {"session": session.id, "agent": self._agent.name, "action": "remove"}
            self._agent.out.audit("queue_changed", request.client, **about, sender=prompt.identity)
            self._turns.when_stored(key, partial(self._agent.answer, request, CANCELLED))

    def release(self, session: Session, request: Request, key: str) -> None:
        """Send a kept prompt in place of a request: now, or after the turns that run and what waits for their end."""
        agent, prompt = self._agent, self._find(session, request, key)
        if prompt is None:
            return
        if prompt.shown.state == "lost":
            agent.refuse(request, jsonrpc.INVALID_REQUEST, LOST, {"reason": "not_waiting"})
            return
        text = jsonrpc.with_id(jsonrpc.parse(prompt.text), request.id)
        try:
            request.replace(restated(jsonrpc.parse(text)) if prompt.is_new and not agent.out.carries else text)
        except Untranslatable as flaw:
            agent.refuse(request, flaw.code, str(flaw))
            return
        agent.registry.take_prompt(session, key)
        request.queued = replace(prompt.shown, state="queued", due=None, why="")
        request.is_new, request.handed_over = prompt.is_new and agent.out.carries, True
        self._turns.prompt(session, request)


def keeping(agent: AgentState, turns: Turns) -> TakesPrompt:
    """Return what takes the prompts of an agent process that wait for a time or a person."""
    return KeptPrompts(agent, turns).takes


def due_prompts(sessions: Iterable[Session], now: int) -> list[tuple[Session, str]]:
    """Return the kept prompts whose time has come, with their sessions; `now` is in milliseconds since 1970."""
    kept = ((session, prompt.shown) for session in sessions for prompt in session.kept.values())
    return [(session, shown.key) for session, shown in kept if shown.due is not None and shown.due <= now]


def remove_kept(registry: Registry, session: Session, key: str) -> bool:
    """Remove a kept prompt; return False if none has this key."""
    found = registry.take_prompt(session, key) is not None
    if found:
        session.archive.drop_prompt(session, key)
    return found


def hold_kept(registry: Registry, session: Session, key: str, why: str) -> None:
    """Have a kept prompt wait for a person, with the reason for which it is not sent by itself."""
    prompt = session.kept.get(key)
    if prompt is not None:
        registry.keep_prompt(session, left(prompt, None, why))
