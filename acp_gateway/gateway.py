"""Which agent for whom: what a connection may use, the hub that it gets, and all hubs together."""

import logging
import secrets
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import trio

from acp_gateway import __version__
from acp_gateway.access import Access, Admission, Wish
from acp_gateway.advice import check_directory, login_hint
from acp_gateway.agent import Agent, Launch, Spawner, run_agent
from acp_gateway.archive import StoredArchive
from acp_gateway.auth import Token, TokenStore, default_identity
from acp_gateway.config import AgentSection, Config, agent_environment
from acp_gateway.desk import Office, serve_desk
from acp_gateway.errors import AccessError, AgentError, ConfigError, Forbidden, LinkGone, UnknownAgent, UnknownSession
from acp_gateway.hooks import Hooks
from acp_gateway.hub import Hub, Limits
from acp_gateway.links import Links, Resumable, Resumption, claim, serve_resumed
from acp_gateway.memory import Memory
from acp_gateway.protocol.deliveries import Event
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.multiplexer import Multiplexer
from acp_gateway.protocol.process import Policy
from acp_gateway.protocol.sessions import Client, Home, Registry, Role, Session, Viewer
from acp_gateway.seats import BUG, STOPPING, Farewell
from acp_gateway.storage import Storage
from acp_gateway.transports.base import CloseReason, MessageStream
from acp_gateway.transports.link import HEARTBEAT

log = logging.getLogger(__name__)

DATABASE = "sessions.db"
"""In `state_dir`: what outlives this process."""

READING_PATIENCE = 10.0
"""Seconds that a history from the disk is waited for; whoever wants it goes on without it then."""

RETENTION_INTERVAL = 6 * 3600.0
"""Seconds between two looks for sessions that are too old: days are what is counted."""

REVOCATION_INTERVAL = 1.0
"""Seconds between two looks at the token file for the sake of connections that are open; new ones look themselves."""

_REVOKED = Farewell(CloseReason.POLICY, "the token is not valid any more", "unauthorized")
_CHANGED = Farewell(CloseReason.POLICY, "the token allows something else now", "changed")
_SESSION_GONE = "the session is not open any more"


