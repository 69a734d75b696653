"""A multiplexer with clients and an agent in memory: each message is a call, and its effects are in their inboxes."""

import json
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from acp_gateway.config.agent_options import AgentSection
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.options import GatewaySection
from acp_gateway.core.agent_state import Policy
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import (
    AuditEvent,
    CheckDirectories,
    DropWorktree,
    HookEvent,
    LoadJournal,
    LogMessage,
    Output,
    StopUnused,
    StorePrompt,
    WriteRule,
)
from acp_gateway.core.requests import DirectoryCheckResult, KeptPrompt, Location, Problem, Worktree
from acp_gateway.core.sessions.archive import CostEvent, JournalLoss
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.costs.spending import Amounts, Meters
from acp_gateway.gateway.kept.prompts import keeping
from acp_gateway.protocol.link_messages import Mark, Sent
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.text.pairs import Entry
from acp_gateway.rules.rule import Rule

Place = tuple[str, int]
"""An epoch and a position in it."""

HINT = "On the far machine: run `agent login`."


def look(directory_check: DirectoryCheck) -> DirectoryCheckResult:
    """Result of a directory check: the directories are those in /srv, whose first part below that names a workspace."""
    for directory in directory_check.directories:
        if not directory.startswith("/srv"):
            return DirectoryCheckResult(
                Problem(f"no {directory} here", {"cwd": directory, "reason": "none"}), None, Location("/srv", None)
            )
    workspace = next((directory.split("/")[2] for directory in directory_check.directories if directory[5:]), None)
    return DirectoryCheckResult(workspace=workspace, fallback=Location("/srv", None))


def make_policy(
    *,
    shared: bool = True,
    common: bool = False,
    serves: Container[Capability] = (),
    login_hint: Callable[[list[dict[str, Any]]], str] = lambda _: HINT,
    version: str = "0",
    rules: Sequence[Rule] = (),
    spending: Any = None,
    **options: Any,
) -> Policy:
    """A policy for tests, with these options in whichever section has them."""
    values = {
        "state_dir": Path("/state"),
        "command": ("agent",),
        "scope": ("shared" if common else "identity") if shared else "connection",
        "client_fs": Capability.FS in serves,
        "client_terminal": Capability.TERMINAL in serves,
        "mcp_servers": "allow",
        "outbox_limit": 1_000_000,
        "journal_limit": 1_000_000,
    } | options

    def section(kind: type[Any]) -> Any:
        return kind(**{field.name: values.pop(field.name) for field in fields(kind) if field.name in values})

    sections = section(AgentSection), section(GatewaySection), section(LimitsSection)
    limits = {} if spending is None else {"exceeded": spending.exceeded, "allow_more": spending.allow_more}
    policy = Policy(*sections, login_hint, version, lambda: rules, **limits)
    assert not values, values
    return policy


def encode(**message: Any) -> bytes:
    """Encode a message; `jsonrpc` is added."""
    return json.dumps({"jsonrpc": "2.0"} | message).encode()


def places(mark: Mark) -> dict[str, Place]:
    """Return the positions in a mark, by session."""
    positions = json.loads(mark.text)["params"]["positions"]
    return {name: (place["epoch"], place["position"]) for name, place in positions.items()}


class Shelf:
    """An archive in memory: from its calls alone, its journals must become equal to those of the sessions."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self._limit = limit
        self.told: list[tuple[str, str]] = []
        """Names of the called methods, with the ids of their sessions."""
        self.changes: list[str] = []
        """Ids of sessions with changes that are not stored."""
        self.shown: dict[Session, dict[str, str | None]] = {}
        """Entries in lists of the stored sessions."""
        self.journals: dict[Session, Journal] = {}
        self.open: set[Session] = set()
        """Sessions that are stored as open."""
        self.meters = Meters()
        self.spent: dict[str, Amounts] = {}
        """Amounts that were spent, by the ids of sessions."""
        self.prompts: dict[str, tuple[KeptPrompt, bool]] = {}
        """Prompts that wait, by key, and whether the agent may have each."""
        self.writes_prompts = False
        """True if each is on the disk at once; otherwise the agent gets it before."""

    def keep(self, session: Session) -> None:
        self.told.append(("keep", session.id))
        (self.open.add if session.counts_as_open else self.open.discard)(session)
        self.shown[session] = {"cwd": session.cwd, "title": session.title, "updatedAt": session.updated_at}
        kept, epoch = (
            self.journals.setdefault(session, Journal(self._limit, session.journal.epoch)),
            session.journal.epoch,
        )
        if epoch and kept.epoch != epoch:
            kept.rename(epoch)

    def remove(self, session: Session) -> None:
        self.told.append(("remove", session.id))
        self.shown.pop(session, None)
        self.journals.pop(session, None)
        self.open.discard(session)

    def write(self, session: Session, message: Entry, state: str | None, time: int | None) -> None:
        self.told.append(("write", session.id))
        self.journals[session].append(message, state, time)

    def extend(self, session: Session, messages: Sequence[Entry], time: int | None) -> None:
        self.told.append(("extend", session.id))
        self.journals[session].extend(messages, time)

    def meter(self, session: Session, event: CostEvent, told: Any = None) -> None:
        amounts = self.meters.note(session, event, told)
        if amounts:
            self.spent.setdefault(session.id, Counter()).update(amounts)

    def note_change(self, session: Session) -> None:
        self.changes.append(session.id)

    def end_turn(self, session: Session) -> None:
        self.told.append(("end_turn", session.id))
        self.journals[session].turn_ended()

    def replace(self, session: Session) -> None:
        self.told.append(("replace", session.id))
        self.journals[session] = self._copy(session.journal)

    def finish_journal(self, session: Session) -> None:
        """Keep the journal as the only holder, if the session had one: a cleared journal has no epoch."""
        self.told.append(("finish_journal", session.id))
        if session in self.journals and session.journal.epoch:
            # The ends of turns, which it is not told, count there as well, so that more may be cut off.
            kept = [run for run in self.journals[session].runs(session.journal.start) if run.messages]
            assert kept == session.journal.runs()

    def keep_prompt(self, session: Session, prompt: KeptPrompt) -> bool:
        self.prompts[prompt.shown.key] = prompt, False
        return True

    def send_prompt(self, session: Session, key: str) -> bool:
        """Note that the agent may have a prompt; where prompts are written, that has to be written before."""
        if not self.writes_prompts:
            self.prompts.pop(key, None)
            return True
        self.prompts[key] = self.prompts[key][0], True
        return False

    def drop_prompt(self, session: Session, key: str) -> None:
        self.prompts.pop(key, None)

    def holds(self, session: Session) -> bool:
        return session in self.journals

    def loss(self, session: Session) -> JournalLoss | None:
        return None if session in self.journals else "removed"

    def read(self, session: Session) -> Journal | None:
        """Return the journal of a session, another one each time."""
        journal = self.journals.get(session)
        return None if journal is None else self._copy(journal)

    def _copy(self, journal: Journal) -> Journal:
        copied = Journal(self._limit, journal.epoch)
        copied.restore(
            journal.states_set_aside(),
            journal.runs(),
            journal.position,
            truncated=journal.truncated,
            former=journal.former,
        )
        return copied


class Party:
    """A peer: its messages go into the multiplexer, the responses arrive in its inbox."""

    def __init__(self, scene: "Scene", receive: Callable[[bytes], None]) -> None:
        self._scene = scene
        self._receive = receive
        self.inbox: list[bytes] = []
        """Received messages that were not taken yet, as bytes."""

    def say(self, text: bytes) -> None:
        """Send a message, verbatim."""
        self._receive(text)
        self._scene.deliver()

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.say(encode(**message))

    def heard(self) -> list[Any]:
        """Take all received messages, decoded."""
        texts, self.inbox = self.inbox, []
        return [json.loads(text) for text in texts]

    def heard_text(self) -> list[bytes]:
        """Take all received messages, verbatim."""
        texts, self.inbox = self.inbox, []
        return texts

    def hears(self) -> Any:
        """Take the only received message, decoded."""
        (message,) = self.heard()
        return message


class Peer(Party):
    """A client."""

    def __init__(self, scene: "Scene", client: Client) -> None:
        super().__init__(scene, lambda text: scene.multiplexer.receive_from_client(client, text))
        self.client = client
        self.marks: list[dict[str, Place]] = []
        """Positions in the marks that it received."""
        self.parents: dict[str, str] = {}
        """Sessions that no client opened, and those that they belong to, as marks have told."""
        self.seen: dict[str, Place] = {}
        """Positions by counting: a mark sets one, and each update adds one."""
        self._last_id = 100

    def receive(self, texts: Sequence[Sent]) -> None:
        """Deliver messages to the client."""
        for text in texts:
            if isinstance(text, Mark):
                assert self.client.counts
                self.marks.append(places(text))
                self.parents |= json.loads(text.text)["params"].get("children", {})
                self.seen |= self.marks[-1]
                continue
            self.inbox.append(text)
            message = json.loads(text)
            # A request of that name, which an agent may make up, has no position and perhaps no session.
            is_update = message.get("method") == "session/update" and "id" not in message
            name = message["params"]["sessionId"] if is_update else None
            if name in self.seen:
                epoch, position = self.seen[name]
                self.seen[name] = epoch, position + 1

    def request(self, method: str, **params: Any) -> int:
        """Send a request under an id of its own, and return the id."""
        self._last_id += 1
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def gone(self) -> None:
        """Disconnect for good."""
        self._scene.multiplexer.client_gone(self.client)
        self._scene.deliver()

    def away(self) -> None:
        """Lose the link."""
        self._scene.multiplexer.client_away(self.client)
        self._scene.deliver()

    def dismissed(self, why: str = "it is slow") -> None:
        """Have the gateway end the connection, and deliver its last messages."""
        self._scene.multiplexer.close_client(self.client, why, {"reason": "slow"})
        self._scene.deliver(leaving=self.client)

    def back(self) -> None:
        """Resume the link."""
        self._scene.multiplexer.client_back(self.client)
        self._scene.deliver()

    def choose(self, agent_request: Any, option: str) -> None:
        """Answer a permission request."""
        self.send(id=agent_request["id"], result={"outcome": {"outcome": "selected", "optionId": option}})

    def fail(self, agent_request: Any, code: int = -32602, message: str = "no dialog here") -> None:
        """Answer a request of the agent with an error."""
        self.send(id=agent_request["id"], error={"code": code, "message": message})

    def cancel(self, session_id: str = "s") -> None:
        """Cancel the turns of a session."""
        self.send(method="session/cancel", params={"sessionId": session_id})

    def initialize(self, **params: Any) -> None:
        """Initialize, with the agent's response if it is asked."""
        agent = self._scene.agent
        before = len(agent.inbox)
        own = self.request("initialize", protocolVersion=1, **params)
        for text in agent.inbox[before:]:
            asked = json.loads(text)
            assert asked["method"] == "initialize", asked
            agent.inbox.remove(text)
            agent.send(id=asked["id"], result=self._scene.welcome)
        reply = self.hears()
        assert reply["id"] == own, reply
        assert "result" in reply, reply

    def new_session(self, session_id: str = "s", cwd: str = "/srv", **result: Any) -> str:
        """Open a session, with the agent's response."""
        own = self.request("session/new", cwd=cwd, mcpServers=[])
        asked = self._scene.agent.hears()
        assert asked["method"] == "session/new", asked
        self._scene.agent.send(id=asked["id"], result={"sessionId": session_id, **result})
        assert self.hears()["id"] == own
        return session_id

    def comes_back(
        self, session_id: str = "s", method: str = "session/resume", more: dict[str, Any] | None = None, **said: Any
    ) -> int:
        """Rejoin a session over another link; `said` is the client's state."""
        meta = {"acp-gateway": said} | (more or {})
        return self.request(method, sessionId=session_id, cwd="/srv", mcpServers=[], _meta=meta)

    def load(self, session_id: str = "s") -> list[Any]:
        """Load a live session, and return its history."""
        self.request("session/load", sessionId=session_id, cwd="/srv", mcpServers=[])
        return self.heard()

    def prompt(self, text: str = "hello", session_id: str = "s") -> int:
        """Send a prompt, and return its id."""
        return self.request("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])


class Agent(Party):
    """The agent."""

    def takes(self, method: str) -> Any:
        """Take the only received message, which must have this method."""
        message = self.hears()
        assert message["method"] == method, message
        return message

    def answer(self, request: Any, **result: Any) -> None:
        """Answer a request with a result."""
        self.send(id=request["id"], result=result)

    def update(self, text: str, session_id: str = "s") -> None:
        """Send text in a session."""
        content = {"type": "text", "text": text}
        self.send(
            method="session/update",
            params={"sessionId": session_id, "update": {"sessionUpdate": "agent_message_chunk", "content": content}},
        )

    def state(self, kind: str, session_id: str = "s", /, **members: Any) -> None:
        """Send a state update in a session."""
        params = {"sessionId": session_id, "update": {"sessionUpdate": kind, **members}}
        self.send(method="session/update", params=params)

    def answers(self, method: str, **result: Any) -> Any:
        """Answer the only received message, a request for `method`, and return it."""
        asked = self.hears()
        assert asked["method"] == method, asked
        self.send(id=asked["id"], result=result)
        return asked

    def refuses(self, method: str, code: int = -32603, message: str = "no", **members: Any) -> Any:
        """Answer the only received message with an error."""
        asked = self.hears()
        assert asked["method"] == method, asked
        self.send(id=asked["id"], error={"code": code, "message": message, **members})
        return asked

    def ask_permission(self, raw_id: Any = 0, session_id: str = "s", options: tuple[str, ...] = ("yes", "no")) -> None:
        """Request a permission."""
        offered = [{"optionId": option, "name": option, "kind": "allow_once"} for option in options]
        params = {"sessionId": session_id, "toolCall": {"toolCallId": "call", "title": "do it"}, "options": offered}
        self.send(id=raw_id, method="session/request_permission", params=params)


def checks_of(output: Output) -> list[DirectoryCheck]:
    """Return the requested directory checks."""
    return [effect.check for effect in output.effects if isinstance(effect, CheckDirectories)]


def journals_of(output: Output) -> list[Session]:
    """Return the sessions whose journal is to be read."""
    return [effect.session for effect in output.effects if isinstance(effect, LoadJournal)]


class Scene:
    """A multiplexer, its clients and its agent."""

    def __init__(self, policy: Policy | None = None, registry: Registry | None = None, **welcome: Any) -> None:
        self.registry = registry or Registry("me")
        self.multiplexer = Multiplexer("agent", policy or make_policy(), self.registry, keeping=keeping)
        self.agent = Agent(self, lambda text: self.multiplexer.receive_from_agent([text]))
        self.welcome: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {}} | welcome
        """Result of the agent for `initialize`."""
        self.peers: dict[Client, Peer] = {}
        self.notes: list[str] = []
        self.stopped: list[AgentHandle] = []
        """Processes that were to be stopped."""
        self.dropped: list[Worktree] = []
        """Working trees that were to be removed."""
        self.events: list[HookEvent] = []
        self.wanted: list[Session] = []
        """Sessions whose journal is to be read."""
        self.audit_events: list[AuditEvent] = []
        """Audit events."""
        self.written: list[WriteRule] = []
        """Rules that were to be written."""
        self.storing: list[str] = []
        """Keys of prompts that wait for the archive."""
        self.look: Callable[[DirectoryCheck], DirectoryCheckResult] | None = look
        """Checks directories at once; None if the test does."""
        self.directory_checks: list[DirectoryCheck] = []
        """Directory checks that are pending."""

    def join(
        self,
        name: str,
        identity: str = "me",
        role: Role = Role.CONTROLLER,
        *,
        only: str | None = None,
        guest: bool = False,
        workspaces: tuple[str, ...] | None = None,
        below: str | None = None,
        link: str | None = None,
        initialize: bool = True,
        **params: Any,
    ) -> Peer:
        """Add a client, initialized unless told otherwise; one with a `link` counts positions."""
        reach = SessionReach(identity, only, guest, workspaces=workspaces, below=below)
        client = Client(name, reach, role, link=link)
        peer = self.peers[client] = Peer(self, client)
        self.multiplexer.attach(client)
        if initialize:
            peer.initialize(**params)
        return peer

    def join_session(self, name: str, *args: Any, **params: Any) -> Peer:
        """Add a client as `join` does, and let it load the session `s`, which is live."""
        peer = self.join(name, *args, **params)
        peer.load()
        return peer

    def deliver(self, leaving: Client | None = None) -> None:
        """Carry out the output; only a `leaving` client may be gone and receive messages."""
        output = self.multiplexer.take_output()
        self.agent.inbox += output.to_agent
        for client, texts in output.to_clients.items():
            assert not client.gone or client is leaving
            self.peers[client].receive(texts)
        for effect in output.effects:
            match effect:
                case LogMessage(text):
                    self.notes.append(text)
                case HookEvent():
                    self.events.append(effect)
                case AuditEvent():
                    self.audit_events.append(effect)
                case LoadJournal(session):
                    self.wanted.append(session)
                case WriteRule():
                    self.written.append(effect)
                case StorePrompt(key):
                    self.storing.append(key)
                case StopUnused(handle):
                    self.stopped.append(handle)
                case DropWorktree(worktree=worktree):
                    self.dropped.append(worktree)
        self.look_at(checks_of(output))

    def look_at(self, directory_checks: list[DirectoryCheck]) -> None:
        """Check directories, or leave that to the test."""
        if self.look is None:
            self.directory_checks += directory_checks
        elif directory_checks:
            for directory_check in directory_checks:
                self.multiplexer.directories_checked(directory_check, self.look(directory_check))
            self.deliver()

    def directory_check(self, findings: DirectoryCheckResult) -> None:
        """Finish the earliest directory check."""
        self.multiplexer.directories_checked(self.directory_checks.pop(0), findings)
        self.deliver()

    def lose_agent(self, why: str = "the agent ended") -> None:
        """End the agent's process."""
        self.multiplexer.agent_lost(why, {"exitCode": 1})
        self.deliver()

    def stop_agent(self) -> None:
        """Stop the unused agent."""
        self.multiplexer.agent_stopped()
        self.deliver()

    def end_turns(self) -> None:
        """Prepare the stop of the agent."""
        self.multiplexer.end_turns()
        self.deliver()

    def write_prompts(self) -> None:
        """Have the archive write what it was told of prompts."""
        keys, self.storing = self.storing, []
        for key in keys:
            self.multiplexer.prompt_stored(key)
        self.deliver()

    def retire(self) -> None:
        """Retire the multiplexer."""
        self.multiplexer.shut_down()
        self.deliver()

    def load_journal(self, journal: Journal | None) -> None:
        """Read the only requested journal."""
        (session,) = self.wanted
        self.wanted.clear()
        self.multiplexer.journal_loaded(session, journal)
        self.deliver()

    def session(self, session_id: str = "s") -> Session:
        """Return the live session of that id."""
        (session,) = [session for session in self.multiplexer.sessions if session.id == session_id]
        return session

    def place(self, session_id: str = "s") -> Place:
        """Return the state of a session."""
        journal = self.session(session_id).journal
        return journal.epoch, journal.position

    def sessions_freed(self) -> None:
        """End another process."""
        self.multiplexer.sessions_freed()
        self.deliver()

    def end_vain_waits(self, patience: float = 60.0) -> None:
        """Refuse what waits in vain."""
        self.multiplexer.end_vain_waits(patience)
        self.deliver()

    def pass_time(self, now: float, wall_time: int | None = None) -> None:
        """Set the time, and the time of day."""
        self.multiplexer.set_time(now, wall_time)
        self.deliver()


def news_params() -> dict[str, Any]:
    """Parameters of `initialize` that ask for the gateway's own notifications."""
    return {"clientCapabilities": {"_meta": {"acp-gateway": {}}}}


def opened_scene(*args: Any, **welcome: Any) -> tuple[Scene, Peer]:
    """A scene, made from the arguments, whose client `ann` has opened the session `s`."""
    scene = Scene(*args, **welcome)
    ann = scene.join("ann")
    ann.new_session()
    return scene, ann
