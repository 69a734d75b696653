"""A hub with clients and agents in memory, for the tests of hubs and of what is around them."""

import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.core.agent_state import Policy
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import AuditEvent, DropWorktree, HookEvent, WriteRule
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Role, Session, SessionReach
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.agent.versions import AgentMessages
from acp_gateway.gateway.events.recording import Tape
from acp_gateway.gateway.hub.agent_supervisor import RunAgent
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.resumption import ResumableLink, ResumeClaim, claim, serve_resumed
from acp_gateway.protocol.link_messages import Mark
from acp_gateway.transports.link import Link
from acp_gateway.transports.maintained import Charge, MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason, MessageStream
from tests.kit.doubles import FAIL, INITIALIZE, TIMEOUT, Editor, FakeAgent, FakeAgents, FragileStream, encode
from tests.kit.scene import make_policy

HIGH_WATER = 10_000

OUTBOX_LIMIT = 50_000

WINDOW = 100_000
"""Of links that resume, for both sides."""

UPDATE = 1000
"""Bytes of text in an update."""

LOADS: dict[str, Any] = {"loadSession": True}

HOUR = 3600.0

ADMISSION = Grant(Access("me", None), ConnectRequest(), "fake", SessionReach("me"), Role.CONTROLLER)
"""As what those were let in whose links can be resumed."""

OPEN: dict[str, Any] = {"cwd": "/srv", "mcpServers": []}
"""Parameters of `session/new`."""


class Peer(Editor):
    """A client of a hub, from the outside; `ours` is the hub's end of its connection."""

    stream: MaintainedStream

    def __init__(self, client: Client) -> None:
        stream, ours = memory_message_stream_pair()
        super().__init__(stream)
        self.client = client
        self.tape: Tape | None = None
        """Its recording."""
        self.ours = FragileStream(ours)
        self.scope = trio.CancelScope()
        self.gone = trio.Event()
        self.disconnect: Disconnect | None = None
        """The result of `Hub.serve`."""

    @property
    def closed_with(self) -> tuple[CloseReason, str] | None:
        """The close reason that the hub gave."""
        return self.ours.closed_with

    async def send_request(self, raw_id: Any, method: str, **params: Any) -> None:
        """Send a request and don't wait for the response."""
        await self.send(id=raw_id, method=method, params=params)

    async def load(self, session_id: str = "s") -> list[dict[str, Any]]:
        """Load a session; all that is heard until then, the response being the last."""
        await self.send_request("load", "session/load", sessionId=session_id, **OPEN)
        heard = [await self.receive()]
        while heard[-1].get("id") != "load":
            heard.append(await self.receive())
        return heard

    async def waiting(self) -> list[dict[str, Any]]:
        """Everything that comes until there is nothing more."""
        heard: list[bytes] = []
        await wait_all_tasks_blocked()
        while peek(self.stream):
            heard += await self.stream.receive_batch()
            await wait_all_tasks_blocked()
        return [json.loads(message) for message in heard]


