"""Authenticated principals, connect requests, and the grants that connections get for them."""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from acp_gateway.config.options import CertificateSection
from acp_gateway.core.sessions.session import EDITOR, Role, SessionReach
from acp_gateway.errors import Forbidden, UnknownSession
from acp_gateway.protocol.on_behalf import OnBehalf, Otherwise
from acp_gateway.protocol.secret_patterns import redact_text
from acp_gateway.security.browser_sessions import Browser
from acp_gateway.security.certificates import CertificateId
from acp_gateway.security.token_store import BELOW, EVERYONE, Token
from acp_gateway.security.token_store import Role as AccessRole
from acp_gateway.transports.parts import PartSum


@dataclass(frozen=True, slots=True)
class Access:
    """The principal of a connection and its reach; by default everything, as for the gateway's own user."""

    identity: str
    token: Token | None
    """The token, or that of the browser; None for client certificates, and for the gateway's own user, whom the kernel
    identifies."""
    certificate: str | None = None
    """The name in the configuration of the certificate that was shown."""
    role: AccessRole = "controller"
    """The highest role that it may have."""
    agents: tuple[str, ...] | None = None
    """The names of the agents that it may use; None for all."""
    workspaces: tuple[str, ...] | None = None
    """The names of the workspaces that it may use; None for all."""
    session: str | None = None
    """The only session that a guest may join, of any owner; None for the sessions of its identity."""
    granted_by: str | None = None
    """For a guest of another gateway, the owner that its session must have; None for any."""
    since: int | None = None
    """For such a guest, the time of its invitation, in milliseconds since 1970, if that is known."""
    expires: float | None = None
    """When the certificate that was shown expires, in seconds since 1970."""

    certificate_id: CertificateId | None = None
    """The id by which a revocation list names the certificate."""
    may_speak_for: tuple[str, ...] = ()
    """The identities that another gateway may act for with this credential; `EVERYONE` for all."""
    nodes: tuple[str, ...] = ()
    """The names of the nodes to which it may open tunnels, with the role `tunnel`."""
    files: bool = False
    """True if a guest may use the files of its session; see `may_use_files`."""
    ports: bool = False
    """True if a guest or an observer may use the ports of agents; see `may_use_ports`."""
    claim: OnBehalf | None = None
    """The claim of another gateway that acts for the identity, with its own credential; None if none does."""
    only: str | None = None
    """The only session of its identity that a browser may join; None for all."""
    browser: Browser | None = None
    """The browser whose cookie was shown."""
    by_port: bool = False
    """True for a program of the gateway's own user that came to a port, by `local_user`. It uses sessions; it signs no
    browser in, invites no guest and does not operate the gateway, because pages and tunnels reach ports too."""

    @classmethod
    def of(cls, token: Token) -> Self:
        """The access that a token gives."""
        return cls(
            token.identity,
            token,
            role=token.role,
            agents=token.agents,
            workspaces=token.workspaces,
            session=token.session,
            may_speak_for=token.may_speak_for,
            nodes=token.nodes,
            files=token.files,
            ports=token.ports,
        )

    @classmethod
    def of_certificate(cls, name: str, section: CertificateSection, own_identity: str) -> Self:
        """The access that a client certificate gives, by its section of the configuration."""
        identity = section.identity or own_identity
        return cls(identity, None, name, role=section.role, agents=section.agents, workspaces=section.workspaces)

    @classmethod
    def of_browser(cls, browser: Browser, token: Token | None) -> Self:
        """The access of a browser: that of its token, or of the gateway's own user, narrowed by its own limits."""
        access = cls(browser.identity, None) if token is None else cls.of(token)
        # Every other role of a token allows less than a browser's.
        role: AccessRole = browser.role if access.role == "controller" else access.role
        # The session of a guest's token is of any owner: it can't be narrowed further.
        only = browser.session if access.session is None else None
        return replace(access, role=role, only=only, browser=browser, may_speak_for=())

    def may_act_for(self, identity: str) -> bool:
        """Return whether another gateway may act for this identity with the credential."""
        return EVERYONE in self.may_speak_for or identity in self.may_speak_for

    def acting_for(self, claim: OnBehalf, own_agents: Collection[str] = ()) -> Self:
        """Return the access of an identity that another gateway acts for: what the credential and the claim both allow.

        A claim for all agents is one for `own_agents`. Raises `Forbidden` if the credential does not allow this
        identity, or claims at all.
        """
        if self.session is not None or self.browser is not None:
            raise Forbidden("this credential is a guest's or a browser's: no gateway speaks for others with it")
        role: AccessRole = claim.role if self.role == "controller" else self.role
        agents = claim.agents or tuple(own_agents)
        if self.agents is not None:
            agents = tuple(agent for agent in agents if agent in self.agents)
        return replace(
            self,
            # No session is a guest's own.
            identity=self._name_for(claim.identity, "below" if claim.guest else claim.otherwise),
            role=role,
            agents=agents,
            session=claim.session if claim.guest else None,
            only=None if claim.guest else claim.session,
            granted_by=None if claim.owner is None else self._name_for(claim.owner, claim.otherwise),
            since=claim.since,
            may_speak_for=(),
            files=claim.files and self.may_use_files,
            ports=claim.ports and self.may_use_ports,
            claim=claim,
        )

    def may_act_as(self, identity: str) -> bool:
        """Return whether another gateway may act for this identity of this gateway, under whichever name there."""
        if self.token is None:
            return False
        is_own = identity == self.token.identity or identity.startswith(f"{self.token.identity}{BELOW}")
        return is_own or not {identity, EVERYONE}.isdisjoint(self.token.may_speak_for)

    def _name_for(self, identity: str, otherwise: Otherwise) -> str:
        """Return the identity here for one of another gateway that acts with this credential. Raises `Forbidden`."""
        if self.may_act_for(identity):
            return identity
        if otherwise == "refused":
            raise Forbidden("this credential may not speak for that identity: see `token create --may-speak-for`")
        return self.identity if otherwise == "own" else f"{self.identity}{BELOW}{identity}"

    @property
    def spoken_for(self) -> bool:
        """True if another gateway acts for the identity."""
        return self.claim is not None

    @property
    def credential(self) -> str:
        """Name of the credential for the log and the audit; equal for connections with equal credentials."""
        if self.browser is not None:
            return f"browser {self.browser.id}"
        if self.token is not None:
            return f"token {self.token.id} for {self.identity}" if self.spoken_for else f"token {self.token.id}"
        return "the system" if self.certificate is None else f"certificate {self.certificate}"

    @property
    def principal(self) -> Hashable:
        """The key of a principal, by which its links and pages are found again.

        Another gateway shows one credential for all tokens of a person, so the rights that it claims are part of it.
        """
        claim = self.claim
        claimed = None if claim is None else (claim.role, claim.agents, claim.session, claim.files, claim.ports)
        return self.identity, self.credential, claimed

    @property
    def account(self) -> str:
        """The identity for whose limits it counts: of a person below a credential, that of it.

        Such names cost nothing, and no credential takes the room of more than one identity by them.
        """
        if self.claim is None or self.claim.otherwise == "own":
            return self.identity
        return self.identity.removesuffix(f"{BELOW}{self.claim.identity}")

    @property
    def is_own_user(self) -> bool:
        """True for the gateway's own user, whom the kernel identifies at a unix socket."""
        has_credential = self.token is not None or self.certificate is not None or self.browser is not None
        return not (has_credential or self.spoken_for or self.by_port)

    def may_tunnel(self, node: str) -> bool:
        """Check whether a tunnel to this node is allowed: by the role, or as all is to a controller without limits."""
        if self.role == "tunnel":
            return node in self.nodes
        limits = self.agents, self.workspaces, self.session, self.only, self.browser
        return self.role == "controller" and limits == (None,) * 5

    @property
    def may_use_files(self) -> bool:
        """True if it may use the files of the sessions that it sees."""
        return self.files or self.session is None

    @property
    def may_use_ports(self) -> bool:
        """True if it may use the ports of the agents whose sessions it sees."""
        return self.ports or (self.role == "controller" and self.session is None)

    def may_use(self, agent: str) -> bool:
        """Check whether this agent is allowed."""
        return self.agents is None or agent in self.agents


