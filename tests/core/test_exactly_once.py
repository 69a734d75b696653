"""A path that is cut after any message, and a gateway that is restarted then: each update comes exactly once.

Editors of both versions on agents of both, each behind the core of a shim. What the editor gets over both links is
compared with what it gets without a cut. Marks count as messages here: a cut may come between an update and its mark.
"""

import json
from typing import Any

import pytest

from acp_gateway.client.editor_state import Outcome
from acp_gateway.client.recovery import RecoveryState
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, Session, SessionReach
from acp_gateway.versions.agent_edge import AgentEdge
from tests.core.test_same_version import END, NEW, TURN, told
from tests.fuzz.effort import some
from tests.kit.scene import Shelf, checks_of, encode, journals_of, look, make_policy
from tests.kit.versions import content, own, text, update

Json = Any

OLD = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True, "sessionCapabilities": {"resume": {}}}}
MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "do", "name": "Do"}]}

OLD_TURN = [
    update("user_message_chunk", content=text("go")),
    update("agent_thought_chunk", content=text("hm")),
    update("agent_message_chunk", content=text("one")),
    update("agent_message_chunk", content=text("two")),
    update("session_info_update", title="T", **own(state="requires_action")),
    update("current_mode_update", currentModeId="do"),
    update("_acp-gateway/original"),
    update("tool_call", toolCallId="t", title="T", kind="execute", status="pending"),
    update("tool_call_update", toolCallId="t", **own(terminal={"terminalId": "x", "data": "abc"})),
    update("tool_call_update", toolCallId="t", status="in_progress", **own(terminal={"terminalId": "x", "data": "d"})),
    update(
        "tool_call_update",
        toolCallId="t",
        content=[content("out", terminal={"terminalId": "x"}), content("put", terminal={"terminalId": "y"})],
    ),
    update("plan", entries=[], **own(plans=["p", "q"], entries=0)),
    update("plan", entries=[], **own(plans=["r"], entries=0)),
    update("agent_message_chunk", content=text("three")),
]
"""A turn of an agent of version 1; some of its updates are several in version 2, as those of an earlier gateway are."""

LATER = {
    1: [update("agent_message_chunk", content=text("four"))],
    2: [told("agent_message_chunk", messageId="m4", content=text("four"))],
}

STATES = {"state_update", "session_info_update", "config_option_update"}
"""Updates of a state: only the last value counts, which may be told again."""


class Editor:
    """An editor with the core of a shim, over one link after another."""

    def __init__(self, name: str, version: int) -> None:
        self.name, self.version = name, version
        self.shim = RecoveryState()
        self.links = 0
        self.client: Client | None = None
        self.left: int | None = None
        """Number of messages that arrive before the path is lost; None for all."""
        self.arrived = self.joined = 0
        """Messages that have arrived, marks included: all, and those until it had the session."""
        self.seen: list[Json] = []
        """Updates that the editor got."""
        self.number = 0

    def link(self) -> str | None:
        """Name of its present link."""
        return f"{self.name}{self.links}"

    def hears(self, text: bytes) -> None:
        message = json.loads(text)
        if message.get("method") == "session/update":
            self.seen.append(message["params"]["update"])

    def shown(self) -> list[Json]:
        """Return the updates without states, and without its own prompts if the editor shows them by itself."""
        found = []
        for shown in self.seen:
            kind = shown["sessionUpdate"]
            if kind in STATES:
                continue
            if not kind.startswith("user_message"):
                found.append(shown)
                continue
            blocks = [shown["content"]] if kind.endswith("chunk") else shown["content"]
            words = [block["text"] for block in blocks]
            # An editor of version 1 has shown its own prompt itself, and may get it once more.
            found += [("user", each) for each in words if self.version == 2 or not each.startswith(self.name)]
        return found

    def states(self) -> Json:
        """The last states that the editor was told: of the agent, and of options."""
        last = {shown["sessionUpdate"]: shown for shown in self.seen if shown["sessionUpdate"] in STATES}
        return last.get("state_update", {}).get("state"), last.get("config_option_update")