class ResumingPeer(Peer):
    """A client whose link can be resumed. It confirms what it takes."""

    def __init__(self, scene: "Scene", client: Client) -> None:
        super().__init__(client)
        assert client.link is not None
        # What there is to send leaves at once, within the window.
        self.link = Link(window=WINDOW, high_water=1 << 40, receive_window=WINDOW)
        self.link.connect(self.stream)
        self.ticket = ResumableLink(ADMISSION, scene.hub, client, client.link)
        """Its entry in a link registry."""
        self.marks: list[Any] = []
        """The positions that it was told, in order."""
        self.releases: list[trio.Event] = []
        """For each connection that resumed its link, set when its task has ended."""
        self.ends = [self.ours]
        """The hub's ends of its connections."""
        self._scene = scene
        self._inbox: deque[bytes] = deque()

    async def send(self, **message: Any) -> None:
        self.link.send([encode(message)])

    async def receive(self) -> dict[str, Any]:
        while not self._inbox:
            for message in await self.link.receive_batch():
                if isinstance(message, Mark):
                    self.marks.append(json.loads(message.text)["params"]["positions"])
                else:
                    self._inbox.append(message)
            self.link.acknowledge()
        decoded: dict[str, Any] = json.loads(self._inbox.popleft())
        return decoded

    async def waiting(self) -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []

        async def listen() -> None:
            while True:
                heard.append(await self.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return heard

    async def lose(self) -> None:
        """The connection is cut, if it is there still: what is on its way is lost, and both ends notice."""
        self.link.disconnect()
        self.ours.receive_error = trio.BrokenResourceError("cut")
        if self.ours.closed_with is None:
            self.stream.send_nowait([FAIL])
        await wait_all_tasks_blocked()

    async def resume(self, ours: Callable[[MaintainedStream], FragileStream] = FragileStream) -> None:
        """Take the link up again over another connection; the hub may take the old one for a good one still."""
        resumption = claim(self.ticket, self.link.received)
        self.stream, end = memory_message_stream_pair()
        self.ours = ours(end)
        self.ends.append(self.ours)
        self.releases.append(trio.Event())
        self.link.disconnect()
        self.link.connect(self.stream, resumption.received)
        self._scene.nursery.start_soon(self._resumed, self.ours, resumption, self.releases[-1])
        await wait_all_tasks_blocked()

    async def _resumed(self, stream: MaintainedStream, resumption: ResumeClaim, over: trio.Event) -> None:
        try:
            await serve_resumed(stream, resumption)
        finally:
            over.set()


def peek(stream: MessageStream) -> list[bytes]:
    """Return the messages that have arrived at a stream in memory."""
    inbox: list[bytes] = stream.inbox  # type: ignore[attr-defined] # Its class is private to its module.
    return inbox


class FakeServices:
    """Services that record what a hub asks of them; journals are absent, and all directories are allowed."""

    def __init__(self) -> None:
        self.written: list[tuple[Hub, WriteRule]] = []
        self.stopped: list[AgentHandle] = []
        """Handles of other agents that were to be stopped."""
        self.events: list[HookEvent] = []
        self.audit_events: list[AuditEvent] = []
        self.pauses: dict[Client, float] = {}
        """Seconds to pause reading a client, once, at its next charge."""
        self.paced: list[tuple[str, int]] = []
        """Charged clients with their numbers of messages."""
        self.charged: list[tuple[str, int, float, int]] = []
        """Charged clients with their bytes, seconds and frames."""
        self.agent_pause = 0.0
        """Seconds to pause reading the agent at each charge."""
        self.agent_seconds: list[float] = []
        """Seconds of the event loop that the agent was charged for."""
        self.grown = 0
        """Sum of the sizes that were kept."""
        self.checks: list[tuple[Hub, DirectoryCheck]] | None = None
        """Directory checks that wait for their results; None to answer each at once."""
        self.dropped: list[str] = []
        """Branches of working trees that were to be removed."""

    def notify(self, event: HookEvent) -> None:
        self.events.append(event)

    def audit(self, event: AuditEvent) -> None:
        self.audit_events.append(event)

    def drop_worktree(self, hub: Hub, dropped: DropWorktree) -> None:
        self.dropped.append(dropped.worktree.branch)

    def load_journal(self, hub: Hub, session: Session) -> None:
        hub.journal_loaded(session, None)

    def check_directories(self, hub: Hub, check: DirectoryCheck) -> None:
        if self.checks is None:
            hub.directories_checked(check, DirectoryCheckResult())
        else:
            self.checks.append((hub, check))

    def stop_unused(self, handle: AgentHandle, *, left: bool = False) -> None:
        self.stopped.append(handle)

    def write_rule(self, hub: Hub, effect: WriteRule) -> None:
        self.written.append((hub, effect))

    def store_prompt(self, hub: Hub, key: str) -> None:
        hub.prompt_stored(key)

    def memory_grew(self, size: int) -> None:
        self.grown += size

    def rate_limiter(self, client: Client) -> Charge:
        def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
            self.paced.append((client.name, messages))
            self.charged.append((client.name, size, seconds, frames))
            return self.pauses.pop(client, 0.0)

        return charge

    def agent_limiter(self, hub: Hub) -> Charge:
        def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
            self.agent_seconds.append(seconds)
            return self.agent_pause

        return charge


class Scene:
    """A hub, its clients, and its agents."""

    def __init__(
        self,
        *,
        shared: bool = False,
        run_agent: RunAgent | None = None,
        agents: FakeAgents | None = None,
        registry: Registry | None = None,
        **options: float,
    ) -> None:
        self.agents = agents or FakeAgents()
        self.agent = self.agents.next
        """The first one."""
        self.output = FragileStream(self.agent.agent.messages.stream)
        self.agent.agent.messages = AgentMessages(self.output)
        self.registry = registry or Registry("me")
        self.services = FakeServices()
        self.time = self.tick = 0.0
        """Time of the hub's clock, and its advance at each reading."""
        self.day = 0.0
        """Time of day, in seconds since 1970."""
        policy = hub_policy(shared=shared, **options)
        self.hub = Hub(
            "fake",
            policy=policy,
            run_agent=run_agent or self.agents.run,
            multiplexer=Multiplexer("fake", policy, self.registry),
            services=self.services,
            receive_window=WINDOW,
            clock=self._tell_time,
            wall_clock=lambda: self.day,
        )
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.editor: Peer
        """The first client."""
        self.nursery: trio.Nursery

    def _tell_time(self) -> float:
        self.time += self.tick
        return self.time

    async def run(self) -> None:
        try:
            with self.scope:
                await self.hub.run()
        finally:
            self.ended.set()

    def join(
        self, name: str = "me", identity: str = "me", *, role: Role = Role.CONTROLLER, guest: bool = False
    ) -> Peer:
        """Another client, which has said nothing yet; a guest is one of session "s"."""
        peer = Peer(Client(name, SessionReach(identity, "s" if guest else None, guest), role))
        self.nursery.start_soon(self._serve, peer)
        return peer

    def travel(self, name: str, **how: Any) -> ResumingPeer:
        """A client whose link can be resumed, and which has said nothing yet."""
        peer = ResumingPeer(self, Client(name, SessionReach("me"), link=f"the link of {name}", **how))
        self.nursery.start_soon(self._serve, peer)
        return peer

    async def _serve(self, peer: Peer) -> None:
        try:
            with peer.scope:
                peer.disconnect = await self.hub.serve(peer.ours, peer.client, peer.tape)
        finally:
            peer.gone.set()

    async def initialize(self, peer: Peer, **capabilities: Any) -> None:
        """Initialize the agent and its first client."""
        await peer.send_request(0, "initialize", **INITIALIZE)
        await self.agent.answer_initialize(**capabilities)
        assert (await peer.receive())["id"] == 0

    async def enter(self, name: str, **how: Any) -> Peer:
        """Another client of an agent that is initialized; it takes part in session "s"."""
        peer = self.join(name, **how)
        await peer.initialize()
        await peer.load()
        return peer

    async def open_session(self, peer: Peer, session_id: str = "s") -> None:
        await peer.send_request("new", "session/new", **OPEN)
        await self.agent.answer("session/new", {"sessionId": session_id})
        assert (await peer.receive())["id"] == "new"

    async def open_turn(self, peer: Peer | None = None, agent: FakeAgent | None = None) -> Any:
        """Begin a turn in session "s"; the id that the agent knows the prompt by."""
        peer, agent = peer or self.editor, agent or self.agent
        await peer.send_request("turn", "session/prompt", sessionId="s", prompt=[])
        request = await agent.receive()
        assert request["method"] == "session/prompt"
        return request["id"]

    async def take_turn(self) -> None:
        """Have a whole turn in session "s"."""
        asked = await self.open_turn()
        await self.agent.send(id=asked, result={"stopReason": "end_turn"})
        assert (await self.editor.receive())["id"] == "turn"

    async def flow(self, count: int, size: int = UPDATE, first: int = 0) -> None:
        """Have the agent say something so many times, each once the one before was seen to."""
        for number in range(first, first + count):
            self.agent.stream.send_nowait([update(number, size)])
            await wait_all_tasks_blocked()


def hub_policy(**options: Any) -> Policy:
    """A policy whose limits nothing reaches by itself."""
    values: dict[str, Any] = {
        "write_high_water": HIGH_WATER,
        "outbox_limit": OUTBOX_LIMIT,
        "idle_timeout": math.inf,
        "initialize_timeout": math.inf,
        "resume_window": WINDOW,
        "ping_interval": math.inf,
        "away_limit": OUTBOX_LIMIT,
        "away_grace": math.inf,
        "away_grace_idle": math.inf,
    }
    return make_policy(**(values | options))


def update(number: int = 0, size: int = 0) -> bytes:
    """Something that the agent says in session "s"."""
    content = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * size}}
    return encode({"method": "session/update", "params": {"n": number, "sessionId": "s", "update": content}})


