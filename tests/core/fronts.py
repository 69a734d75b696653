"""A door and a node in memory: two multiplexers with a link between them, the agent, and editors with their shims.

What is sent is on its way until it is carried on. Each has a disk, which has what was committed last; who is killed
starts with that. The agent ends with its node.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from acp_gateway.client.editor_state import Outcome
from acp_gateway.client.recovery import RecoveryState
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import EndLink, Output
from acp_gateway.core.sessions.far_places import decode_place, encode_place
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, Role, Session, SessionReach
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.journal import Journal
from tests.core.scene import Shelf, checks_of, encode, journals_of, look, make_policy
from tests.core.seen import faults_of

LIMIT = 1_000_000
Disk = tuple[str | None, Journal | None, bool]
"""A session on a disk: its place at the node, its history, and whether it is stored as open."""

ABILITIES: list[dict[str, Any]] = [
    {"loadSession": True},
    {"loadSession": True, "sessionCapabilities": {"resume": {}}},
    {"sessionCapabilities": {"resume": {}}},
]
"""Those of the agent: it can load a session, which tells all of it again, or resume it, or both."""

TAKES_FURTHER_PROMPTS: dict[str, Any] = {"loadSession": True, "_meta": {"claudeCode": {"promptQueueing": True}}}

TOLD = "[acp-gateway: "
"""Beginning of the lines that say that something may be missing."""

THIS_TURN = "this turn"
"""Part of the lines that a shim writes for a prompt that was lost."""


@dataclass(eq=False)
class Watcher:
    """An editor, with the core of a shim in front of it."""

    name: str
    role: Role = Role.CONTROLLER
    conversation: RecoveryState = field(default_factory=lambda: RecoveryState(tells_outages=True))
    client: Client | None = None
    incoming: deque[bytes] = field(default_factory=deque)
    """Messages of the door that have not arrived."""
    seen: list[str] = field(default_factory=list)
    """Texts of the updates."""
    answers: dict[Any, list[Any]] = field(default_factory=dict)
    """Results and errors, by the id of the request."""
    questions: list[int] = field(default_factory=list)
    """Ids of open permissions."""
    links: int = 0
    number: int = 10


def numbered(number: int) -> bytes:
    """Return an update with a number."""
    return chunk("agent_message_chunk", f"{number}")


def chunk(kind: str, text: str) -> bytes:
    """Return an update of this kind with a text."""
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    return encode(method="session/update", params={"sessionId": "s", "update": update})


def restore(disk: Disk | None, agent: str, registry: Registry, shelf: Shelf) -> None:
    """Register the session of an earlier process."""
    if disk is None:
        return
    far, journal, is_open = disk
    session = Session(agent, "s", "me", Journal(LIMIT))
    session.cwd = "/srv"
    session.keep_directory()
    session.far = decode_place(far)
    session.may_lack_end = is_open
    registry.restore(session)
    if is_open:
        shelf.open.add(session)
    if journal is not None:
        shelf.journals[session] = journal


def is_counted(text: str) -> bool:
    """Return whether a text is an update with a number, or says that something may be missing."""
    return text.isdigit() or (text.startswith(TOLD) and THIS_TURN not in text)


class Fronts:
    """A node, doors one after the other, and editors at the door."""

    def __init__(
        self, *watchers: Watcher, journals: bool = True, ability: dict[str, Any] = ABILITIES[0], limit: int = LIMIT
    ) -> None:
        self.journals = journals
        self.ability = ability
        self.limit = limit
        self.node_lives = 0
        self.node_disk: Disk | None = None
        self.start_node()
        self.prompts: deque[Any] = deque()
        """Prompts that the agent works on."""
        self.got: list[str] = []
        """Texts of all prompts that the agent has got."""
        self.steered: list[str] = []
        """Texts that the agent has taken into turns."""
        self.decided: list[Any] = []
        """The clients' responses to the agent's requests."""
        self.said = 0
        self.memory: list[bytes] = []
        """Updates that the agent replays."""
        self.lives = 0
        self.disk: Disk | None = None
        self.watchers = watchers
        self.start()

    # The door

    def start(self) -> None:
        """Start a door with the content of the disk."""
        self.lives += 1
        self.shelf = Shelf(self.limit)
        self.registry = Registry("me", self.shelf, f"door{self.lives}")
        self.front = Multiplexer("gpu/agent", make_policy(journal_limit=self.limit), self.registry)
        self.wanted: list[Session] = []
        self.new_link()
        restore(self.disk, "gpu/agent", self.registry, self.shelf)
        for watcher in self.watchers:
            watcher.client = None
            watcher.incoming.clear()
            self.connect(watcher)

    def new_link(self) -> None:
        """Begin a link to the node."""
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.links = getattr(self, "links", 0) + 1
        self.far_client = Client(f"door{self.links}", SessionReach("me"), link=f"far{self.links}")
        self.node.attach(self.far_client)
        self.front.agent_linked(self.far_client.link)

    def start_node(self) -> None:
        """Start a node with the content of its disk."""
        self.node_lives += 1
        self.node_shelf = Shelf(self.limit)
        registry = Registry("me", self.node_shelf, f"node{self.node_lives}")
        self.node = Multiplexer("agent", make_policy(journal_limit=self.limit), registry)
        restore(self.node_disk, "agent", registry, self.node_shelf)

    def kill_node(self, sent: int = 1000) -> None:
        """Kill the node and the agent, and start it again; what is on its way to the door arrives or does not.

        Of the messages that have not arrived there, so many may have been sent.
        """
        self.prompts.clear()
        self.start_node()
        self.front.agent_lost("the link has ended", {"reason": "agent_ended"}, unsent=list(self.up)[sent:])
        self.new_link()
        self.deliver_front()

    def commit_node(self) -> None:
        """Write what the node has kept to its disk."""
        for session, journal in self.node_shelf.journals.items():
            self.node_disk = None, self.node_shelf._copy(journal), session in self.node_shelf.open

    def kill(self) -> None:
        """Kill the door, and start it again."""
        self.node.client_away(self.far_client)
        self.deliver_node()
        self.start()

    def lose_link(self, sent: int = 1000) -> None:
        """End the link at the door; the node keeps it. Another one is made when it is needed.

        Of the messages that have not arrived, so many may have been sent.
        """
        self.node.client_away(self.far_client)
        self.deliver_node()
        self.front.agent_lost("the link has ended", {"reason": "agent_ended"}, unsent=list(self.up)[sent:])
        self.new_link()
        self.deliver_front()

    def commit(self) -> None:
        """Write what the door has kept to its disk."""
        for session, journal in self.shelf.journals.items():
            copied = self.shelf._copy(journal) if self.journals else None
            self.disk = encode_place(session.far), copied, session in self.shelf.open

    def deliver_front(self) -> None:
        output = self.front.take_output()
        self.up += output.to_agent
        self.wanted += journals_of(output)
        for watcher in self.watchers:
            if watcher.client is not None:
                watcher.incoming += output.to_clients.get(watcher.client, ())
        self.check(self.front, output)
        for session in self.wanted[:]:
            self.wanted.clear()
            self.commit()
            self.front.journal_loaded(session, self.shelf.read(session) if self.journals else None)
            self.deliver_front()

    def check(self, multiplexer: Multiplexer, output: Output) -> None:
        for check in checks_of(output):
            multiplexer.directories_checked(check, look(check))
            if multiplexer is self.front:
                self.deliver_front()
            else:
                self.deliver_node()

    # The node

    def deliver_node(self) -> None:
        output = self.node.take_output()
        for session in journals_of(output):
            self.commit_node()
            self.node.journal_loaded(session, self.node_shelf.read(session))
            self.deliver_node()
        for text in output.to_agent:
            message = json.loads(text)
            match message.get("method"):
                case "initialize":
                    steers = {"steering": {"supported": True}}
                    result: Any = {"protocolVersion": 1, "agentCapabilities": self.ability, "_meta": steers}
                    self.node.receive_from_agent([encode(id=message["id"], result=result)])
                    self.deliver_node()
                case "session/new":
                    self.node.receive_from_agent([encode(id=message["id"], result={"sessionId": "s"})])
                    self.deliver_node()
                case "session/load" | "session/resume":
                    if message["method"] == "session/load":
                        self.node.receive_from_agent(list(self.memory))
                    self.node.receive_from_agent([encode(id=message["id"], result={})])
                    self.deliver_node()
                case "session/prompt":
                    assert "_meta" not in message["params"]
                    self.prompts.append(message["id"])
                    self.got.append(message["params"]["prompt"][0]["text"])
                    self.memory.append(chunk("user_message_chunk", self.got[-1]))
                case "_session/steering":
                    outcome = {"outcome": "injected" if self.prompts else "promptRequired"}
                    self.steered += [message["params"]["prompt"][0]["text"]] if self.prompts else []
                    self.node.receive_from_agent([encode(id=message["id"], result=outcome)])
                    self.deliver_node()
                case None:
                    self.decided.append(message)
        self.down += output.to_clients.get(self.far_client, ())
        self.check(self.node, output)
        for effect in output.effects:
            if isinstance(effect, EndLink):
                assert effect.client is not self.far_client
                self.node.client_gone(effect.client)
                self.deliver_node()

    def carry(self, up: int = 1000, down: int = 1000) -> None:
        """Carry messages over the link, first to the node."""
        for _ in range(min(up, len(self.up))):
            self.node.receive_from_client(self.far_client, self.up.popleft())
            self.deliver_node()
        batch = [self.down.popleft() for _ in range(min(down, len(self.down)))]
        self.front.receive_from_agent(batch)
        self.deliver_front()

    def speak(self, count: int = 1) -> None:
        """Let the agent tell numbered updates."""
        for _ in range(count):
            self.said += 1
            self.memory.append(numbered(self.said))
            self.node.receive_from_agent([self.memory[-1]])
        self.deliver_node()

    def state(self, mode: str) -> None:
        """Let the agent tell its mode."""
        update = {"sessionUpdate": "current_mode_update", "currentModeId": mode}
        self.node.receive_from_agent([encode(method="session/update", params={"sessionId": "s", "update": update})])
        self.deliver_node()

    def end_turn(self) -> None:
        """End the oldest turn; its stop reason is the text of its prompt."""
        text = self.got[len(self.got) - len(self.prompts)]
        self.node.receive_from_agent([encode(id=self.prompts.popleft(), result={"stopReason": f"end of {text}"})])
        self.deliver_node()

    def ask(self) -> None:
        """Let the agent ask for a permission."""
        options = [{"optionId": "yes", "name": "yes", "kind": "allow_once"}]
        params = {"sessionId": "s", "toolCall": {"toolCallId": "c", "title": "do it"}, "options": options}
        self.node.receive_from_agent([encode(id=77, method="session/request_permission", params=params)])
        self.deliver_node()

    # Editors

    def connect(self, watcher: Watcher) -> None:
        """Connect an editor over a new link."""
        lost = "" if watcher.links == 0 else f"{watcher.name}{watcher.links}"
        watcher.links += 1
        watcher.incoming.clear()
        watcher.client = Client(watcher.name, SessionReach("me"), watcher.role, link=f"{watcher.name}{watcher.links}")
        self.front.attach(watcher.client)
        if watcher.conversation.started:
            self.do(watcher, watcher.conversation.begin_recovery(lost, [], "lost"))
        else:
            self.request(watcher, 0, "initialize", protocolVersion=1)

    def lose(self, watcher: Watcher) -> None:
        """Lose the link of an editor for good; it comes back over another one."""
        assert watcher.client is not None
        self.front.client_gone(watcher.client)
        self.deliver_front()
        self.connect(watcher)

    def request(self, watcher: Watcher, number: int, method: str, **params: Any) -> None:
        self.do(watcher, watcher.conversation.from_editor([encode(id=number, method=method, params=params)]))

    def prompt(self, watcher: Watcher) -> int:
        """Send a prompt whose text tells its sender, and return its id."""
        watcher.number += 1
        text = f"{watcher.name} {watcher.number}"
        self.request(watcher, watcher.number, "session/prompt", sessionId="s", prompt=[{"type": "text", "text": text}])
        return watcher.number

    def choose(self, watcher: Watcher) -> None:
        """Answer the oldest open permission."""
        answer = encode(id=watcher.questions.pop(0), result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        self.do(watcher, watcher.conversation.from_editor([answer]))

    def do(self, watcher: Watcher, outcome: Outcome) -> None:
        for text in outcome.to_editor:
            self.editor_hears(watcher, json.loads(text))
        for text in outcome.to_gateway:
            assert watcher.client is not None
            self.front.receive_from_client(watcher.client, text)
        self.deliver_front()

    def editor_hears(self, watcher: Watcher, message: dict[str, Any]) -> None:
        match message:
            case {"method": "session/update", "params": {"update": {"content": {"text": text}}}}:
                watcher.seen.append(text)
            case {"method": "session/request_permission", "id": number}:
                watcher.questions.append(number)
            case {"method": "$/cancel_request", "params": {"requestId": number}}:
                # The editor may have answered by then.
                watcher.questions = [other for other in watcher.questions if other != number]
            case {"id": number} if "method" not in message:
                watcher.answers.setdefault(number, []).append(message.get("result", message.get("error")))

    def arrive(self, watcher: Watcher, count: int = 1000) -> None:
        """Let messages of the door arrive at an editor."""
        batch = [watcher.incoming.popleft() for _ in range(min(count, len(watcher.incoming)))]
        if batch:
            recovering = watcher.conversation.recovering
            self.do(watcher, watcher.conversation.from_gateway(batch))
            if recovering and watcher.conversation.failure is not None:
                # The agent could not be started: the next message tries again.
                for text in watcher.conversation.give_up("no agent", "agent_ended"):
                    self.editor_hears(watcher, json.loads(text))
                self.lose(watcher)

    def settle(self) -> None:
        """Let everything arrive that is on its way, and what follows from it."""
        for _ in range(6):
            if self.front.is_missed:
                self.front.reach_again()
                self.deliver_front()
            self.carry()
            for watcher in self.watchers:
                self.arrive(watcher)

    def open(self, commit: bool = True) -> None:
        """Open the session by the first editor; the others join it."""
        self.settle()
        first, *others = self.watchers
        self.request(first, 1, "session/new", cwd="/srv", mcpServers=[])
        self.settle()
        for other in others:
            self.request(other, 1, "session/load", sessionId="s", cwd="/srv", mcpServers=[])
            self.settle()
        assert all("code" not in watcher.answers[1][0] for watcher in self.watchers)
        if commit:
            self.commit()

    # What is to be

    @property
    def session(self) -> Session:
        """The session at the door."""
        (session,) = self.front.sessions
        return session

    def history(self, multiplexer: Multiplexer) -> list[str]:
        """Return the texts in the history of the session at a gateway."""
        (session,) = multiplexer.sessions
        updates = [json.loads(message)["params"]["update"] for message in session.journal.replay()]
        return [update["content"]["text"] for update in updates if "content" in update]

    @property
    def speaks(self) -> bool:
        """True while the agent has the session open."""
        return any(session.state is SessionState.OPEN for session in self.node.sessions)

    def check_told(self) -> None:
        """Check that each editor has seen each update at most once and in order, and was told where any is missing."""
        truth = [int(text) for text in self.history(self.node) if text.isdigit()]
        for watcher in self.watchers:
            seen = [None if text.startswith(TOLD) else int(text) for text in watcher.seen if is_counted(text)]
            assert not faults_of(seen, truth), (watcher.name, watcher.seen, truth)

    def check_all(self) -> None:
        """Check that each editor has seen each update once and in order, and that the door has the node's history.

        The editor that has sent a prompt may be told it.
        """
        at_node = self.history(self.node)
        assert self.history(self.front) == at_node
        for watcher in self.watchers:
            assert not watcher.conversation.recovering
            own = f"{watcher.name} "
            seen = [text for text in watcher.seen if not text.startswith(own) and THIS_TURN not in text]
            assert seen == [text for text in at_node if not text.startswith(own)], (watcher.name, seen, at_node)

    def reasons(self, watcher: Watcher, number: int) -> list[Any]:
        """Return the stop reasons in the answers to a prompt."""
        return [answer.get("stopReason", answer) for answer in watcher.answers.get(number, [])]
