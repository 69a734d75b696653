"""Sessions of a node that is away, which are open here, and which another node has adopted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.server import adopted_sessions
from acp_gateway.server.adopted_sessions import AdoptedSessions
from tests.core.registered import live, past

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))


class Scene:
    """A gateway with two nodes, gpu1 away and gpu2 there, and what was left."""

    def __init__(self) -> None:
        self.nodes = NodeDirectory({"gpu1": SECTION, "gpu2": SECTION}, 0.0)
        for name in self.nodes.nodes:
            self.nodes.set_rights(name, "door", ["*"])
            self.nodes.set_up(name, ["memory"], "1.0", 1.0)
        self.nodes.set_away("gpu1", "refused", 2.0, "unreachable")
        self.registry = Registry("me", node="gpu3")
        gateway = SimpleNamespace(registry=self.registry, find_hub=lambda _: None)
        self.adopted = AdoptedSessions(cast("Any", gateway), self.nodes)
        self.left: list[tuple[Session, str]] = []

    def tell(self, home: str | None = "gpu1", owner: str = "me") -> None:
        """Have gpu2 list a session."""
        row = {"sessionId": "s", "agent": "memory", "owner": owner, "live": True, "turn": False, "waiting": []}
        row |= {"connected": 0, "away": 0} | ({} if home is None else {"home": home})
        self.nodes.set_sessions("gpu2", [row], 0)
        self.adopted.note_report()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr(adopted_sessions, "leave_adopted", lambda session, node, *_: scene.left.append((session, node)))
    return scene


def test_session_of_a_node_that_is_away_is_left_when_another_node_lists_it_as_adopted(scene: Scene) -> None:
    session = live(scene.registry, "s", "me", "gpu1/memory")
    scene.tell()
    assert scene.left == [(session, "gpu2")]


def test_session_that_is_adopted_here_is_left(scene: Scene) -> None:
    session = live(scene.registry, "s", "me", "gpu1/memory")
    scene.adopted.note_own("gpu1/s", "someone")
    assert scene.left == []
    scene.adopted.note_own("gpu1/s", "me")
    assert scene.left == [(session, "gpu3")]


def test_session_of_a_node_that_is_there_is_not_left(scene: Scene) -> None:
    live(scene.registry, "s", "me", "gpu1/memory")
    scene.nodes.set_up("gpu1", ["memory"], "1.0", 3.0)
    scene.tell()
    assert scene.left == []


@pytest.mark.parametrize(
    ("session", "told"),
    [
        (("s", "me", "memory"), {}),
        (("other", "me", "gpu1/memory"), {}),
        (("s", "me", "gpu1/memory"), {"owner": "someone"}),
        (("s", "me", "gpu1/memory"), {"home": None}),
        (("s", "me", "gpu1/memory"), {"home": "gpu9"}),
    ],
)
def test_other_sessions_are_not_left(session: tuple[str, str, str], told: dict[str, Any], scene: Scene) -> None:
    live(scene.registry, *session)
    scene.tell(**told)
    assert scene.left == []


def test_session_that_is_not_live_here_is_not_left(scene: Scene) -> None:
    past(scene.registry, "s", "me", "gpu1/memory")
    scene.tell()
    assert scene.left == []
