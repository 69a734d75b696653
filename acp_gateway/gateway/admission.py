"""Authorization of connections: which agent, which session, and which role they get."""

from dataclasses import replace
from typing import Final

from acp_gateway.config.load import Config
from acp_gateway.config.toml_file import suggestion
from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import Role, Session, SessionScope
from acp_gateway.errors import AccessError, Forbidden, UnknownAgent, UnknownSession
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.storage.store import Storage
from acp_gateway.protocol.secret_patterns import redact_text
from acp_gateway.security.token_store import Token

_AGENTS_TOLD: Final = 20
"""Maximum number of allowed agents that an error names: as many as fit a line."""


class Authorizer:
    """Judges what connections ask for.

    Args:
        config: which agents there are.
        registry: which sessions there are, and whose.
        storage: remembers which session a guest's token has led to.
    """

    def __init__(self, config: Config, registry: Registry, storage: Storage) -> None:
        self._config = config
        self._registry = registry
        self._storage = storage

    def authorize(self, access: Access, connect_request: ConnectRequest) -> Grant:
        """Return the grant for a connect request; a session to which the token is bound takes precedence.

        Raises `UnknownAgent` and `UnknownSession` if none of that name exists for this token, and `Forbidden` if the
        token does not allow the agent.
        """
        token, bound = access.token, access.session or access.only
        if access.role == "metrics":
            raise Forbidden("this token is for reading metrics and nothing else")
        if token is not None:
            self._storage.token_used(token.id)
        if bound is not None and connect_request.session not in (None, bound):
            raise unknown_session(connect_request.session)
        scope = SessionScope(
            access.identity,
            connect_request.session if bound is None else bound,
            access.session is not None,
            None if token is None else self._granted_by(token),
            access.workspaces,
        )
        observes = connect_request.observe or access.role == "observer"
        role = Role.OBSERVER if observes else Role.CONTROLLER
        if connect_request.control:
            if connect_request.agent is not None and bound is None:
                # A list without any sessions would sound as if the agent had none.
                self._choose_agent(access, connect_request.agent)
            agent = ""
        elif scope.only is None:
            agent = self._choose_agent(access, connect_request.agent)
        else:
            agent = self._agent_of_session(access, connect_request, scope)
            scope = self._bind(access, scope, agent)
            if role is Role.OBSERVER and self._config.agents[agent].scope == "connection":
                session = self.find_session(access, scope, agent)
                if session is None or not session.live:
                    # Its own process would be another one than the session's, and would never open this session.
                    raise unknown_session(scope.only)
        return Grant(access, connect_request, agent, scope, role)

    def _granted_by(self, token: Token) -> str | None:
        """Return the owner of the session that a guest's token first led to: agents may use a session id again."""
        use = self._storage.token_uses().get(token.id)
        return None if use is None else use.granted_by

    def _bind(self, access: Access, scope: SessionScope, agent: str) -> SessionScope:
        """A guest's token is for the session that it leads to first, and for no later one of the same id."""
        if access.token is None or not scope.guest or scope.granted_by is not None:
            return scope
        session = self.find_session(access, scope, agent)
        if session is None:
            return scope
        self._storage.token_used(access.token.id, session.owner)
        return replace(scope, granted_by=session.owner)

    def _choose_agent(self, access: Access, name: str | None) -> str:
        """The agent that a connection asks for, or the default one.

        Raises `UnknownAgent` if none has that name, and `Forbidden` if the token does not allow it.
        """
        if name is None:
            name = self._config.default_agent
            if access.agents is not None and len(access.agents) == 1:
                name = access.agents[0]
        if name not in self._config.agents:
            allowed = [agent for agent in self._config.agents if access.may_use(agent)][:_AGENTS_TOLD]
            hint = suggestion(name[:64], allowed) or (f"; there are: {', '.join(allowed)}" if allowed else "")
            raise UnknownAgent(f"this gateway has no agent {_quoted(name)}{hint}")
        if not access.may_use(name):
            raise Forbidden(f"this token does not allow the agent {name}")
        return name

    def _agent_of_session(self, access: Access, connect_request: ConnectRequest, scope: SessionScope) -> str:
        """The agent whose session is to be joined: a live one, or one that the agent can open again.

        An agent that is unknown, or not allowed, must not reveal whether a session exists: the session is looked for
        before, and where the connection names none, such an agent's sessions do not exist for it.
        """
        agent = (
            None if connect_request.agent is None or scope.guest else self._choose_agent(access, connect_request.agent)
        )
        session = self.find_session(access, scope, agent)
        if session is not None:
            return session.agent
        try:
            agent = self._choose_agent(access, agent)
        except AccessError:
            raise unknown_session(scope.only) from None
        # What was never registered may be on the disk of the gateway's own user.
        if scope.only is None or not self._registry.may_exist(scope, agent, scope.only):
            raise unknown_session(scope.only)
        return agent

    def find_session(self, access: Access, scope: SessionScope, agent: str | None) -> Session | None:
        """The session that a connection came for, if it is just one; a guest's has to be live.

        Ids are one agent's at the most: where several have one of the same, the connection has to name the agent.
        """
        seen = [
            session
            for session in [*self._registry.past(scope), *self._registry.live(scope)]
            if access.may_use(session.agent) and agent in (None, session.agent)
        ]
        live = [session for session in seen if session.live]
        found = live if live or scope.guest else seen
        return found[0] if len(found) == 1 else None


def unknown_session(session_id: str | None) -> UnknownSession:
    """Return the error for an unknown session, with the same text for one that the token may not join."""
    return UnknownSession(f"no session {_quoted(session_id or '')} is open here, or it is not yours")


def _quoted(name: str) -> str:
    """A name that a client has made up, for the log as well; some put their token in the wrong place."""
    return repr(redact_text(name[:1024], 64))