class LinkRequest(Protocol):
    """A request for a link that can be resumed: a new one, or an existing one."""

    @property
    def connection_id(self) -> str | None:
        """None for a new link."""

    @property
    def received(self) -> int:
        """Number of messages that the client has received over it so far."""

    @property
    def part_sum(self) -> PartSum:
        """Part of the next message that the client has received."""


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """The parameters with which a connection is opened."""

    agent: str | None = None
    """None for the default one."""
    session: str | None = None
    """The session that it wants to join; None to begin with one of its own."""
    observe: bool = False
    """To look only, though it may do more."""
    control: bool = False
    """To ask the gateway itself, and no agent."""
    passed: tuple[str, ...] = ()
    """Ids of the gateways that the connection comes through; empty if it is a client's own."""
    request_id: str = ""
    """The id of the connection in the audit of the gateway that it comes through; empty if that names none."""
    via: str = EDITOR
    """Kind of program that connects, as other clients are shown it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A connection that was let in: who it is, and what for."""

    access: Access
    connect_request: ConnectRequest
    agent: str
    """Empty for a control connection."""
    reach: SessionReach
    role: Role
    replaces: bool = False
    """True if it takes the place of a connection that is counted already."""
    evicts: bool = True
    """False if it is not needed yet, and takes free room alone."""


def unknown_session(session_id: str | None) -> UnknownSession:
    """Return the error for an unknown session, with the same text for one that the token may not join."""
    return UnknownSession(f"no session {quoted(session_id or '')} is open here, or it is not yours")


def quoted(name: str) -> str:
    """Return a name that a client has made up, for the log as well; some put their token in the wrong place."""
    return repr(redact_text(name[:1024], 64))
