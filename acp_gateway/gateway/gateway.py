"""The gateway: finds or starts the hub for each connection, runs all hubs, and tells whether it is ready."""

import logging
import math
import os
import secrets
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Unpack

import trio

from acp_gateway.config.editing.toml_file import suggestion
from acp_gateway.config.load import AgentSection, Config
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import AgentHandle, Client, Role, Session, SessionReach
from acp_gateway.errors import AccessError, Busy, ConfigError, LinkGone, UnknownAgent, UsageError
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.admission import Authorizer
from acp_gateway.gateway.agent.fencing import has_credential, opens_too_much, usable_workspaces
from acp_gateway.gateway.agent.process import Agent, Spawner
from acp_gateway.gateway.agent.startup import AgentRunner, DialAgent
from acp_gateway.gateway.browsers import browsers_of, end_expired_browsers
from acp_gateway.gateway.connections import Connections
from acp_gateway.gateway.costs.spending import Amounts
from acp_gateway.gateway.costs.todays_spending import TodaysSpending
from acp_gateway.gateway.events.audit import NO_AUDIT, Audit, AuditThrottle
from acp_gateway.gateway.events.hooks import Hooks
from acp_gateway.gateway.events.recording import Recording, Tape
from acp_gateway.gateway.extensions import Extensions
from acp_gateway.gateway.hub.agent_supervisor import RunAgent
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.hub.services import GatewayServices, contained
from acp_gateway.gateway.kept.prompts import hold_kept, keeping, remove_kept
from acp_gateway.gateway.made.disk_changes import DiskChanges
from acp_gateway.gateway.made.git_jobs import GitJobs
from acp_gateway.gateway.made.machine_looks import MachineLooks, running_agents
from acp_gateway.gateway.made.worktrees import Worktrees
from acp_gateway.gateway.metrics import Metrics
from acp_gateway.gateway.push.service import WebPush
from acp_gateway.gateway.reconfiguration import reconfigure_hubs
from acp_gateway.gateway.resumption import (
    AttachedClient,
    LinkRegistry,
    ResumableLink,
    ResumeClaim,
    claim,
    serve_resumed,
)
from acp_gateway.gateway.search.service import SearchService
from acp_gateway.gateway.sessions.history import HistoryReader
from acp_gateway.gateway.sessions.senders import Senders, sender_of
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.gateway.sessions.session_view import SessionViews
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.storage.store import Storage
from acp_gateway.gateway.workspaces import containing
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.rules.rule import Rule
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.certificates import Revocations
from acp_gateway.security.token_store import Token, TokenStore, default_identity
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.parts import NO_PART, PartSum
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import Args

log = logging.getLogger(__name__)

DATABASE = "sessions.db"
"""Name of the database in `state_dir`, which outlives this process."""

SEARCH = "search.db"
"""Name of the index of the histories in `state_dir`, which can be made again."""

RETENTION_INTERVAL = 6 * 3600.0
"""Seconds between two checks of `retention_days`."""

REVOCATION_INTERVAL = 1.0
"""Seconds between two checks of the credentials of open connections; new ones are checked at once."""

PROMPT_SIZE = 8 * 1024 * 1024
"""Maximum bytes of one message of a guest, or of a browser: a prompt with the largest image that models take, of 5 MB,
or with several screenshots. Its error names `guest_message_size` or `browser_message_size`."""

REQUEST_SIZE: Final = 64 * 1024
"""Maximum bytes of a request of a control connection: it has some hundred. Its error names `control_message_size`."""

Kind = Literal["guest", "browser", "control"]
"""Kinds of connections whose messages are smaller than others."""

_CHANGED = Disconnect(CloseReason.POLICY, "the token allows something else now", "changed")
_SESSION_GONE = "the session is not open any more"


CHECK_INTERVAL: Final = 1.0
"""Seconds for which the result of a check is used again: anyone may ask, and a check looks at the disk."""


