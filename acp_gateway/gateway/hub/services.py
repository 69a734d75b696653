"""The services that hubs need from the gateway around them: hooks, audit, storage, directory checks, limits."""

import logging
import math
import shlex
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import cached_property, partial
from typing import Any, Final, ParamSpec, Protocol, TypeVar, Unpack
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import trio

from acp_gateway.acp.worktrees import tree_of
from acp_gateway.config.load import AgentSection, Config
from acp_gateway.core.agent_state import Policy
from acp_gateway.core.output import AuditEvent, DropWorktree, HookEvent, WriteRule
from acp_gateway.core.requests import DirectoryCheckResult, Problem
from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Session
from acp_gateway.errors import ConfigError, GatewayError, UsageError
from acp_gateway.gateway.agent.fencing import OUTSIDE_FENCE, first_outside, outside_fence
from acp_gateway.gateway.connections import Connections
from acp_gateway.gateway.costs.todays_spending import TodaysSpending
from acp_gateway.gateway.events.audit import AuditThrottle, entry_of_rule
from acp_gateway.gateway.events.hooks import STRING_LENGTH, Hooks
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.hub.memory_limit import Input, MemoryLimiter
from acp_gateway.gateway.kept.usage_limits import LAST_UPDATES, last_words, limit_end
from acp_gateway.gateway.made.worktrees import Worktrees
from acp_gateway.gateway.metrics import Metrics
from acp_gateway.gateway.page_address import find_page, make_link
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.workspaces import Workspace, directory_check, workspaces_of
from acp_gateway.rules.rule import Rule
from acp_gateway.security.rules_file import RulesFile, has_ended
from acp_gateway.transports.maintained import Charge
from acp_gateway.transports.timers import Args

log = logging.getLogger(__name__)

T = TypeVar("T")

Made = TypeVar("Made")
Params = ParamSpec("Params")

LOAD_TIMEOUT: Final = 10.0
"""Seconds to wait for a history while the disk returns no other one either; its session is opened without it then."""

CHECK_TIMEOUT: Final = 10.0
"""Seconds to wait for a directory check; a lost network file system may never answer."""

CHECK_THREADS: Final = 8
"""Maximum number of concurrent directory checks."""

InThread = Callable[[Callable[[], DirectoryCheckResult]], Awaitable[DirectoryCheckResult]]
"""Runs a function in a thread."""


@contextmanager
def contained(hub: Hub) -> Iterator[None]:
    """Contain bugs in one hub: log an exception and end this hub, so that no other one is affected."""
    try:
        yield
    except* Exception:
        log.exception("agent %s: internal error, stopped", hub.name)
        hub.end()


class ProgressTimeout:
    """Bounds operations that wait for each other: each may take long, as long as one of them ends now and then.

    Args:
        seconds: time in which none ends, after which all are given up; up to a tenth less where some have.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scopes: set[trio.CancelScope] = set()
        self._moved_at = -math.inf

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an operation. Raises `trio.TooSlowError` after the time; cancelling cancels it."""
        with trio.move_on_after(self._seconds) as scope:
            self._scopes.add(scope)
            try:
                result = await operation()
            finally:
                self._scopes.discard(scope)
            self._move()
            return result
        raise trio.TooSlowError

    def _move(self) -> None:
        """Give the others more time. All at once and not each time: there may be thousands."""
        now = trio.current_time()
        if now >= self._moved_at + self._seconds / 10:
            self._moved_at = now
            for scope in self._scopes:
                scope.deadline = now + self._seconds


class StartTask(Protocol):
    """Starts a task of the gateway, which runs beside its hubs."""

    def __call__(self, work: Callable[[Unpack[Args]], Awaitable[None]], /, *args: *Args) -> None:
        """Run `work(*args)`."""


