"""Authorization of connections: which agent, which session, and which role they get."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from acp_gateway.config.editing.toml_file import suggestion
from acp_gateway.config.load import Config
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role, Session, SessionReach
from acp_gateway.errors import AccessError, Forbidden, UnknownAgent, UnknownSession
from acp_gateway.gateway.access import Access, ConnectRequest, Grant, quoted, unknown_session
from acp_gateway.gateway.extensions import Extensions
from acp_gateway.gateway.storage.store import Storage
from acp_gateway.protocol.on_behalf import OnBehalf
from acp_gateway.security.token_store import EVERYONE, PURPOSES, Token

if TYPE_CHECKING:
    from acp_gateway.gateway.node_directory import NodeDirectory

_AGENTS_TOLD: Final = 20
"""Maximum number of allowed agents that an error names: as many as fit a line."""

MAX_HOPS: Final = 1
"""Maximum number of gateways that a connection has come through. The agents of nodes are for clients only, so gateways
that lead to each other in a circle never ask each other for more than their own."""

LEADS_BACK: Final = "leads back here"
"""Words by which an error says that a gateway is its own node."""


class Authorizer:
    """Judges what connections ask for.

    Args:
        config: which agents there are.
        registry: which sessions there are, and whose.
        storage: remembers which session a guest's token has led to.
        extensions: the nodes, where there are any.
        own_id: the id of this gateway in the paths of connections.
        has_token: returns whether an identity has a token of its own.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        storage: Storage,
        extensions: Extensions,
        own_id: str = "",
        has_token: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.config = config
        """The configuration in force."""
        self.own_id = own_id
        self._extensions = extensions
        self._registry = registry
        self._storage = storage
        self._has_token = has_token

    @property
    def _directory(self) -> "NodeDirectory | None":
        return self._extensions.directory

    def act_for(self, access: Access, claim: OnBehalf) -> Access:
        """Return the access of an identity that another gateway acts for with a credential.

        Raises `Forbidden` if the credential does not allow this identity, and for one below its own that has a
        credential itself: it is another person.
        """
        acting = access.acting_for(claim, self.config.agents)
        for name in filter(None, (acting.identity, acting.granted_by)):
            if self._is_another(name, access.identity, access.may_speak_for):
                raise Forbidden("this identity has a token or a certificate here: see `token create --may-speak-for`")
        return acting

    def _is_another(self, name: str, own: str, may_speak_for: Sequence[str]) -> bool:
        """Return whether a name, if it is below a credential's own, is a person with a credential here."""
        if name == own or not {name, EVERYONE}.isdisjoint(may_speak_for):
            return False
        certificates = self.config.certificates.values()
        return self._has_token(name) or any(section.identity == name for section in certificates)

    def authorize(self, access: Access, connect_request: ConnectRequest) -> Grant:
        """Return the grant for a connect request; a session to which the token is bound takes precedence.

        Raises `UnknownAgent` and `UnknownSession` if none of that name exists for this token, and `Forbidden` if the
        token does not allow the agent.
        """
        token, bound = access.token, access.session or access.only
        if access.role in PURPOSES:
            raise Forbidden(f"this token is for {PURPOSES[access.role]} and nothing else")
        check_path(connect_request.passed, self.own_id)
        if self._directory is not None and connect_request.session is not None:
            connect_request = replace(connect_request, session=self._name_here(connect_request.session))
        if token is not None:
            self._storage.token_used(token.id)
        if bound is not None and connect_request.session not in (None, bound):
            raise unknown_session(connect_request.session)
        reach = SessionReach(
            access.identity,
            connect_request.session if bound is None else bound,
            access.session is not None,
            self._inviter(access) if access.spoken_for else None if token is None else self._granted_by(token),
            access.workspaces,
            since=access.since if token is None or access.spoken_for else _end_of_second(token.created),
            below=None if access.account == access.identity else access.account,
        )
        if self._directory is not None and reach.only is not None and not self._registry.by_id(reach.only):
            self._directory.check_read(reach.only)
        observes = connect_request.observe or access.role == "observer"
        role = Role.OBSERVER if observes else Role.CONTROLLER
        if connect_request.control:
            if connect_request.agent is not None and bound is None:
                # A list without any sessions would sound as if the agent had none.
                self._choose_agent(access, connect_request.agent)
            agent = ""
        elif reach.only is None:
            agent = self._choose_agent(access, connect_request.agent)
        else:
            agent = self._agent_of_session(access, connect_request, reach)
            reach = self._bind(access, reach, agent)
            if role is Role.OBSERVER and self.config.is_private(agent):
                session = self.find_session(access, reach, agent)
                if session is None or not session.live:
                    # Its own process would be another one than the session's, and would never open this session.
                    raise unknown_session(reach.only)
        if agent:
            self.check_here(agent, connect_request.passed)
        return Grant(access, connect_request, agent, reach, role)

    def check_here(self, agent: str, passed: Sequence[str] = ()) -> None:
        """Raise `UnknownAgent` for an agent of a node, to which this gateway only passes on.

        `passed` are the gateways through which the connection has come.
        """
        if agent in self.config.agents:
            return
        if passed:
            raise UnknownAgent(f"{agent} is an agent of a node, and another gateway can't use those through this one")
        node = agent.partition("/")[0]
        raise UnknownAgent(f"{agent} is an agent of the node {node}, whose requests are for /nodes/{node}/… here")

    def _name_here(self, name: str) -> str:
        """Return the name of a session as it is here: without the name of this node."""
        node, _, real_id = name.partition("/")
        return real_id if real_id and node == self._extensions.own_node and self._registry.by_id(real_id) else name

    def invitation(self, access: Access) -> tuple[str | None, int]:
        """Return the owner of a guest's session, if it is known, and the time of its invitation."""
        assert access.token is not None, "guests have tokens"
        return self._granted_by(access.token), _end_of_second(access.token.created)

    def _inviter(self, access: Access) -> str | None:
        """Return the owner of the session of another gateway's guest; None for a client that is not a guest.

        Where that gateway does not know it, it is one that it may act for. Raises `UnknownSession` without any.
        """
        if access.session is None or access.granted_by is not None:
            return access.granted_by
        guest = SessionReach(access.identity, access.session, guest=True, since=access.since)
        owners = {session.owner for session in (*self._registry.past(guest), *self._registry.live(guest))}
        token = access.token
        found = [
            owner
            for owner in owners
            if token is not None
            and access.may_act_as(owner)
            and not self._is_another(owner, token.identity, token.may_speak_for)
        ]
        if len(found) != 1:
            raise unknown_session(access.session)
        return found[0]

    def _granted_by(self, token: Token) -> str | None:
        """Return the owner of the session that a guest's token first led to: agents may use a session id again."""
        use = self._storage.token_uses().get(token.id)
        return None if use is None else use.granted_by

    def _bind(self, access: Access, reach: SessionReach, agent: str) -> SessionReach:
        """A guest's token is for the session that it leads to first, and for no later one of the same id."""
        if access.token is None or not reach.guest or reach.granted_by is not None:
            return reach
        session = self.find_session(access, reach, agent)
        if session is None:
            return reach
        self._storage.token_used(access.token.id, session.owner)
        return replace(reach, granted_by=session.owner)

    def _choose_agent(self, access: Access, name: str | None) -> str:
        """The agent that a connection asks for, or the default one.

        Raises `UnknownAgent` if none has that name, `Forbidden` if the token does not allow it, and `Busy` if it may be
        one of a node that is not known yet.
        """
        if name is None:
            name = self.config.default_agent
            if access.agents is not None and len(access.agents) == 1:
                name = access.agents[0]
        if name not in self.config.agents and not self.config.leads_to(name):
            if self._directory is not None:
                self._directory.check_read(name)
            allowed = [agent for agent in self.names if access.may_use(agent)][:_AGENTS_TOLD]
            hint = suggestion(name[:64], allowed) or (f"; there are: {', '.join(allowed)}" if allowed else "")
            raise UnknownAgent(f"this gateway has no {f'agent {quoted(name)}' if name else 'default agent'}{hint}")
        if not access.may_use(name):
            raise Forbidden(f"this token does not allow the agent {name}")
        if self._directory is not None and name not in self.config.agents:
            if access.workspaces is not None:
                raise Forbidden("this token is for workspaces of this machine, and the agent runs on another one")
            self._directory.check_agent(name)
        return name

    @property
    def names(self) -> list[str]:
        """The names of all agents, with those of the nodes as far as they are known."""
        return [*self.config.agents, *([] if self._directory is None else self._directory.agents)]

    def _agent_of_session(self, access: Access, connect_request: ConnectRequest, reach: SessionReach) -> str:
        """The agent whose session is to be joined: a live one, or one that the agent can open again.

        An agent that is unknown, or not allowed, must not reveal whether a session exists: the session is looked for
        before, and where the connection names none, such an agent's sessions do not exist for it.
        """
        agent = (
            None if connect_request.agent is None or reach.guest else self._choose_agent(access, connect_request.agent)
        )
        session = self.find_session(access, reach, agent)
        if session is None and agent is None and not reach.guest:
            self._check_one(access, reach)
        if session is not None:
            return session.agent
        try:
            agent = self._choose_agent(access, agent)
        except AccessError:
            raise unknown_session(reach.only) from None
        # What was never registered may be on the disk of the gateway's own user.
        may_exist = agent in self.config.agents and self._registry.may_exist(reach, agent, reach.only or "")
        if reach.only is None or not may_exist:
            raise unknown_session(reach.only)
        return agent

    def _check_one(self, access: Access, reach: SessionReach) -> None:
        """Raise `UnknownSession` if several agents have the session, which names them."""
        agents = sorted({session.agent for session in self._seen(access, reach, None)})[:_AGENTS_TOLD]
        if len(agents) > 1:
            raise UnknownSession(
                f"{' and '.join(agents)} have a session {quoted(reach.only or '')}: name the agent too"
            )

    def find_session(self, access: Access, reach: SessionReach, agent: str | None) -> Session | None:
        """The session that a connection came for, if it is just one; a guest's has to be live.

        Ids are one agent's at the most: where several have one of the same, the connection has to name the agent.
        """
        seen = self._seen(access, reach, agent)
        live = [session for session in seen if session.live]
        found = live if live or reach.guest else seen
        return found[0] if len(found) == 1 else None

    def _seen(self, access: Access, reach: SessionReach, agent: str | None) -> list[Session]:
        """Return the sessions in reach of an agent, or of all, that the connection could join."""
        return [
            session
            for session in [*self._registry.past(reach), *self._registry.live(reach)]
            if access.may_use(session.agent)
            and agent in (None, session.agent)
            and (session.live or session.agent in self.config.agents)
        ]


def check_path(passed: Sequence[str], own_id: str) -> None:
    """Check the gateways that a connection has come through, by their ids.

    Raises `Forbidden` for a connection that has come through this gateway before, or through too many.
    """
    if own_id in passed:
        raise Forbidden(f"this connection comes through this gateway a second time: [nodes.NAME] {LEADS_BACK}")
    if len(passed) > MAX_HOPS:
        raise Forbidden(f"this connection has come through {len(passed)} gateways, and {MAX_HOPS} is the most")


def _end_of_second(timestamp: str) -> int:
    """Return the end of the second that a token names as that of its creation, in milliseconds since 1970."""
    return int(datetime.fromisoformat(timestamp).timestamp()) * 1000 + 999
