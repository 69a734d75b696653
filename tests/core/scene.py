"""A multiplexer with clients and an agent in memory: each thing said is a call, what it causes is in their inboxes."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from acp_gateway.core.agent_state import Policy
from acp_gateway.core.journal import Journal
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import AuditEvent, HookEvent
from acp_gateway.core.sessions import (
    AgentHandle,
    Client,
    DirectoryCheck,
    DirectoryCheckResult,
    Loss,
    Problem,
    Registry,
    Role,
    Session,
    SessionScope,
)
from acp_gateway.protocol.outbox import Mark

Place = tuple[str, int]
"""An epoch and a position in it."""

HINT = "On the far machine: run `agent login`."


def look(directory_check: DirectoryCheck) -> DirectoryCheckResult:
    """What is found out of directories: there are those in /srv, whose first part below that names a workspace."""
    for directory in directory_check.directories:
        if not directory.startswith("/srv"):
            return DirectoryCheckResult(
                Problem(f"no {directory} here", {"cwd": directory, "reason": "none"}), None, ("/srv", None)
            )
    workspace = next((directory.split("/")[2] for directory in directory_check.directories if directory[5:]), None)
    return DirectoryCheckResult(workspace=workspace, instead=("/srv", None))


def make_policy(*, shared: bool = True, **changes: Any) -> Policy:
    """A policy for tests, with some of it changed."""
    values: dict[str, Any] = {
        "shared": shared,
        "serves": frozenset(),
        "login_hint": lambda _: HINT,
        "max_open_requests": 1000,
        "queued_prompts_per_session": 20,
        "max_waiting_size": 1_000_000,
        "journal_limit": 1_000_000,
    }
    return Policy(**(values | changes))


def encode(**message: Any) -> bytes:
    """A message; `jsonrpc` is added."""
    return json.dumps({"jsonrpc": "2.0"} | message).encode()


def places(mark: bytes) -> dict[str, Place]:
    """What a mark says, by session."""
    positions = json.loads(mark)["params"]["positions"]
    return {name: (place["epoch"], place["position"]) for name, place in positions.items()}


class Shelf:
    """An archive in memory: its journals must become what those of the sessions are, by what it is told alone."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self._limit = limit
        self.told: list[tuple[str, str]] = []
        """What it was told, by the names of its methods, and of which session."""
        self.shown: dict[Session, dict[str, str | None]] = {}
        """What a list shows of those that are kept."""
        self.journals: dict[Session, Journal] = {}

    def keep(self, session: Session) -> None:
        self.told.append(("keep", session.id))
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

    def write(self, session: Session, message: bytes, state: str | None) -> None:
        self.told.append(("write", session.id))
        self.journals[session].append(message, state)

    def extend(self, session: Session, messages: Sequence[bytes]) -> None:
        self.told.append(("extend", session.id))
        self.journals[session].extend(messages)

    def end_turn(self, session: Session) -> None:
        self.told.append(("end_turn", session.id))
        self.journals[session].turn_ended()

    def replace(self, session: Session) -> None:
        self.told.append(("replace", session.id))
        self.journals[session] = self._copy(session.journal)

    def settle(self, session: Session) -> None:
        """From here on it alone has that, if the session had it: a journal that is cleared already has no epoch."""
        self.told.append(("settle", session.id))
        if session in self.journals and session.journal.epoch:
            assert self.journals[session].runs() == session.journal.runs()

    def holds(self, session: Session) -> bool:
        return session in self.journals

    def loss(self, session: Session) -> Loss | None:
        return None if session in self.journals else "removed"

    def read(self, session: Session) -> Journal | None:
        """The journal of a session, another one each time."""
        journal = self.journals.get(session)
        return None if journal is None else self._copy(journal)

    def _copy(self, journal: Journal) -> Journal:
        copied = Journal(self._limit, journal.epoch)
        copied.restore(
            journal.aside(), journal.runs(), journal.position, truncated=journal.truncated, former=journal.former
        )
        return copied


class Party:
    """One side: what it says goes into the multiplexer, what it hears is in its inbox."""

    def __init__(self, scene: "Scene", receive: Callable[[bytes], None]) -> None:
        self._scene = scene
        self._receive = receive
        self.inbox: list[bytes] = []
        """What it has heard and nobody has taken yet, as bytes."""

    def say(self, text: bytes) -> None:
        """Send a message, verbatim."""
        self._receive(text)
        self._scene.deliver()

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.say(encode(**message))

    def heard(self) -> list[Any]:
        """Everything it has heard since the last look, decoded."""
        texts, self.inbox = self.inbox, []
        return [json.loads(text) for text in texts]

    def heard_text(self) -> list[bytes]:
        """The same, verbatim."""
        texts, self.inbox = self.inbox, []
        return texts

    def hears(self) -> Any:
        """The one message that it has heard since the last look, decoded."""
        (message,) = self.heard()
        return message