class GatewayServices:
    """The services of a gateway's hubs.

    Args:
        config: of the gateway.
        hubs: the running hubs, by the handle of their agent.
        start_task: starts the tasks that read the disk.
        connections: of clients, for their rate limits.
        archive: the histories of sessions.
        audit: records audit events.
        hooks: run for hook events.
        metrics: counts these events.
        worktrees: makes and removes working trees of sessions.
        spending: says which limits on costs are reached.
        objection_to: as in `Policy`.
    """

    def __init__(  # noqa: PLR0913 - a keyword for each part.
        self,
        config: Config,
        hubs: Mapping[AgentHandle, Hub],
        *,
        start_task: StartTask,
        connections: Connections,
        archive: StoredArchive,
        audit: AuditThrottle,
        hooks: Hooks,
        metrics: Metrics,
        worktrees: Worktrees,
        spending: TodaysSpending,
        objection_to: Callable[[str, Session], str],
    ) -> None:
        # A disk that does not answer occupies these threads and no others.
        self.in_thread: InThread = partial(
            trio.to_thread.run_sync, abandon_on_cancel=True, limiter=trio.CapacityLimiter(CHECK_THREADS)
        )
        self.config = config
        """The configuration in force."""
        self._hubs = hubs
        self._connections = connections
        self._archive = archive
        self._audit = audit
        self._hooks = hooks
        self._metrics = metrics
        self._spending = spending
        self.worktrees = worktrees
        """Makes and removes the working trees of sessions."""
        self.inputs: set[Input] = set()
        """Connections without a hub whose input counts in `memory_limit`; each adds and removes itself."""
        self._memory = MemoryLimiter(config.gateway.memory_limit, lambda: list(hubs.values()), self.inputs)
        self.rules_file = RulesFile(config.gateway.state_dir)
        """The rules that people have written."""
        self._flaw_of_rules = ""
        self._limiters: dict[str, trio.CapacityLimiter] = {}
        self._objection_to = objection_to
        self._made: dict[Callable[..., Any], Any] = {}
        self._start_task = start_task
        self._journal_timeout = ProgressTimeout(LOAD_TIMEOUT)

    def limiter(self, work: str, most: int) -> trio.CapacityLimiter:
        """Return what limits one kind of work in this gateway, made at the first call for so much at a time."""
        return self._limiters.setdefault(work, trio.CapacityLimiter(most))

    def one(self, kind: Callable[Params, Made], *args: Params.args, **kwargs: Params.kwargs) -> Made:
        """Return the only object of a class in this gateway, which is made for the first that asks for it."""
        if kind not in self._made:
            self._made[kind] = kind(*args, **kwargs)
        made: Made = self._made[kind]
        return made

    def notify(self, event: HookEvent) -> None:
        """Run the hook for an event, if it is configured."""
        self._metrics.count_hook_event(event)
        session = event.session
        if event.name == "turn_end":
            self._note_limit(session)
        about = {"sessionId": session.id, "agent": session.agent, "title": session.title, "identity": session.owner}
        about["link"] = self._link_to(session.name, event.details.get("requestId"))
        if event.name == "permission_waiting":
            about["since"] = datetime.fromtimestamp(time.time() - event.age, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._hooks.fire(event.name, about | event.details)

    def _note_limit(self, session: Session) -> None:
        """Note the end of a usage limit that the agent names in its error or its last words: it holds for all sessions
        of the process."""
        last, hub = session.last_turn, self._hubs.get(session.agent_handle) if session.agent_handle else None
        if last is not None and last.outcome.error is not None:
            said = last.outcome.error.message
        else:
            at = session.journal.position
            said = last_words(session.journal.messages(at - LAST_UPDATES, at))
        end = limit_end(said, round(time.time() * 1000), zone_of)
        for other in () if end is None or hub is None else hub.multiplexer.sessions:
            other.limited_until = end
            other.note_change()

    def _link_to(self, session: str, request: str | None) -> str | None:
        """Return the link to a session of the page, or to a question in it; None if there is no page."""
        link = None if self.page is None else make_link(self.page, session=session, request=request)
        # A longer one would be cut.
        return None if link is None or len(link) > STRING_LENGTH else link

    @cached_property
    def page(self) -> str | None:
        """Address of the page, as browsers reach it; None if no listener serves it."""
        try:
            return find_page(self.config.listen)
        except ConfigError:
            return None  # The listener itself has reported its certificate.

    def audit(self, event: AuditEvent) -> None:
        """Record an event in the audit, with its client."""
        self._metrics.count_audit_event(event)
        client = event.client
        by = {} if client is None else {"connection": client.name, "identity": client.reach.identity}
        self._audit.record(event.name, **by, **event.details)

    def stop_unused(self, handle: AgentHandle) -> None:
        """Stop the agent of another hub, if it is still unused."""
        hub = self._hubs.get(handle)
        if hub is not None and handle.abandoned:
            hub.end()

    # Rules

    def policy(self, section: AgentSection) -> Policy:
        """Return the policy for an agent, by the configuration in force."""
        config = self.config
        return Policy(
            section,
            config.gateway,
            config.limits,
            partial(login_hint, section),
            rules=self.rules,
            exceeded=self._spending.exceeded,
            allow_more=self._spending.allow_more,
            objection_to=self._objection_to,
        )

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules in force: those of the configuration first. Without those in the file if it has a flaw,
        which is logged once."""
        try:
            rules, flaw = self.rules_file.rules(), ""
        except ConfigError as error:
            rules, flaw = (), str(error)
        ended = self._ended(rules)
        written = [rule for rule in rules if rule.id not in ended]
        if flaw and flaw != self._flaw_of_rules:
            log.error("rules that people have written do not count: %s", flaw)
        self._flaw_of_rules = flaw
        return (*self.config.rules, *written)

    def _ended(self, rules: Sequence[Rule]) -> frozenset[str]:
        """Return the ids of those of these rules whose credential is not valid any more."""
        if not rules:
            return frozenset()
        tokens, certificates = self._connections.valid_tokens(), self.config.certificates
        return frozenset(rule.id for rule in rules if has_ended(rule, tokens, certificates))

    def write_rule(self, hub: Hub, effect: WriteRule) -> None:
        """Write a rule, and tell in the conversation what has become of it."""
        self._start_task(self._write_rule, hub, effect)

    async def _write_rule(self, hub: Hub, effect: WriteRule) -> None:
        author = effect.rule.author
        try:
            # That of the event loop must not be used in a thread.
            file, ended = RulesFile(self.config.gateway.state_dir), self._ended(self.rules_file.rules())
            rule = await trio.to_thread.run_sync(file.add, effect.rule, ended, limiter=self.limiter("rules", 1))
        except GatewayError as error:
            words = f"the rule of {author} was not written: {error}"
        else:
            self.audit(AuditEvent("rule_written", effect.client, entry_of_rule(rule)))
            words = f"{author} has written a rule for such questions ({rule.id}: {rule})"
        with contained(hub):
            hub.rule_written(effect.session, words)

    def store_prompt(self, hub: Hub, key: str) -> None:
        """Tell the hub once all is on the disk that the archive was told of prompts."""
        self._start_task(self._store_prompt, hub, key)

    async def _store_prompt(self, hub: Hub, key: str) -> None:
        await self._archive.prompts_written()
        with contained(hub):
            hub.prompt_stored(key)

    def memory_grew(self, size: int) -> None:
        """Account for bytes that were kept; see `MemoryLimiter`."""
        self._memory.grown(size)

    def rate_limiter(self, client: Client) -> Charge:
        """Return the function that charges a client for what it sends."""
        reach = client.reach
        limiter = self._connections.rate_limiter(reach.account, guest=reach.guest, observer=not client.controls)
        return limiter.charge

    def agent_limiter(self, hub: Hub) -> Charge:
        """Return the function that charges an agent for what its output takes."""
        return self._connections.agent_limiter(hub.attachments, self._hubs).charge

    # Storage

    def load_journal(self, hub: Hub, session: Session) -> None:
        """Read the journal of a session, and pass it to the hub."""
        self._start_task(self._load_journal, hub, session)

    async def _load_journal(self, hub: Hub, session: Session) -> None:
        with contained(hub):
            journal = None
            try:
                read = partial(self._archive.read, session, self.config.gateway.journal_limit)
                journal = await self._journal_timeout.run(read)
            except trio.TooSlowError:
                log.error("session %.80r of agent %s: its history could not be read in time", session.id, session.agent)
            hub.journal_loaded(session, journal)

    # Directories

    def workspaces(self, agent: str) -> tuple[Workspace, ...]:
        """Return the workspaces of an agent."""
        section = self.config.agents.get(agent)
        # An agent may run that is in the configuration no more.
        return workspaces_of(self.config.workspaces, None if section is None else section.cwd)

    def check_directories(self, hub: Hub, check: DirectoryCheck) -> None:
        """Check the directories of a session that is to be opened, and pass the result to the hub."""
        self._start_task(self._check_directories, hub, check)

    async def _check_directories(self, hub: Hub, check: DirectoryCheck) -> None:
        client = check.request.client
        assert client is not None
        result = DirectoryCheckResult(
            Problem("the disk did not say in time whether that directory is there", {"reason": "slow"})
        )
        with contained(hub):
            with trio.move_on_after(CHECK_TIMEOUT):
                result = await self.in_thread(
                    partial(self._look, hub, client, check.directories, chooses=check.chooses)
                )
            if result.problem is None:
                result = await self._with_worktree(hub, check, result)
            if result.problem is not None and result.problem.data["reason"] == OUTSIDE_FENCE:
                hub.restart_when_idle("a session needs a folder outside of its fence")
            hub.directories_checked(check, result)
            is_open = client.requests.get(check.request.key) is check.request
            if result.worktree is not None and (client.gone or not is_open):
                await self._drop_worktree(hub, DropWorktree(client, result.worktree))

    def _look(
        self, hub: Hub, client: Client, directories: Sequence[str], *, chooses: bool = False
    ) -> DirectoryCheckResult:
        """Check whether a client, and the agent as it runs, may use directories. It reads the disk."""
        judged = directory_check(directories, self.workspaces(hub.name), client.reach.workspaces, chooses=chooses)
        chosen = [judged.fallback.directory] if chooses and judged.fallback is not None else []
        agent = hub.supervisor.agent
        fence = None if agent is None else agent.fence
        outside = None if fence is None or judged.problem else first_outside(fence, [*chosen, *directories])
        if outside is None:
            return judged
        return DirectoryCheckResult(outside_fence(hub.name, outside, restarts=hub.shared))

    async def _with_worktree(
        self, hub: Hub, check: DirectoryCheck, result: DirectoryCheckResult
    ) -> DirectoryCheckResult:
        """Return the result of a directory check with the working tree that the session gets, if it is to have one."""
        client = check.request.client
        cwd = check.directories[0] if not check.chooses else result.fallback and result.fallback.directory
        name = None if not cwd else self.worktrees.wanted(hub.name, cwd, check.worktree)
        if not cwd or name is None:
            return result
        try:
            made = await self.worktrees.make(hub.name, client.reach, cwd, name)
        except UsageError as error:
            return DirectoryCheckResult(Problem(str(error), {"reason": "worktree", "cwd": cwd}))
        # It may be in another workspace than the directory, which not all may use.
        there = await self.in_thread(partial(self._look, hub, client, [made.directory]))
        if there.problem is not None:
            await self._drop_worktree(hub, DropWorktree(client, made))
            return there
        return replace(there, worktree=made)

    def drop_worktree(self, hub: Hub, dropped: DropWorktree) -> None:
        """Remove a working tree that is not used, unless something there is not committed."""
        self._start_task(self._drop_worktree, hub, dropped)

    async def _drop_worktree(self, hub: Hub, dropped: DropWorktree) -> None:
        client, session, directory = dropped.client, dropped.session, dropped.worktree.directory
        with contained(hub):
            try:
                removed = await self.worktrees.remove(hub.name, client.reach, directory)
            except UsageError as error:
                log.warning("agent %s: the working tree of an unused session stays: %s", hub.name, error)
                return
            if session is not None:
                about = {"session": session.id, "agent": hub.name, "path": tree_of(directory), "branch": removed.branch}
                self.audit(AuditEvent("worktree_removed", client, about))


def zone_of(name: str) -> tzinfo | None:
    """Return the time zone of a name, or that of this machine for an empty one; None for an unknown one."""
    if not name:
        return datetime.now(UTC).astimezone().tzinfo
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None


def login_hint(section: AgentSection, auth_methods: list[dict[str, Any]]) -> str:
    """Return how to log the agent in on the gateway's machine: as configured, otherwise as the agent describes."""
    command = section.login or _login_command(section, auth_methods)
    if command is not None:
        how = f"run `{command}`"
    else:
        words = [words for method in auth_methods if isinstance(words := method.get("description"), str) and words]
        start = "log in" if section.command is None else f"start `{shlex.join(section.command)}` and log in"
        how = " or ".join(words) if words else start
    return f"On the gateway's machine ({socket.gethostname()}): {how}, then try again."


def _login_command(section: AgentSection, auth_methods: list[dict[str, Any]]) -> str | None:
    """Return the command of a terminal login that the agent offers: its own with other arguments, or one in `_meta`."""
    for method in auth_methods:
        meta = method.get("_meta")
        spec = meta.get("terminal-auth") if isinstance(meta, dict) else None
        if isinstance(spec, dict) and isinstance(spec.get("command"), str):
            return shlex.join([spec["command"], *_words(spec.get("args"))])
        if method.get("type") == "terminal":
            return None if section.command is None else shlex.join([*section.command, *_words(method.get("args"))])
    return None


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []
