"""Set-up shared by the tests of the registry and of its archive."""

from acp_gateway.core.journal import Journal
from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import Session, SessionScope

ME, YOU, GUEST = SessionScope("me"), SessionScope("you"), SessionScope("guest-1", only="s", guest=True)


class AgentHandle:
    abandoned = False


def session(session_id: str = "s", owner: str = "me", agent: str = "agent") -> Session:
    return Session(agent, session_id, owner, Journal(1000))


def live(registry: Registry, *args: str) -> Session:
    it = session(*args)
    registry.add(it, AgentHandle())
    return it


def past(registry: Registry, *args: str) -> Session:
    it = live(registry, *args)
    registry.end(it)
    return it