class Peer(Party):
    """A client."""

    def __init__(self, scene: "Scene", client: Client) -> None:
        super().__init__(scene, lambda text: scene.multiplexer.receive_from_client(client, text))
        self.client = client
        self.marks: list[dict[str, Place]] = []
        """What the marks said that it was sent."""
        self.seen: dict[str, Place] = {}
        """Where in its sessions it is, by counting: a mark says it, and each update adds one."""
        self._last_id = 100

    def receive(self, texts: list[bytes]) -> None:
        """Something is delivered to it."""
        for text in texts:
            if isinstance(text, Mark):
                assert self.client.counts
                self.marks.append(places(text))
                self.seen |= self.marks[-1]
                continue
            self.inbox.append(text)
            message = json.loads(text)
            name = message["params"]["sessionId"] if message.get("method") == "session/update" else None
            if name in self.seen:
                epoch, position = self.seen[name]
                self.seen[name] = epoch, position + 1

    def request(self, method: str, **params: Any) -> int:
        """Send a request under an id of its own, which is returned."""
        self._last_id += 1
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def gone(self) -> None:
        """It leaves for good."""
        self._scene.multiplexer.client_gone(self.client)
        self._scene.deliver()

    def away(self) -> None:
        """Its link is lost."""
        self._scene.multiplexer.client_away(self.client)
        self._scene.deliver()

    def dismissed(self, why: str = "it is slow") -> None:
        """The gateway ends its connection; what it hears then are the last words."""
        self._scene.multiplexer.dismiss(self.client, why, {"reason": "slow"})
        self._scene.deliver(leaving=self.client)

    def back(self) -> None:
        """Its link has come back."""
        self._scene.multiplexer.client_back(self.client)
        self._scene.deliver()

    def choose(self, question: Any, option: str) -> None:
        """Answer a question about permission."""
        self.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": option}})

    def fail(self, question: Any, code: int = -32602, message: str = "no dialog here") -> None:
        """Answer a question with an error."""
        self.send(id=question["id"], error={"code": code, "message": message})

    def cancel(self, session_id: str = "s") -> None:
        """End the turns of a session."""
        self.send(method="session/cancel", params={"sessionId": session_id})

    def initialize(self, **params: Any) -> None:
        """Get through `initialize`, the agent's part of it included where it is asked."""
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
        """Open a session, the agent's part included."""
        own = self.request("session/new", cwd=cwd, mcpServers=[])
        asked = self._scene.agent.hears()
        assert asked["method"] == "session/new", asked
        self._scene.agent.send(id=asked["id"], result={"sessionId": session_id, **result})
        assert self.hears()["id"] == own
        return session_id

    def comes_back(
        self, session_id: str = "s", method: str = "session/resume", more: dict[str, Any] | None = None, **said: Any
    ) -> int:
        """Take up a session that it had over another link; `said` is what it says of that."""
        meta = {"acp-gateway": said} | (more or {})
        return self.request(method, sessionId=session_id, cwd="/srv", mcpServers=[], _meta=meta)

    def load(self, session_id: str = "s") -> list[Any]:
        """Load a session that is live, and return what was heard up to now."""
        self.request("session/load", sessionId=session_id, cwd="/srv", mcpServers=[])
        return self.heard()

    def prompt(self, text: str = "hello", session_id: str = "s") -> int:
        """Send a prompt; its id."""
        return self.request("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}])


class Agent(Party):
    """The agent."""

    def takes(self, method: str) -> Any:
        """The one message that it has heard since the last look, which must be of this method."""
        message = self.hears()
        assert message["method"] == method, message
        return message

    def answer(self, request: Any, **result: Any) -> None:
        """Answer a request with a result."""
        self.send(id=request["id"], result=result)

    def update(self, text: str, session_id: str = "s") -> None:
        """Say something in a session."""
        content = {"type": "text", "text": text}
        self.send(
            method="session/update",
            params={"sessionId": session_id, "update": {"sessionUpdate": "agent_message_chunk", "content": content}},
        )

    def state(self, kind: str, session_id: str = "s", **members: Any) -> None:
        """Tell a session's state."""
        params = {"sessionId": session_id, "update": {"sessionUpdate": kind, **members}}
        self.send(method="session/update", params=params)

    def answers(self, method: str, **result: Any) -> Any:
        """Answer the one thing that it has heard, a request for `method`; returns that."""
        asked = self.hears()
        assert asked["method"] == method, asked
        self.send(id=asked["id"], result=result)
        return asked

    def refuses(self, method: str, code: int = -32603, message: str = "no", **members: Any) -> Any:
        """Answer the one thing that it has heard with an error."""
        asked = self.hears()
        assert asked["method"] == method, asked
        self.send(id=asked["id"], error={"code": code, "message": message, **members})
        return asked

    def ask_permission(self, raw_id: Any = 0, session_id: str = "s", options: tuple[str, ...] = ("yes", "no")) -> None:
        """Ask whether it may."""
        offered = [{"optionId": option, "name": option, "kind": "allow_once"} for option in options]
        params = {"sessionId": session_id, "toolCall": {"toolCallId": "call", "title": "do it"}, "options": offered}
        self.send(id=raw_id, method="session/request_permission", params=params)


class Scene:
    """A multiplexer and everybody around it."""

    def __init__(self, policy: Policy | None = None, registry: Registry | None = None, **welcome: Any) -> None:
        self.registry = registry or Registry("me")
        self.multiplexer = Multiplexer("agent", policy or make_policy(), self.registry)
        self.agent = Agent(self, lambda text: self.multiplexer.receive_from_agent([text]))
        self.welcome: dict[str, Any] = {"protocolVersion": 1, "agentCapabilities": {}} | welcome
        """What the agent answers to `initialize`."""
        self.peers: dict[Client, Peer] = {}
        self.notes: list[str] = []
        self.stopped: list[AgentHandle] = []
        """The processes that were to be stopped."""
        self.events: list[HookEvent] = []
        self.wanted: list[Session] = []
        """The sessions whose journal is to be read."""
        self.audit_events: list[AuditEvent] = []
        """For the audit."""
        self.look: Callable[[DirectoryCheck], DirectoryCheckResult] | None = look
        """Looks at directories at once; None where the test does."""
        self.directory_checks: list[DirectoryCheck] = []
        """The directories that nobody has looked at yet."""

    def join(
        self,
        name: str,
        identity: str = "me",
        role: Role = Role.CONTROLLER,
        *,
        only: str | None = None,
        guest: bool = False,
        workspaces: tuple[str, ...] | None = None,
        link: str | None = None,
        initialize: bool = True,
        **params: Any,
    ) -> Peer:
        """Another client, initialized unless it is told not to; one with a `link` counts."""
        client = Client(name, SessionScope(identity, only, guest, workspaces=workspaces), role, link=link)
        peer = self.peers[client] = Peer(self, client)
        self.multiplexer.attach(client)
        if initialize:
            peer.initialize(**params)
        return peer

    def deliver(self, leaving: Client | None = None) -> None:
        """Carry out what was decided; only one that is `leaving` may be gone and hear something."""
        deliveries = self.multiplexer.take_deliveries()
        self.agent.inbox += deliveries.to_agent
        self.stopped += deliveries.abandoned
        self.events += deliveries.events
        self.wanted += deliveries.wanted
        self.audit_events += deliveries.audit_events
        for client, texts in deliveries.to_clients.items():
            assert not client.gone or client is leaving
            self.peers[client].receive(list(texts))
        self.notes += self.multiplexer.take_notes()
        self.look_at(deliveries.directory_checks)

    def look_at(self, directory_checks: list[DirectoryCheck]) -> None:
        """Look at directories, or have the test do that."""
        if self.look is None:
            self.directory_checks += directory_checks
        elif directory_checks:
            for directory_check in directory_checks:
                self.multiplexer.directories_checked(directory_check, self.look(directory_check))
            self.deliver()

    def directory_check(self, findings: DirectoryCheckResult) -> None:
        """Somebody has looked at the directories that were named first."""
        self.multiplexer.directories_checked(self.directory_checks.pop(0), findings)
        self.deliver()

    def lose_agent(self, why: str = "the agent ended") -> None:
        """Its process ends."""
        self.multiplexer.agent_lost(why, {"exitCode": 1})
        self.deliver()

    def stop_agent(self) -> None:
        """It was stopped because nobody needed it."""
        self.multiplexer.agent_stopped()
        self.deliver()

    def end_turns(self) -> None:
        """It is about to be stopped."""
        self.multiplexer.end_turns()
        self.deliver()

    def retire(self) -> None:
        """Nothing more will happen here."""
        self.multiplexer.retire()
        self.deliver()

    def load_journal(self, journal: Journal | None) -> None:
        """The one journal that was wanted has been read."""
        (session,) = self.wanted
        self.wanted.clear()
        self.multiplexer.journal_loaded(session, journal)
        self.deliver()

    def session(self, session_id: str = "s") -> Session:
        """The session of that id that is live here."""
        (session,) = [session for session in self.multiplexer.sessions if session.id == session_id]
        return session

    def place(self, session_id: str = "s") -> Place:
        """How far a session is."""
        journal = self.session(session_id).journal
        return journal.epoch, journal.position

    def sessions_freed(self) -> None:
        """Another process has ended."""
        self.multiplexer.sessions_freed()
        self.deliver()

    def pass_time(self, now: float) -> None:
        """It is `now`."""
        self.multiplexer.pass_time(now)
        self.deliver()


def news_params() -> dict[str, Any]:
    """Parameters of `initialize` for who wants the gateway's own notifications."""
    return {"clientCapabilities": {"_meta": {"acp-gateway": {}}}}