class Readiness:
    """Checks listeners, storage, tokens and browsers.

    Args:
        state_dir: folder of tokens and sessions.
        tokens: the tokens in it.
        browsers: the browsers in it.
        storage_problem: returns the failures of the storage, None without any.
        extensions: the cluster, where there is one.
    """

    def __init__(
        self,
        state_dir: Path,
        tokens: TokenStore,
        browsers: BrowserStore,
        storage_problem: Callable[[], str | None],
        extensions: Extensions,
    ) -> None:
        self.stopping = False
        """True once the gateway has been told to stop."""
        self._extensions = extensions
        self._state_dir = state_dir
        self._tokens = tokens
        self._browsers = browsers
        self._storage_problem = storage_problem
        # By URL: whether connections are accepted there.
        self._listeners: dict[str, bool] = {}
        self._problems: list[str] = []
        self._tokens_problem: str | None = None
        self._browsers_problem: str | None = None
        self._checked_at = -math.inf

    def set_listening(self, urls: Iterable[str], *, accepting: bool) -> None:
        """Note that a listener is open at these addresses, and whether it accepts connections."""
        self._listeners |= dict.fromkeys(urls, accepting)
        self.look_again()

    def look_again(self) -> None:
        """Use no earlier result for the next answer."""
        self._checked_at = -math.inf

    @property
    def ready(self) -> bool:
        """True if new clients can be served."""
        return not self.problems

    @property
    def tokens_readable(self) -> bool:
        """True if a token can be told from another text."""
        self._check()
        return self._tokens_problem is None

    @property
    def problems(self) -> list[str]:
        """The reasons why the gateway is not ready, each in one line."""
        if self.stopping:
            return ["the gateway is stopping"]
        self._check()
        return self._problems

    @property
    def warnings(self) -> list[str]:
        """The reasons, each in one line, why a part of the gateway fails that clients with tokens do not need."""
        self._check()
        found = self._browsers_problem, self._extensions.cluster_problem()
        return [problem for problem in found if problem is not None]

    def _check(self) -> None:
        now = trio.current_time()
        if now - self._checked_at < CHECK_INTERVAL:
            return
        self._checked_at = now
        self._tokens_problem = _problem_of(self._tokens.tokens)
        self._browsers_problem = _problem_of(self._browsers.check)
        storage = self._storage_problem()
        if storage is None and not os.access(self._state_dir, os.W_OK | os.X_OK):
            storage = f"{self._state_dir} cannot be written"
        found = [f"{url} accepts no connections" for url, accepting in self._listeners.items() if not accepting]
        self._problems = [*found, *(problem for problem in (storage, self._tokens_problem) if problem is not None)]