def _unknown_session(session_id: str | None) -> UnknownSession:
    """Whether there is no such session, or none for this token: the text is the same."""
    return UnknownSession(f"no session {(session_id or '')[:64]!r} is open here, or it is not yours")


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection whose token has to stay valid."""

    access: Access
    close: Callable[[Farewell], None]


class Gateway:
    """The agents of one configuration and the connections that use them."""

    def __init__(self, config: Config, tokens: TokenStore, spawner: Spawner, environment: Mapping[str, str]) -> None:
        settings = config.gateway
        self.config = config
        self.tokens = tokens
        self.storage = Storage(
            settings.state_dir / DATABASE,
            journal=settings.journal == "disk",
            retention_days=settings.retention_days,
            journal_limit=settings.journal_limit,
        )
        self._archive = StoredArchive(self.storage)
        self.registry = Registry(default_identity(settings.state_dir), self._archive, secrets.token_hex(8))
        self._spawner = spawner
        # The gateway's own environment, of which agents get a part.
        self._environment = environment
        self._hubs: dict[Home, Hub] = {}
        # The hubs that several connections share, by agent and, where each identity has its own, by identity.
        self._shared: dict[tuple[str, str | None], Hub] = {}
        self._connections: set[_Connection] = set()
        self._memory = Memory(config.gateway.memory_limit)
        self._links = Links()
        self._hooks = Hooks(config.hooks, environment)
        # Where the hubs run.
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the hubs, and end connections whose token is not valid any more, until cancelled.

        Sessions of earlier processes are known from the start. Cancelled, it stops all agents politely, and then writes
        what is to be kept.
        """
        for session in self._archive.restore(self.config.gateway.journal_limit):
            self.registry.restore(session)
        # Hubs have something to write until the last of them has ended.
        writing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as writers:
            await writers.start(self._write, writing)
            try:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._enforce_revocations)
                    self._nursery.start_soon(self._forget_expired)
                    self._nursery.start_soon(self._hooks.run)
                    task_status.started()
            finally:
                writing.cancel()

    async def _write(self, until: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with until:
            await self.storage.run(task_status=task_status)

    @property
    def agent_ancestors(self) -> Container[int]:
        """The processes and process sessions that only agents descend from, for telling an agent from its user."""
        return self._spawner.ancestors

    @property
    def hubs(self) -> list[Hub]:
        """Those that there are at this moment."""
        return list(self._hubs.values())

    # Who may come in

    def admit(self, access: Access, wish: Wish) -> Admission:
        """Let a connection in for what it asks; what its token is bound to goes before that.

        Raises `UnknownAgent` and `UnknownSession` where there is none of that name, or none for this token, and
        `Forbidden` where the token does not allow the agent.
        """
        token = access.token
        if token is not None:
            self.storage.token_used(token.id)
        bound = None if token is None else token.session
        if bound is not None and wish.session not in (None, bound):
            raise _unknown_session(wish.session)
        viewer = Viewer(
            access.identity,
            wish.session if bound is None else bound,
            bound is not None,
            None if token is None else self._granted_by(token),
        )
        observes = wish.observe or (token is not None and token.role == "observer")
        role = Role.OBSERVER if observes else Role.CONTROLLER
        if wish.control:
            agent = ""
        elif viewer.only is None:
            agent = self.choose_agent(access, wish.agent)
        else:
            agent = self._agent_of_session(access, wish, viewer)
            viewer = self._bind(access, viewer, agent)
        return Admission(access, wish, agent, viewer, role)

    def _granted_by(self, token: Token) -> str | None:
        """Whose session a guest's token has led to: agents that count give an id to the next one as well."""
        use = self.storage.token_uses().get(token.id)
        return None if use is None else use.granted_by

    def _bind(self, access: Access, viewer: Viewer, agent: str) -> Viewer:
        """A guest's token is for the session that it leads to first, and for no later one of the same id."""
        if access.token is None or not viewer.guest or viewer.granted_by is not None:
            return viewer
        session = self._find_session(access, viewer, agent)
        if session is None:
            return viewer
        self.storage.token_used(access.token.id, session.owner)
        return replace(viewer, granted_by=session.owner)

    def choose_agent(self, access: Access, name: str | None) -> str:
        """The agent that a connection asks for, or the default one.

        Raises `UnknownAgent` where there is none of that name and `Forbidden` where the token does not allow it.
        """
        if name is None:
            name = self.config.default_agent
            if access.token is not None and access.token.agents is not None and len(access.token.agents) == 1:
                name = access.token.agents[0]
        if name not in self.config.agents:
            raise UnknownAgent(f"this gateway has no agent {name[:64]!r}; `acp-gateway check-config` there lists them")
        if not access.may_use(name):
            raise Forbidden(f"this token does not allow the agent {name}")
        return name

    def _agent_of_session(self, access: Access, wish: Wish, viewer: Viewer) -> str:
        """The agent whose session is to be joined: a live one, or one that the agent can open again.

        Which session that is, nobody learns from an agent that is not there, or not for this token: it is looked for
        before, and where the connection names none, such an agent's sessions do not exist for it.
        """
        agent = None if wish.agent is None or viewer.guest else self.choose_agent(access, wish.agent)
        session = self._find_session(access, viewer, agent)
        if session is not None:
            return session.agent
        try:
            agent = self.choose_agent(access, agent)
        except AccessError:
            raise _unknown_session(viewer.only) from None
        # What was never registered may be on the disk of the gateway's own user.
        if viewer.only is None or not self.registry.may_exist(viewer, agent, viewer.only):
            raise _unknown_session(viewer.only)
        return agent

    def _find_session(self, access: Access, viewer: Viewer, agent: str | None) -> Session | None:
        """The session that a connection came for, if it is just one; a guest's has to be live.

        Ids are one agent's at the most: where several have one of the same, the connection has to name the agent.
        """
        seen = [
            session
            for session in self.registry
            if viewer.sees(session) and access.may_use(session.agent) and agent in (None, session.agent)
        ]
        live = [session for session in seen if session.live]
        found = live if live or viewer.guest else seen
        return found[0] if len(found) == 1 else None

    # Serving

    async def serve(self, stream: MessageStream, admission: Admission, name: str, link_id: str | None = None) -> None:
        """Serve a connection that was admitted until it is gone; the stream is closed then.

        With `link_id` it may be lost and come back under that id, by `resume`.

        Cancelled, it says goodbye and closes the stream.
        """
        if admission.wish.control:
            await self._serve_control(stream, admission)
            return
        hub = self._find_hub(admission)
        if hub is None:
            await stream.aclose(CloseReason.POLICY, _SESSION_GONE)
            return
        client = Client(name, admission.viewer, admission.role, link=link_id)

        def close(farewell: Farewell) -> None:
            # One that is being told goodbye has given up its seat and may take its time.
            if client in hub.seats:
                hub.seats[client].close(farewell)

        log.info(
            "%s: attached to agent %s as %s%s",
            name,
            admission.agent,
            admission.access.identity,
            "" if client.controls else ", to observe",
        )
        try:
            with self._watched(admission.access, close), self._resumable(admission, hub, client) as ended:
                ended.append(await hub.serve(stream, client))
        finally:
            log.info("%s: detached", name)

    @contextmanager
    def _resumable(self, admission: Admission, hub: Hub, client: Client) -> Iterator[list[Farewell]]:
        """Have a client's link found while it is in this block; how it ended is to be put into the list."""
        ended: list[Farewell] = []
        if client.link is None:
            yield ended
            return
        link = Resumable(client.link, admission, hub, client)
        self._links.add(link)
        try:
            yield ended
        finally:
            self._links.end(link, ended[0] if ended else None)

    def resume(self, access: Access, link_id: str, received: int) -> Resumption:
        """Let a client take its link up again that has received so many messages; evicts who has it now.

        What it may do is what its token allows now: where that is something else, the link is over. Raises what `admit`
        raises, `TooFarBehind`, `LinkExpired` and `LinkGone`.
        """
        link = self._links.find(link_id, access)
        before, now = link.admission, self.admit(access, link.admission.wish)
        if (before.agent, before.role, before.viewer) != (now.agent, now.role, now.viewer):
            seat = link.seat
            if seat is not None:
                seat.close(_CHANGED)
            raise LinkGone("the token allows something else now; begin a new link")
        return claim(link, received)

    async def serve_resumed(self, stream: MessageStream, resumption: Resumption, name: str) -> None:
        """Serve a link over this connection until that is lost or the client has gone; the stream is closed then."""
        log.info("%s: resumes the link of %s", name, resumption.link.client.name)
        await serve_resumed(stream, resumption)

    async def _serve_control(self, stream: MessageStream, admission: Admission) -> None:
        """Serve a connection that asks the gateway itself, about what its token may join."""
        access = admission.access
        farewell = STOPPING
        scope = trio.CancelScope()

        def close(why: Farewell) -> None:
            nonlocal farewell
            farewell = why
            scope.cancel()

        wanted = admission.wish.agent
        agents = {name for name in self.config.agents if access.may_use(name) and wanted in (None, name)}
        office = Office(self.registry, agents, lambda: self.hubs, lambda: self.storage.problem)
        try:
            with scope, self._watched(access, close):
                farewell = await serve_desk(stream, admission.viewer, office)
        except Exception:
            farewell = BUG
            raise
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose(farewell.reason, farewell.text)

    def _find_hub(self, admission: Admission) -> Hub | None:
        """The hub for a connection, a new one if need be; None where the session that it came for has gone."""
        viewer, agent = admission.viewer, admission.agent
        if viewer.only is not None:
            session = self._find_session(admission.access, viewer, agent)
            hub = None if session is None or session.home is None else self._hubs.get(session.home)
            if hub is not None and not hub.over:
                return hub
            if viewer.guest:
                return None
        section = self.config.agents[agent]
        if section.scope == "connection":
            return self._start_hub(agent, section)
        key = agent, viewer.identity if section.scope == "identity" else None
        shared = self._shared.get(key)
        if shared is None or shared.over:
            shared = self._shared[key] = self._start_hub(agent, section)
        return shared

    def _start_hub(self, agent: str, section: AgentSection) -> Hub:
        settings = self.config.gateway
        multiplexer = Multiplexer(agent, self._policy(section), self.registry)
        limits = Limits(
            write_high_water=settings.write_high_water,
            outbox_limit=settings.outbox_limit,
            stall_timeout=settings.stall_timeout,
            idle_stop=section.idle_stop,
            max_restarts=section.max_restarts,
            permission_timeout=section.permission_timeout,
            window=settings.resume_window,
            # A client that has nothing to say is heard every so often, and no more.
            patience=max(settings.ping_interval + settings.ping_timeout, 2 * HEARTBEAT),
            away_limit=settings.away_limit,
            away_grace=settings.away_grace,
            away_grace_idle=settings.away_grace_idle,
        )
        hub = Hub(
            agent,
            shared=section.scope != "connection",
            run_agent=partial(self._run_agent, agent, section),
            multiplexer=multiplexer,
            limits=limits,
            stop_home=self._stop_home,
            grown=lambda size: self._memory.grown(size, self.hubs),
            notify=self._notify,
            recall=self._recall,
        )
        self._hubs[multiplexer.home] = hub
        assert self._nursery is not None, "the gateway is not running"
        self._nursery.start_soon(self._run_hub, hub)
        return hub

    async def _run_hub(self, hub: Hub) -> None:
        try:
            await hub.run()
        except* Exception:
            # A bug ends the hub it shows in and no other.
            log.exception("agent %s: stopped by an error of the gateway's own", hub.name)
        finally:
            self._forget(hub)

    def _forget(self, hub: Hub) -> None:
        """A hub has ended: its sessions can be opened elsewhere, and another hub may wait for that."""
        del self._hubs[hub.multiplexer.home]
        for key in [key for key, shared in self._shared.items() if shared is hub]:
            del self._shared[key]
        for other in self.hubs:
            try:
                other.sessions_freed()
            except Exception:
                log.exception("agent %s: stopped by an error of the gateway's own", other.name)
                other.end()

    def _stop_home(self, home: Home) -> None:
        hub = self._hubs.get(home)
        if hub is not None and home.deserted:
            hub.end()

    def _recall(self, hub: Hub, session: Session) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._read_journal, hub, session)

    async def _read_journal(self, hub: Hub, session: Session) -> None:
        journal = None
        with trio.move_on_after(READING_PATIENCE) as patience:
            journal = await self._archive.read(session, self.config.gateway.journal_limit)
        if patience.cancelled_caught:
            log.error("session %.80r of agent %s: its history could not be read in time", session.id, session.agent)
        try:
            hub.recalled(session, journal)
        except Exception:
            log.exception("agent %s: stopped by an error of the gateway's own", hub.name)
            hub.end()

    def _notify(self, event: Event) -> None:
        """Run the hook for something that has happened, if there is one."""
        session = event.session
        about = {"sessionId": session.id, "agent": session.agent, "title": session.title, "identity": session.owner}
        if event.name == "permission_waiting":
            about["since"] = datetime.fromtimestamp(time.time() - event.age, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._hooks.fire(event.name, about | event.details)

    # What a hub needs to know

    def _policy(self, section: AgentSection) -> Policy:
        serves = {Capability.FS: section.client_fs, Capability.TERMINAL: section.client_terminal}
        cwd = None if section.cwd is None else str(section.cwd)
        settings = self.config.gateway
        return Policy(
            shared=section.scope != "connection",
            serves=frozenset(capability for capability, served in serves.items() if served),
            check_directory=lambda directory: check_directory(directory, cwd),
            login_hint=lambda methods: login_hint(section, methods),
            max_open_requests=settings.max_open_requests,
            max_queued_prompts=settings.max_queued_prompts,
            max_waiting_size=settings.outbox_limit,
            journal_limit=settings.journal_limit,
            permission_timeout=section.permission_timeout,
            version=__version__,
        )

    async def _run_agent(self, name: str, section: AgentSection, *, task_status: trio.TaskStatus[Agent]) -> None:
        await run_agent(self._launch(name, section), self._spawner, task_status=task_status)

    def _launch(self, name: str, section: AgentSection) -> Launch:
        try:
            environment = agent_environment(section, self._environment)
        except ConfigError as error:
            raise AgentError(f"the agent {name} cannot be started: {error}") from error
        return Launch(
            name=name,
            command=section.command,
            environment=environment,
            cwd=None if section.cwd is None else str(section.cwd),
            max_message_size=self.config.gateway.max_message_size,
            eof_grace=section.eof_grace,
            term_grace=section.term_grace,
        )

    async def _forget_expired(self) -> None:
        """Forget, from time to time, the sessions that nobody has used for `retention_days`."""
        while True:
            await trio.sleep(RETENTION_INTERVAL)
            for session in self._archive.expired():
                if not session.live:
                    log.info("session %.80r of agent %s is forgotten: nobody has used it", session.id, session.agent)
                    self.registry.remove(session)

    # Tokens

    @contextmanager
    def _watched(self, access: Access, close: Callable[[Farewell], None]) -> Iterator[None]:
        """End what is in this block when its token is not valid any more."""
        connection = _Connection(access, close)
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    async def _enforce_revocations(self) -> None:
        while True:
            await trio.sleep(REVOCATION_INTERVAL)
            for connection in list(self._connections):
                token = connection.access.token
                if token is not None and not self.tokens.is_current(token):
                    log.warning("token %s is not valid any more: closing its connection", token.id)
                    self._connections.discard(connection)
                    connection.close(_REVOKED)