def numbers_of(messages: Sequence[dict[str, Any]]) -> list[int]:
    """The updates among these, by number."""
    return [message["params"]["n"] for message in messages if message.get("method") == "session/update"]


def methods_of(messages: Sequence[bytes]) -> list[str | None]:
    return [json.loads(message).get("method") for message in messages]


def permission(raw_id: Any = "may I?") -> dict[str, Any]:
    """Return a permission request in session "s"."""
    options = [{"optionId": option, "name": option, "kind": "allow_once"} for option in ("yes", "no")]
    params = {"sessionId": "s", "toolCall": {"toolCallId": "call"}, "options": options}
    return {"id": raw_id, "method": "session/request_permission", "params": params}


def choice(raw_id: Any, option: str = "yes") -> bytes:
    """A client's answer to that."""
    return encode({"id": raw_id, "result": {"outcome": {"outcome": "selected", "optionId": option}}})


def flood(size: int = UPDATE) -> bytes:
    """Something for the agent."""
    return encode({"method": "flood", "params": "x" * size})


async def fill(stream: MessageStream, *messages: bytes) -> int:
    """Send these messages until they are not read any more; return the number of times."""
    for count in range(1, 400):
        stream.send_nowait(messages)
        await wait_all_tasks_blocked()
        if stream.pending_bytes:
            return count
    raise AssertionError("all of it is read")