def _problem_of(read: Callable[[], object]) -> str | None:
    """Return the error of reading a file of secrets, which names the remedy."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return None


class Gateway:
    """The agents of one configuration and the connections that use them."""

    def __init__(
        self,
        config: Config,
        tokens: TokenStore,
        spawner: Spawner,
        environment: Mapping[str, str],
        audit: Audit = NO_AUDIT,
        recorder: Recording | None = None,
        dial: DialAgent | None = None,
        own_id: str = "",
    ) -> None:
        settings = config.gateway
        self.config = config
        self.tokens = tokens
        self.audit = audit
        self.audit_throttle = AuditThrottle(audit)
        """Writes to the audit what a client may cause often."""
        self.revocations = Revocations()
        """Revoked client certificates."""
        self.browsers = browsers_of(config, tokens)
        """Browsers that are signed in."""
        self.extensions = Extensions()
        """The parts of the program that begin later."""
        self.connections = Connections(
            config.limits,
            tokens,
            revocations=self.revocations,
            browsers=self.browsers,
            extensions=self.extensions,
        )
        """Authenticated connections."""
        self._recorder = recorder
        self.storage = Storage(
            settings.state_dir / DATABASE,
            settings,
            account_of=tokens.account_of,
        )
        self.metrics = Metrics(config.agents)
        """Counts of events."""
        self.readiness = Readiness(
            settings.state_dir, tokens, self.browsers, lambda: self.storage.problem, self.extensions
        )
        self.spending = TodaysSpending(lambda: self.config.limits)
        """Amounts that were spent today."""
        journals = settings.journal_storage == "disk"
        self._archive = StoredArchive(self.storage, journals=journals, spent=self._note_spent)
        self.changes = SessionChanges(self._archive)
        """Changes of sessions, for programs that show them."""
        self.registry = Registry(default_identity(settings.state_dir), self.changes, secrets.token_hex(8))
        self.history = HistoryReader(self._archive, settings.journal_limit)
        """Reads the histories of sessions, live or not."""
        self.search = SearchService(
            settings.state_dir / SEARCH,
            self._archive,
            self.changes,
            settings.journal_limit,
            settings.history_limit,
            enabled=journals,
        )
        """Finds sessions by their texts."""
        self._hooks = Hooks(config.hooks, environment)
        self._spawner = spawner
        self._agents = AgentRunner(lambda: self.config, spawner, environment, dial, self._usable_workspaces)
        self._hubs: dict[AgentHandle, Hub] = {}
        # The hubs that several connections share, by agent and, where each identity has its own, by identity.
        self._shared: dict[tuple[str, str | None], Hub] = {}
        # Of those of names below another gateway's identity, that identity.
        self._below: dict[Hub, str] = {}
        # The running fenced agents whose fences open no more than these tokens allow.
        self._judged: set[Agent] = set()
        self._judged_by: list[Token] = []
        self.views = SessionViews(self.registry, self._hubs)
        """Descriptions of the sessions."""
        self._links = LinkRegistry()
        self.admissions = Authorizer(config, self.registry, self.storage, self.extensions, own_id, tokens.has_identity)
        """Judges what connections ask for."""
        self.senders = Senders(lambda: self.config, tokens, self.browsers, self.revocations, self.admissions)
        """Finds those again whose prompts wait."""
        jobs = GitJobs(lambda: self.config, self._usable_workspaces)
        self.services = GatewayServices(
            config,
            self._hubs,
            start_task=self.start_task,
            connections=self.connections,
            archive=self._archive,
            audit=self.audit_throttle,
            hooks=self._hooks,
            metrics=self.metrics,
            worktrees=Worktrees(lambda: self.config, jobs),
            spending=self.spending,
            objection_to=self.senders.objection_to,
        )
        self.push = WebPush(
            lambda: self.config,
            browsers=self.browsers,
            admissions=self.admissions,
            views=self.views,
            changes=self.changes,
            audit=self.audit_throttle,
            metrics=self.metrics,
            page=lambda: self.services.page,
        )
        """Notifications for browsers whose page is closed."""
        self.machine = MachineLooks(lambda: running_agents(self.hubs), self.roots)
        """Looks at the machine."""
        self.disk_changes = DiskChanges(lambda: self.config, jobs, self.changes)
        """Marks the working trees of sessions, and tells what has changed there."""
        # The nursery of `run`, while that runs.
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the hubs, and end connections whose token is not valid any more, until cancelled.

        Sessions of earlier processes are known from the start. Cancelled, it stops all agents politely, and then writes
        what is to be kept.
        """
        for session in self._archive.restore(self.config.gateway.journal_limit):
            if session.cwd is not None and session.agent in self.config.agents:
                session.workspace = containing(session.cwd, self.services.workspaces(session.agent))
            session.account = self.tokens.account_of(session.owner)
            self.registry.restore(session)
        for owner, amounts in self.storage.spent_before.items():
            self.spending.add(self.tokens.account_of(owner), amounts)
        # Hubs have something to write until the last of them has ended.
        writing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as writers:
            await writers.start(self._write, writing)
            try:
                async with trio.open_nursery() as self._nursery:
                    self.start_task(self._enforce)
                    self.start_task(self.audit_throttle.run)
                    self.start_task(self._forget_expired)
                    self.start_task(end_expired_browsers, self.browsers, self.audit)
                    self.start_task(self._hooks.run)
                    self.start_task(self.push.run)
                    self.start_task(self.disk_changes.run)
                    self.start_task(self.search.run)
                    task_status.started()
            finally:
                self._nursery = None
                writing.cancel()

    def _note_spent(self, session: Session, amounts: Amounts) -> None:
        self.metrics.count_spent(session.agent, amounts)
        self.spending.add(session.account, amounts)

    def start_task(self, work: Callable[[Unpack[Args]], Awaitable[None]], /, *args: *Args) -> None:
        """Run `work(*args)` beside the hubs, until it ends or the gateway does. It must not raise."""
        assert self._nursery is not None, "the gateway is not running"
        self._nursery.start_soon(work, *args)

    async def _write(self, until: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with until:
            await self.storage.run(task_status=task_status)

    @property
    def agent_ancestors(self) -> Container[int]:
        """Processes and process sessions whose descendants are all agents, for telling an agent from its user."""
        return self._spawner.ancestors

    def look_at_machine(self) -> None:
        """Begin to look at the machine, for `machine.last`."""
        if self._nursery is not None:
            self._nursery.start_soon(self.machine.look)

    def roots(self, access: Access | None = None) -> list[str]:
        """Return the directories of all workspaces; with a credential, of those that it may use."""
        agents = [name for name in self.config.agents if access is None or access.may_use(name)]
        return [
            *dict.fromkeys(
                each.root
                for name in agents
                for each in self.services.workspaces(name)
                if access is None or access.workspaces is None or each.name in access.workspaces
            )
        ]

    @property
    def hubs(self) -> list[Hub]:
        """The running hubs."""
        return list(self._hubs.values())

    @property
    def load(self) -> dict[str, Any]:
        """The load, of all identities: live sessions, those with a turn, and the latest delay of the event loop."""
        sessions = [session for hub in self.hubs for session in hub.multiplexer.sessions]
        turns = sum(bool(session.turns) for session in sessions)
        return {"sessions": len(sessions), "turns": turns, "lag": round(self.metrics.recent_lag, 6)}

    def reconfigure(self, config: Config, outdated: Container[str]) -> list[str]:
        """Use another configuration from now on; return the names of `outdated` agents that still run as before."""
        before = self.config.agents
        self.config = self.services.config = self.admissions.config = config
        self.connections.set_limits(config.limits)
        self.metrics.add_agents(config.agents)
        self._hooks.configure(config.hooks)
        for key in [*self._shared]:
            section = config.agents.get(key[0])
            if section is None or (key[0] in before and section.scope != before[key[0]].scope):
                del self._shared[key]
        return reconfigure_hubs(self.hubs, self.services, outdated)

    async def stop_agent(self, name: str) -> dict[str, Any]:
        """End the processes of an agent, and wait for their ends; return the numbers of these, of the starts that were
        given up, and of the cut turns.

        The next request starts another one. Raises `UnknownAgent`, and `UsageError` for one of another machine.
        Cancelled, the processes end all the same.
        """
        hubs = [hub for hub in self.hubs if hub.name == name]
        if "/" in name:
            raise UsageError(f"the agent {name} runs on another machine: stop it there")
        if not hubs and name not in self.config.agents:
            hint = suggestion(name, self.config.agents) or f"; there are: {', '.join(self.config.agents)}"
            raise UnknownAgent(f"this gateway has no agent {name!r:.80}{hint}")
        turns = sum(bool(session.turns) for hub in hubs for session in hub.multiplexer.sessions)
        running = sum(hub.supervisor.agent is not None for hub in hubs)
        ended = [event for hub in hubs if (event := hub.end_agent()) is not None]
        for event in ended:
            await event.wait()
        return {"processes": running, "starts": len(ended) - running, "turns": turns if ended else 0}

    # Admission

    def admit(
        self, access: Access, connect_request: ConnectRequest, *, replaces: bool = False, evicts: bool = True
    ) -> Grant:
        """Authorize a connection, and make room for it as `Connections.make_room`.

        A session to which the token is bound takes precedence.

        Raises `UnknownAgent` and `UnknownSession` if none of that name exists for this token, `Forbidden` if the token
        does not allow the agent, and `Busy` if there are too many connections, or too many agents of another gateway.
        """
        grant = self.admissions.authorize(access, connect_request)
        self._make_room_below(grant)
        self.connections.make_room(access, replaces=replaces, evicts=evicts)
        return replace(grant, replaces=replaces, evicts=evicts)

    # Serving

    async def serve(
        self,
        stream: MaintainedStream,
        grant: Grant,
        name: str,
        link_id: str | None = None,
        *,
        attached: Callable[[Hub, Client], None] | None = None,
    ) -> None:
        """Serve a connection that was admitted to an agent until it ends, then close the stream.

        That is at once, if others have taken the room since.

        With `link_id`, a lost connection can be resumed under that id, by `resume`. `attached` is for a client inside
        the process, which reads updates from journals: it is called with the hub that serves it, and the client there.
        Cancelling closes the stream with a goodbye.
        """
        self.bound(stream, grant.role, *_kinds(grant.reach))
        refused = self.connections.refuse_late(grant)
        if refused is not None:
            await stream.aclose(refused.code, refused.text)
            return
        hub = self._find_hub(grant)
        if hub is None:
            await stream.aclose(CloseReason.POLICY, _SESSION_GONE)
            return
        via, credential = grant.connect_request.via, self.connections.source_of(grant.access)
        client = Client(name, grant.reach, grant.role, link=link_id, via=via, credential=credential)
        client.sender = sender_of(grant.access)
        record = ResumableLink(grant, hub, client, link_id) if link_id else AttachedClient(grant, hub, client)
        tape = self._begin(record)
        if attached is not None:
            # A recording has all that a client would get.
            client.reads_journals = tape is None
            attached(hub, client)
        disconnect = None
        try:
            with self.connections.watched(record):
                disconnect = await hub.serve(stream, client, tape)
        finally:
            self._end(record, tape, disconnect)

    def bound(self, stream: MaintainedStream, role: Role, *kinds: Kind) -> SizeLimit:
        """Limit the messages of a connection to what its client may need; `kinds` are those that it is of.

        Returns the limit.
        """
        stream.message_timeout = self.config.limits.message_timeout
        limit = self._size_limit(role, *kinds)
        if limit.option != "max_message_size":
            stream.limit(*limit)
        return limit

    def link_limit(self, role: Role, reach: SessionReach) -> SizeLimit:
        """Return the maximum size of the messages that come over a link."""
        return self._size_limit(role, *_kinds(reach))

    def _size_limit(self, role: Role, *kinds: Kind) -> SizeLimit:
        sizes = {"max_message_size": self.config.gateway.max_message_size}
        sizes |= {f"{kind}_message_size": REQUEST_SIZE if kind == "control" else PROMPT_SIZE for kind in kinds}
        if role is Role.OBSERVER:
            sizes["observer_message_size"] = self.config.limits.observer_message_size
        setting = min(sizes, key=lambda name: sizes[name])
        return SizeLimit(sizes[setting], setting)

    def _begin(self, attached: AttachedClient) -> Tape | None:
        """Record the start of a connection, and return its recording, if there is one."""
        name, grant = attached.client.name, attached.grant
        about = {"connection": name, "agent": grant.agent, "identity": grant.access.identity}
        details = about | {"request": grant.connect_request.request_id or None}
        self.audit_throttle.record("attached", **details, credential=grant.access.credential, role=grant.role.value)
        tape = None if self._recorder is None else self._recorder.open(name, about)
        observes = "" if attached.client.controls else ", to observe"
        log.info("%s: attached to agent %s as %s%s", name, grant.agent, grant.access.identity, observes)
        if isinstance(attached, ResumableLink):
            self._links.add(attached)
        return tape

    def _end(self, attached: AttachedClient, tape: Tape | None, disconnect: Disconnect | None) -> None:
        """Record the end of a connection."""
        name = attached.client.name
        if isinstance(attached, ResumableLink):
            self._links.end(attached, disconnect)
        if tape is not None:
            tape.close()
        why = disconnect.text or "left" if disconnect else "stopped"
        self.metrics.count_detached(disconnect)
        self.audit_throttle.record("detached", connection=name, identity=attached.access.identity, why=why)
        log.info("%s: detached", name)

    def resume(self, access: Access, link_id: str, received: int, part: PartSum = NO_PART) -> ResumeClaim:
        """Resume the link of a client that has received so many of its messages, and this part of the next one.

        Its present connection is dropped.

        The link ends if the token's permissions have changed. Raises what `admit` raises, `TooFarBehind`, `LinkExpired`
        and `LinkGone`.
        """
        try:
            claimed = self._claim(access, link_id, received, part)
        except AccessError as error:
            self.metrics.resumes[error.reason] += 1
            raise
        self.metrics.resumes["resumed"] += 1
        return claimed

    def _claim(self, access: Access, link_id: str, received: int, part: PartSum) -> ResumeClaim:
        link = self._links.find(link_id, access)
        before, asked = link.grant, link.grant.connect_request
        if asked.agent is None and before.reach.only is None:
            # The default agent may be another one by now.
            asked = replace(asked, agent=before.agent)
        now = self.admissions.authorize(access, asked)
        if (before.agent, before.role, before.reach) != (now.agent, now.role, now.reach):
            attachment = link.attachment
            if attachment is not None:
                attachment.close(_CHANGED)
            raise LinkGone("the token allows something else now; begin a new link")
        resumption = claim(link, received, part)
        # It may be another token by now, of the same id.
        link.grant = replace(before, access=access)
        return resumption

    def check_ended(self, access: Access, link_id: str) -> None:
        """Raise `TooFarBehind` or `LinkExpired` if a link of this principal has ended for that."""
        self._links.check_ended(link_id, access)

    async def serve_resumed(self, stream: MaintainedStream, resumption: ResumeClaim, name: str) -> None:
        """Serve a link over this connection until that is lost or the client has gone; the stream is closed then."""
        link = resumption.link
        log.info("%s: resumes the link of %s", name, link.client.name)
        if resumption.pop_takeover():
            self.note_takeover(name, link.client.name, link.access)
        self.bound(stream, link.client.role, *_kinds(link.client.reach))
        await serve_resumed(stream, resumption)

    def note_takeover(self, name: str, former: str, access: Access) -> None:
        """Record that a client goes on over another connection, although the former one was not lost."""
        self.audit_throttle.record("taken_over", connection=name, former=former, identity=access.identity)

    def _find_hub(self, grant: Grant) -> Hub | None:
        """The hub for a connection, a new one if need be; None where the session that it came for has gone."""
        reach, agent = grant.reach, grant.agent
        if reach.only is not None:
            session = self.admissions.find_session(grant.access, reach, agent)
            hub = None if session is None or session.agent_handle is None else self._hubs.get(session.agent_handle)
            if hub is not None and not hub.ended:
                return hub
            if reach.guest:
                return None
        section = self.config.agents.get(agent)
        if section is None:
            return None
        run_agent = partial(self._agents.run, agent, section, reach)
        if section.scope == "connection":
            return self._start_hub(agent, section, run_agent)
        key = agent, reach.identity if section.scope == "identity" else None
        shared = self._shared.get(key)
        if shared is None or shared.ended:
            shared = self._shared[key] = self._start_hub(agent, section, run_agent)
            if key[1] is not None and reach.below is not None:
                self._below[shared] = reach.below
        return shared

    def _make_room_below(self, grant: Grant) -> None:
        """Make room for the agent of another name below a gateway's identity, if necessary by ending an unused one.

        Raises `Busy` if all are used.
        """
        reach, section = grant.reach, self.config.agents.get(grant.agent)
        if reach.below is None or reach.guest or section is None or section.scope != "identity":
            return
        present = self._shared.get((grant.agent, reach.identity))
        if present is not None and not present.ended:
            return
        most = self.config.limits.agents_below_identity
        its = [hub for hub, below in self._below.items() if below == reach.below and not hub.ended]
        if len(its) < most:
            return
        unused = next((hub for hub in its if not (hub.attachments or hub.multiplexer.busy)), None)
        if unused is None:
            raise Busy(f"agents_below_identity ({most}) run already; try later")
        unused.end()

    def _usable_workspaces(self, section: AgentSection, reach: SessionReach) -> Sequence[str] | None:
        """Return the names of the workspaces that the clients of an agent's process may use; None for all."""
        if section.scope == "connection":
            return reach.workspaces
        if section.scope == "shared":
            return None
        return self.workspaces_of(reach.identity)

    def workspaces_of(self, identity: str) -> Sequence[str] | None:
        """Return the names of the workspaces that an identity may use; None for all. Raises `ConfigError`."""
        own = default_identity(self.config.gateway.state_dir)
        return usable_workspaces(identity, self._valid_tokens(), self.config, own)

    def _valid_tokens(self) -> list[Token]:
        """Return the tokens that have not expired. Raises `ConfigError`."""
        return [token for token in self.tokens.tokens() if not self.tokens.has_expired(token)]

    def _start_hub(self, agent: str, section: AgentSection, run_agent: RunAgent) -> Hub:
        self.metrics.add_agents([agent])
        policy = self.services.policy(section)
        multiplexer = Multiplexer(agent, policy, self.registry, self.metrics.traffic, keeping)
        hub = Hub(agent, policy=policy, run_agent=run_agent, multiplexer=multiplexer, services=self.services)
        self._hubs[multiplexer.agent_handle] = hub
        self.start_task(self._run_hub, hub)
        return hub

    def offered_rules(self, session: Session, agent_request: AgentRequest, reach: SessionReach) -> list[Rule]:
        """Return the rules that a controller with this reach may have written as it allows a request of a session."""
        hub = None if session.agent_handle is None else self._hubs.get(session.agent_handle)
        return [] if hub is None else hub.multiplexer.offered_rules(agent_request, reach)

    def rename(self, session: Session, title: str) -> None:
        """Give a session a title that its agent does not replace, and tell its clients."""
        hub = None if session.agent_handle is None else self._hubs.get(session.agent_handle)
        if hub is None:
            self.registry.rename(session, title)
        else:
            hub.rename(session, title)

    def remove_prompt(self, session: Session, key: str, access: Access) -> bool:
        """Remove a kept prompt, as a principal asks; return False if none has this key."""
        prompt = session.kept.get(key)
        if prompt is None or not remove_kept(self.registry, session, key):
            return False
        about = {"session": session.id, "agent": session.agent, "sender": prompt.identity}
        self.audit_throttle.record("queue_changed", action="remove", identity=access.identity, **about)
        self._tell_queue(session)
        return True

    def hold_prompt(self, session: Session, key: str, why: str) -> None:
        """Have a kept prompt wait for a person, with the reason for which it is not sent by itself."""
        hold_kept(self.registry, session, key, why)
        self._tell_queue(session)

    def _tell_queue(self, session: Session) -> None:
        hub = None if session.agent_handle is None else self._hubs.get(session.agent_handle)
        if hub is not None:
            hub.deliver()

    async def _run_hub(self, hub: Hub) -> None:
        try:
            with contained(hub):
                await hub.run()
        finally:
            self._forget(hub)

    def _forget(self, hub: Hub) -> None:
        """Remove a hub that has ended, and let other hubs open its sessions."""
        del self._hubs[hub.multiplexer.agent_handle]
        self._below.pop(hub, None)
        for key in [key for key, shared in self._shared.items() if shared is hub]:
            del self._shared[key]
        for other in self.hubs:
            with contained(other):
                other.sessions_freed()

    async def _forget_expired(self) -> None:
        """Forget sessions that were unused for `retention_days`, from time to time."""
        while True:
            await trio.sleep(RETENTION_INTERVAL)
            for session in self._archive.expired():
                if not session.live:
                    log.info("session %.80r of agent %s is forgotten: over retention_days", session.id, session.agent)
                    self.registry.remove(session)

    async def _enforce(self) -> None:
        while True:
            due = trio.current_time() + REVOCATION_INTERVAL
            await trio.sleep_until(due)
            self.metrics.observe_lag(trio.current_time() - due)
            self.connections.enforce()
            try:
                tokens = self._valid_tokens()
            except ConfigError:
                continue  # The store itself says so.
            self._end_agents_without_owner(tokens)
            self._restart_fenced_agents(tokens)

    def _restart_fenced_agents(self, tokens: list[Token]) -> None:
        """Restart agents whose fences open what their identities may not use any more, as soon as that cuts nothing."""
        if tokens != self._judged_by:
            self._judged_by = tokens
            self._judged.clear()
        running = {hub.supervisor.agent: (*key, hub) for key, hub in self._shared.items()}
        fenced = {agent: found for agent, found in running.items() if agent is not None and agent.fence is not None}
        for agent in fenced.keys() - self._judged:
            name, identity, hub = fenced[agent]
            section = self.config.agents.get(name)
            if identity is None or section is None or agent.fence is None:
                continue
            own = default_identity(self.config.gateway.state_dir)
            allowed = usable_workspaces(identity, tokens, self.config, own)
            if opens_too_much(agent.fence, section, self.config, allowed):
                hub.restart_when_idle(f"{identity} may not use all workspaces any more that its fence opens")
        self._judged = set(fenced)

    def _end_agents_without_owner(self, tokens: list[Token]) -> None:
        """End the agents of identities that have no credential any more, once nothing is open in them."""
        unused = (key for key, hub in self._shared.items() if not (hub.attachments or hub.multiplexer.busy))
        alone = [key for key in unused if key[1] is not None]
        if not alone:
            return
        own = default_identity(self.config.gateway.state_dir)
        for key in alone:
            agent, identity = key
            if identity is not None and not has_credential(identity, tokens, self.config, own):
                log.info("agent %s is stopped: %s has no credential any more", agent, identity)
                self._shared.pop(key).end()


def _kinds(reach: SessionReach) -> list[Kind]:
    return ["guest"] if reach.guest else []
