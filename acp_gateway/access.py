"""Who a connection belongs to, what it may use, what it asked for at the door, and as what it was let in."""

from dataclasses import dataclass
from typing import Self

from acp_gateway.auth import Token
from acp_gateway.protocol.sessions import Role, Viewer


@dataclass(frozen=True, slots=True)
class Access:
    """Who a connection belongs to and what it may use."""

    identity: str
    token: Token | None
    """None for a peer that the kernel vouched for: the gateway's own user, who may use everything."""

    @classmethod
    def of(cls, token: Token) -> Self:
        """The access that a token gives."""
        return cls(token.identity, token)

    def may_use(self, agent: str) -> bool:
        """Whether the token allows this agent."""
        return self.token is None or self.token.agents is None or agent in self.token.agents


@dataclass(frozen=True, slots=True)
class Wish:
    """What a connection asks for when it comes in."""

    agent: str | None = None
    """None for the default one."""
    session: str | None = None
    """The session that it wants to join; None to begin with one of its own."""
    observe: bool = False
    """To look only, though the token may allow more."""
    control: bool = False
    """To ask the gateway itself, and no agent."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A connection that was let in: who it is, and what for."""

    access: Access
    wish: Wish
    agent: str
    """Empty for a control connection."""
    viewer: Viewer
    role: Role
