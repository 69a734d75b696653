"""Prompts that wait, through kills of the gateway at any moment: none is sent twice, lost, or sent after its removal.

The core, the archive and the write queue are those of the gateway; the disk is a dictionary, which a batch reaches as a
whole or not at all.
"""

import json
import random
from contextlib import suppress
from typing import Any, cast

import pytest

from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.queue import QueueChange
from acp_gateway.gateway.kept.prompts import due_prompts, remove_kept
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.storage.records import StoredPrompt, StoredSession
from acp_gateway.gateway.storage.store import Storage
from acp_gateway.gateway.storage.write_queue import WriteQueue
from tests.kit.scene import Scene

LIMIT = 1_000_000
NOW = 1_800_000_000_000
SECOND = 1000

LIVES = 50
KILLS = 4
STEPS = 24


class Disk:
    """Sessions and prompts that outlive a gateway."""

    def __init__(self) -> None:
        self.sessions: dict[int, StoredSession] = {}
        self.prompts: dict[str, StoredPrompt] = {}

    @property
    def texts(self) -> set[str]:
        return {text_of(prompt.text) for prompt in self.prompts.values()}


class OnDictionary:
    """A storage as the archive sees it: sessions are written at once, prompts in batches, histories never."""

    problem = None

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.queue = WriteQueue(LIMIT)
        self.queue.restore(disk.sessions.values(), (), disk.prompts.values())
        self.put_prompt = self.queue.put_prompt
        self.send_prompt = self.queue.send_prompt
        self.drop_prompt = self.queue.drop_prompt

    def open(self) -> list[StoredSession]:
        return list(self.disk.sessions.values())

    def prompts(self) -> list[StoredPrompt]:
        return list(self.queue.prompts.values())

    def new_key(self) -> int:
        return len(self.disk.sessions) + 1

    def keep(self, session: StoredSession) -> None:
        self.disk.sessions[session.key] = session

    def keeps_journal(self, _key: int) -> bool:
        return False

    def nothing(self, *_: object) -> None: ...

    rely_on = grow = replace = finish_journal = spend = nothing

    def write(self, *, fails: bool = False) -> None:
        """Write a batch, or fail to."""
        with suppress(OSError), self.queue.taken() as batch:
            if fails:
                raise OSError
            for key, prompt in batch.prompts.items():
                if prompt is None:
                    self.disk.prompts.pop(key, None)
                else:
                    self.disk.prompts[key] = prompt


def text_of(request: bytes) -> str:
    return str(json.loads(request)["params"]["prompt"][0]["text"])