@asynccontextmanager
async def running(scene: Scene, timeout: float = TIMEOUT) -> AsyncIterator[Scene]:
    """A hub with one client, which has to end by itself within the block."""
    with trio.fail_after(timeout):
        async with trio.open_nursery() as scene.nursery:
            scene.nursery.start_soon(scene.run)
            scene.editor = scene.join()
            yield scene
            await scene.ended.wait()


@asynccontextmanager
async def in_conversation(**how: Any) -> AsyncIterator[Scene]:
    """A hub of one connection's own, with an editor that has opened a session."""
    async with running(Scene(**how)) as scene:
        await scene.initialize(scene.editor)
        await scene.open_session(scene.editor)
        yield scene


@asynccontextmanager
async def sharing(
    capabilities: dict[str, Any] = LOADS, timeout: float = TIMEOUT, **how: Any
) -> AsyncIterator[tuple[Scene, Peer]]:
    """A hub that outlives its clients, and the first of them, ann, who has opened session "s". Cancelled at the end."""
    scene = Scene(shared=True, **how)
    with trio.fail_after(timeout):
        async with trio.open_nursery() as scene.nursery:
            scene.nursery.start_soon(scene.run)
            ann = scene.editor = scene.join("ann")
            await scene.initialize(ann, **capabilities)
            await scene.open_session(ann)
            yield scene, ann
            scene.scope.cancel()


@asynccontextmanager
async def resuming(
    *, shared: bool = True, timeout: float = TIMEOUT, **how: Any
) -> AsyncIterator[tuple[Scene, ResumingPeer]]:
    """A hub and its only client, ann, who has opened session "s" over a link that resumes. Cancelled at the end."""
    scene = Scene(shared=shared, **how)
    with trio.fail_after(timeout):
        async with trio.open_nursery() as scene.nursery:
            scene.nursery.start_soon(scene.run)
            ann = scene.travel("ann")
            scene.editor = ann
            await scene.initialize(ann, **LOADS)
            await scene.open_session(ann)
            yield scene, ann
            scene.scope.cancel()
