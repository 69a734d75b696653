"""Sends kept prompts when their time has come, for the principals that have sent them.

Each is sent by a client of its sender, which joins the session, or opens it, and leaves again. What that client may not
do is not done: the prompt waits for a person then, with the reason.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.errors import AccessError, ConfigError
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.kept.prompts import due_prompts
from acp_gateway.gateway.viewing.local_client import ClientEnded
from acp_gateway.gateway.viewing.open_sessions import CallRefused, OpenSessions, release
from acp_gateway.protocol.text import lookup

log = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the time of day, which may be set in between: people write minutes."""

AT_ONCE: Final = 8
"""Maximum sessions that are opened for their prompts at a time: each may start an agent."""

VIA: Final = "queue"
"""Kind of client that the others in a session are shown."""


class DuePrompts:
    """Sends what is due at one gateway.

    Args:
        gateway: the gateway, which must be running.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, gateway: Gateway, now: Callable[[], float] = time.time) -> None:
        self._gateway = gateway
        self._now = now
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        # The keys of the prompts that are being sent.
        self._sending: set[str] = set()

    async def run(self) -> None:
        """Look at the time and send, until cancelled."""
        while True:
            for session, key in due_prompts(self._gateway.registry.keeping, round(self._now() * 1000)):
                if key not in self._sending:
                    self._sending.add(key)
                    self._gateway.start_task(self._send, session, key)
            await trio.sleep(INTERVAL)

    async def _send(self, session: Session, key: str) -> None:
        try:
            async with self._limiter:
                await self._release(session, key)
        except (CallRefused, AccessError, ClientEnded, ConfigError) as error:
            self._hold(session, key, error)
        finally:
            self._sending.discard(key)

    def _hold(self, session: Session, key: str, error: Exception) -> None:
        """Have a prompt wait for a person that could not be sent."""
        why = _words_of(error)
        log.warning("session %.80r of agent %s: a prompt was not sent at its time: %s", session.id, session.agent, why)
        self._gateway.hold_prompt(session, key, why)

    async def _release(self, session: Session, key: str) -> None:
        prompt = session.kept.get(key)
        if prompt is None:
            return
        access = self._gateway.senders.find(prompt.sender)
        start = self._gateway.start_task
        sessions = OpenSessions(self._gateway, access, f"{VIA} {key}", observe=False, start=start, via=VIA)
        try:
            await sessions.prompt(
                session, release(session, key), lambda response: self._hold(session, key, CallRefused.by(response))
            )
        finally:
            with trio.CancelScope(shield=True):
                await sessions.close()


def _words_of(error: Exception) -> str:
    """Return the reason of a failure, in one line."""
    response = error.response if isinstance(error, CallRefused) else None
    told = str(error) if response is None else lookup.text_at(response.text, "error", "message")
    return " ".join((told or "the agent answered with an error").split())