class Life:
    """A gateway from its start to its kill, with what people and agents do until then."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.storage = OnDictionary(world.disk)
        archive = StoredArchive(cast("Storage", self.storage), now=lambda: world.now / SECOND)
        registry = Registry("me", archive, f"run{number}")
        for session in archive.restore(LIMIT):
            registry.restore(session)
        self.registry = registry
        self.scene = Scene(registry=registry, agentCapabilities={"loadSession": True})
        self.scene.pass_time(0.0, world.now)
        self.ann = self.scene.join("ann")
        self.running: list[Any] = []
        if number:
            self.ann.request("session/load", sessionId="s", cwd="/srv", mcpServers=[])
            self.agent_works()
        else:
            self.ann.new_session()

    @property
    def session(self) -> Session:
        (session,) = self.registry
        return session

    def agent_works(self) -> None:
        """Have the agent answer all but prompts, whose turns it begins."""
        while heard := self.scene.agent.heard():
            for message in heard:
                if message["method"] == "session/prompt":
                    self.world.received.append(message["params"]["prompt"][0]["text"])
                    self.running.append(message)
                elif message["method"] == "initialize":
                    self.scene.agent.answer(message, **self.scene.welcome)
                elif "id" in message:
                    self.scene.agent.answer(message)

    def prompt(self) -> None:
        queue: dict[str, object] = {"auto": self.world.chance.random() < 0.5}
        if self.world.chance.random() < 0.3:
            queue["at"] = self.world.chance.choice(["in 1 min", "in 2 h"])
        blocks = [{"type": "text", "text": self.world.new_text()}]
        self.ann.request("session/prompt", sessionId="s", prompt=blocks, _meta={"acp-gateway": {"queue": queue}})

    def end(self) -> None:
        if self.running:
            self.scene.agent.answer(self.running.pop(0), stopReason="end_turn")

    def remove(self) -> None:
        shown = self.session.shown_prompts
        if shown:
            one = self.world.chance.choice(shown)
            if one.key in self.session.kept:
                assert remove_kept(self.registry, self.session, one.key)
            else:
                change = QueueChange(one.key, "remove")
                assert self.scene.multiplexer.change_queue(self.ann.client, self.session, change) is None
                self.scene.deliver()
            self.world.removing[one.text] = one.state != "lost"

    def release(self) -> None:
        if self.session.kept:
            self._send(self.world.chance.choice(list(self.session.kept)))

    def _send(self, key: str) -> None:
        meta = {"acp-gateway": {"queue": {"release": key}}}
        self.ann.request("session/prompt", sessionId="s", prompt=[], _meta=meta)

    def tick(self) -> None:
        self.world.now += self.world.chance.choice([1, 90]) * SECOND
        self.scene.pass_time(0.0, self.world.now)
        for _, key in due_prompts(self.registry.keeping, self.world.now):
            self._send(key)

    def write(self) -> None:
        self.storage.write()
        self.world.durable |= self.world.disk.texts
        self.world.removed |= self.world.removing
        self.world.removing.clear()

    def tell(self) -> None:
        """The disk has everything, and the core is told so."""
        self.write()
        self.scene.write_prompts()

    def fail(self) -> None:
        self.storage.write(fails=True)

    def lose_agent(self) -> None:
        self.running.clear()
        self.scene.lose_agent()

    def step(self) -> None:
        steps = [self.prompt] * 4 + [self.end] * 3 + [self.tell] * 4
        steps += [self.write, self.fail, self.remove, self.release, self.tick, self.lose_agent]
        self.world.chance.choice(steps)()
        self.agent_works()

    def settle(self) -> None:
        """Send everything that may be sent, to the end."""
        while any(it.state != "lost" for it in self.session.shown_prompts) or self.running:
            for key, prompt in list(self.session.kept.items()):
                if prompt.shown.state != "lost":
                    self._send(key)
                    self.agent_works()
            self.tell()
            self.agent_works()
            self.end()
            self.agent_works()


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311
        self.disk = Disk()
        self.now = NOW
        self.received: list[str] = []
        """Texts that agents have got, in order."""
        self.durable: set[str] = set()
        """Texts that were on the disk as prompts that wait."""
        self.removing: dict[str, bool] = {}
        self.removed: dict[str, bool] = {}
        """Texts whose removal was acknowledged, as it is on the disk; False for those that an agent may have had."""
        self._texts = 0

    def new_text(self) -> str:
        self._texts += 1
        return f"text {self._texts}"


@pytest.mark.parametrize("seed", range(LIVES))
def test_kills_lose_no_prompt_and_send_none_twice_or_after_its_removal(seed: int) -> None:
    world, lost = World(seed), set[str]()
    for number in range(KILLS + 1):
        life = Life(world, number)
        shown = {it.text: it.state for it in life.session.shown_prompts}
        lost |= {text for text, state in shown.items() if state == "lost"}
        assert world.durable <= {*world.received, *shown, *world.removed}
        assert not world.removed.keys() & shown.keys()
        world.removing.clear()
        before = len(world.received)
        for _ in range(STEPS if number < KILLS else 0):
            life.step()
        if number == KILLS:
            life.settle()
        assert not lost & set(world.received[before:])
    assert len(world.received) == len(set(world.received))
    assert world.durable - set(world.received) - world.removed.keys() - lost == set()
    assert not {text for text, waited in world.removed.items() if waited} & set(world.received)
