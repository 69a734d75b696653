"""Decides whether a silent agent without open requests is idle: it may work in the background.

It does as long as something runs that it has started since it was ready, or as it uses the processor. Where nothing is
known of its processes, as of an agent that listens, silence is all that counts.
"""

import logging
from typing import Final

from acp_gateway.gateway.agent.descendants import Look, named
from acp_gateway.gateway.agent.process import Agent

log = logging.getLogger(__name__)

WORKING: Final = 0.01
"""Share of a processor from which an agent counts as working. One that waits uses less for its timers."""


class Idleness:
    """Decides whether agents of one hub are idle, one after the other."""

    def __init__(self) -> None:
        # The agent, the time since which it is silent, and the first look at it in that silence.
        self._silence: tuple[Agent, float] | None = None
        self._first: tuple[float, Look] | None = None
        self._is_told = False

    async def is_idle(self, agent: Agent | None, since: float, now: float, timeout: float) -> bool:
        """Return True if an agent has been idle for `timeout` seconds; it says and is asked nothing since `since`.

        To be called at least four times within the timeout. The state may have changed by the return.
        """
        silent = now - since
        if agent is None or agent.descendants is None:
            return silent >= timeout
        if silent < timeout / 2:
            return False
        if self._silence != (agent, since):
            self._silence, self._first, self._is_told = (agent, since), None, False
        if self._first is not None and silent < timeout:
            return False
        look = await agent.descendants.look()
        if self._first is None:
            self._first = now, look
            return False
        at, first = self._first
        if look.started:
            self._tell(agent, f"{named(look.started)} runs, which it has started")
        elif now - at < timeout / 4:
            return False
        elif look.seconds - first.seconds >= WORKING * (now - at):
            self._tell(agent, "it uses the processor")
        else:
            return True
        self._first = now, look
        return False

    def _tell(self, agent: Agent, why: str) -> None:
        if not self._is_told:
            log.info("agent %s is not stopped, though nothing is asked of it: %s", agent.name, why)
        self._is_told = True
