"""Set-up shared by the tests of the registry and of its archive."""

from collections.abc import Sequence

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Request, Session, SessionReach
from acp_gateway.core.turns.journal import Journal

ME, YOU, GUEST = SessionReach("me"), SessionReach("you"), SessionReach("guest-1", only="s", guest=True)


class AgentDouble:
    """An agent process of a test's own invention that sessions live in."""

    def __init__(self, *, abandoned: bool = False) -> None:
        self.abandoned = abandoned
        self.prompts: list[Request] = []
        """Prompts that wait in each of its sessions."""

    def left_by(self, links: Sequence[str]) -> bool:
        return False

    def note_prompts(self, session: Session) -> None: ...

    def queued(self, session: Session) -> Sequence[Request]:
        return self.prompts if session.agent_handle is self else ()

    def questions(self, session: Session) -> int:
        return 0


def session(session_id: str = "s", owner: str = "me", agent: str = "agent") -> Session:
    return Session(agent, session_id, owner, Journal(1000))


def live(registry: Registry, *args: str) -> Session:
    it = session(*args)
    registry.add(it, AgentDouble())
    return it


def past(registry: Registry, *args: str) -> Session:
    it = live(registry, *args)
    registry.end(it)
    return it