class World:
    """Gateways, one after the other, with one agent and the editors of a session."""

    def __init__(self, agent: int, *editors: Editor) -> None:
        self.version, self.editors = agent, editors
        self.lives = 0
        self.shelf = Shelf()
        self.start()

    def start(self) -> None:
        """Start a gateway with the content of the disk."""
        self.lives += 1
        before, self.shelf = self.shelf, Shelf()
        registry = Registry("me", self.shelf, f"run{self.lives}")
        for stored in before.journals:
            session = Session("agent", stored.id, "me", before.journals[stored].__class__(1_000_000))
            session.cwd = "/srv"
            session.keep_directory()
            session.may_lack_end = stored in before.open
            registry.restore(session)
            journal = before.read(stored)
            assert journal is not None
            self.shelf.journals[session] = journal
        self.gateway = Multiplexer("agent", make_policy(), registry)
        self.edge = AgentEdge()
        self.prompts: list[Json] = []

    def restart(self, count: int | None = None) -> None:
        """Stop the gateway, start another, and let so many messages arrive at each editor, or all."""
        self.gateway.shut_down()
        self.gateway.take_output()
        self.start()
        for editor in self.editors:
            editor.left = count
            self.connect(editor)
            assert count is not None or not editor.shim.recovering

    # Messages

    def connect(self, editor: Editor) -> None:
        lost = f"{editor.name}{editor.links}"
        editor.links += 1
        editor.client = Client(editor.name, SessionReach("me"), link=editor.link())
        self.gateway.attach(editor.client)
        if editor.shim.started:
            self.do(editor, editor.shim.begin_recovery(lost, [], "lost"))
        else:
            said: Json = {"info": {"name": "e", "version": "1"}, "capabilities": {}} if editor.version == 2 else {}
            self.ask(editor, "initialize", protocolVersion=editor.version, **said)

    def ask(self, editor: Editor, method: str, **params: Any) -> None:
        editor.number += 1
        self.do(editor, editor.shim.from_editor([encode(id=editor.number, method=method, params=params)]))

    def do(self, editor: Editor, outcome: Outcome) -> None:
        for one in outcome.to_editor:
            editor.hears(one)
        for one in outcome.to_gateway:
            assert editor.client is not None
            self.gateway.receive_from_client(editor.client, one)
        self.deliver()

    def deliver(self) -> None:
        output = self.gateway.take_output()
        for one in output.to_agent:
            self.to_agent(one)
        for session in journals_of(output):
            self.gateway.journal_loaded(session, self.shelf.read(session))
            self.deliver()
        for check in checks_of(output):
            self.gateway.directories_checked(check, look(check))
            self.deliver()
        for editor in self.editors:
            for message in output.to_clients.get(editor.client, ()) if editor.client else ():
                if editor.left == 0:
                    break
                editor.left = None if editor.left is None else editor.left - 1
                editor.arrived += 1
                self.do(editor, editor.shim.from_gateway([message]))

    def to_agent(self, message: bytes) -> None:
        out = self.edge.to_agent(message)
        self.gateway.receive_from_agent(out.to_client)
        for one in map(json.loads, out.to_agent):
            if one["method"] == "initialize" and one["params"]["protocolVersion"] != self.version:
                self.agent_says(encode(id=one["id"], error={"code": -32602, "message": "only 2"}))
            elif one["method"] == "initialize":
                self.agent_says(encode(id=one["id"], result=NEW if self.version == 2 else OLD))
            elif one["method"] == "session/prompt":
                self.prompts.append(one["id"])
            elif "id" in one:
                result: Json = {"configOptions": []} if self.version == 2 else {"modes": MODES}
                if one["method"] == "session/new":
                    result["sessionId"] = "s"
                self.agent_says(encode(id=one["id"], result=result))
        self.deliver()

    def agent_says(self, *messages: bytes) -> None:
        out = self.edge.from_agent(*messages)
        self.gateway.receive_from_agent(out.to_client)
        for one in out.to_agent:
            self.to_agent(one)
        self.deliver()

    # The conversation

    def prompt(self, editor: Editor, words: str, message_id: str, turn: list[bytes], *, together: bool) -> None:
        """Have an editor prompt, and the agent say its turn, in one batch or message by message."""
        self.ask(editor, "session/prompt", sessionId="s", prompt=[text(words), text(f"{words}!")])
        (number,) = self.prompts
        self.prompts.clear()
        if self.version == 2:
            self.agent_says(encode(id=number, result={"messageId": message_id}))
        for batch in [turn] if together else [[message] for message in turn]:
            self.agent_says(*batch)
        if self.version == 1:
            self.agent_says(encode(id=number, result={"stopReason": "end_turn"}))

    def talk(self, *, together: bool) -> None:
        """Bob and Ann prompt in turn."""
        ann, bob = self.editors
        for editor in (bob, ann):
            self.connect(editor)
        self.ask(bob, "session/new", cwd="/srv", mcpServers=[])
        if ann.version == 2:
            self.ask(ann, "session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
        else:
            self.ask(ann, "session/load", sessionId="s", cwd="/srv", mcpServers=[])
        ann.joined = ann.arrived
        turn = OLD_TURN if self.version == 1 else [*(message for message in TURN if len(message) < 1000), END]
        self.prompt(bob, "go", "u", turn, together=together)
        echo = told("user_message", messageId="u2", content=[text("ann"), text("ann!")])
        said = LATER[1] if self.version == 1 else [echo, told("state_update", state="running"), *LATER[2], END]
        if self.version == 1:
            said = [*(update("user_message_chunk", content=text(words)) for words in ("ann", "ann!")), *said]
        self.prompt(ann, "ann", "u2", said, together=together)
        self.prompt(bob, "more", "u3", LATER[1] if self.version == 1 else [*LATER[2], END], together=together)


def cut(agent: int, editor: int, *counts: int, together: bool) -> Editor:
    """Return an editor whose path is lost after so many messages, and for whom the gateway is restarted each time."""
    ann = Editor("ann", editor)
    world = World(agent, ann, Editor("bob", 1))
    ann.left = counts[0] if counts else None
    world.talk(together=together)
    for count in counts[1:]:
        world.restart(count)
    world.restart()
    return ann


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("agent", [1, 2], ids=["agent 1", "agent 2"])
@pytest.mark.parametrize("editor", [1, 2], ids=["editor 1", "editor 2"])
def test_an_update_comes_once_wherever_the_path_is_cut_before_a_restart(
    editor: int, agent: int, *, together: bool
) -> None:
    whole = cut(agent, editor, together=together)
    expected = whole.shown(), whole.states()
    assert len(whole.shown()) > 10
    for count in some(range(whole.joined, whole.arrived), 5):
        ann = cut(agent, editor, count, together=together)
        assert (ann.shown(), ann.states()) == expected, f"cut after {count} messages"


@pytest.mark.parametrize("agent", [1, 2], ids=["agent 1", "agent 2"])
@pytest.mark.parametrize("editor", [1, 2], ids=["editor 1", "editor 2"])
def test_an_update_comes_once_wherever_the_recovery_is_cut_too(editor: int, agent: int) -> None:
    whole = cut(agent, editor, together=True)
    for count in range(whole.joined, whole.arrived, 11):
        for other in some(range(cut(agent, editor, count, together=True).arrived - count), 7):
            ann = cut(agent, editor, count, other, together=True)
            assert (ann.shown(), ann.states()) == (whole.shown(), whole.states()), f"cut after {count} and {other}"
