"""Tokens that count on every node."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.nodes import token_sync as token_news
from acp_gateway.nodes.store import Change, ClusterLost, SharedTokens
from acp_gateway.nodes.token_sync import Hearsay, News, TokenSync, make_news, read_news
from acp_gateway.security.token_store import Token, TokenStore
from tests.nodes.memory_store import MemoryDirectory


class Node:
    """The tokens of one gateway."""

    def __init__(self, directory: MemoryDirectory, folder: Path) -> None:
        self.tokens = TokenStore(folder)
        self.changes = 0
        self.sync = TokenSync(folder.name, directory.store(folder.name), folder, self.note)

    def note(self) -> None:
        self.changes += 1

    @property
    def labels(self) -> set[str]:
        return {token.label for token in self.tokens.tokens()}


@pytest.fixture
async def directory() -> MemoryDirectory:
    return MemoryDirectory()


@pytest.fixture
async def nodes(directory: MemoryDirectory, tmp_path: Path) -> tuple[Node, Node]:
    return Node(directory, tmp_path / "gpu1"), Node(directory, tmp_path / "gpu2")


async def test_token_that_one_node_makes_is_accepted_by_the_other(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    _, secret = first.tokens.create("laptop", "ann", None)
    await first.sync.sync()
    await second.sync.sync()
    assert second.tokens.authenticate(secret).identity == "ann"
    assert (first.changes, second.changes) == (0, 1)


async def test_revoked_token_goes_everywhere_and_its_connections_are_looked_at(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    token, _ = first.tokens.create("laptop", "ann", None)
    await first.sync.sync()
    await second.sync.sync()
    second.tokens.revoke(token.id)
    await second.sync.sync()
    await first.sync.sync()
    assert (first.labels, first.changes) == (set(), 1)


async def test_revoked_token_does_not_come_back_when_the_directory_is_emptied(
    nodes: tuple[Node, Node], directory: MemoryDirectory
) -> None:
    first, second = nodes
    token, _ = first.tokens.create("laptop", "ann", None)
    for node in nodes:
        await node.sync.sync()
    first.tokens.revoke(token.id)
    await first.sync.sync()
    directory.empty()
    # The other one has not compared since, and has the token still.
    await second.sync.sync()
    await first.sync.sync()
    await second.sync.sync()
    assert (first.labels, second.labels) == (set(), set())


async def test_token_that_is_revoked_while_the_directory_is_lost_is_revoked_elsewhere_later(
    nodes: tuple[Node, Node], directory: MemoryDirectory
) -> None:
    first, second = nodes
    token, _ = first.tokens.create("laptop", "ann", None)
    for node in nodes:
        await node.sync.sync()
    directory.lose()
    first.tokens.revoke(token.id)
    with pytest.raises(ClusterLost):
        await first.sync.sync()
    directory.reachable = True
    for node in nodes:
        await node.sync.renewed()
    assert second.labels == set()


async def test_renewal_without_changes_reads_the_number_of_the_tokens_alone(
    nodes: tuple[Node, Node], directory: MemoryDirectory
) -> None:
    first, second = nodes
    token, _ = first.tokens.create("laptop", "ann", None)
    # The first one reads again what it has written itself.
    for node in (first, second, first):
        await node.sync.renewed()
    directory.operations.clear()
    await first.sync.renewed()
    await second.sync.renewed()
    assert directory.operations == ["tokens_number"] * 2
    # What could not be written is written by a renewal, though nothing has changed elsewhere.
    directory.lose()
    first.tokens.revoke(token.id)
    with pytest.raises(ClusterLost):
        await first.sync.sync()
    directory.reachable = True
    await first.sync.renewed()
    assert directory.revoked == {token.id}


async def test_run_compares_after_changes_here_and_elsewhere(
    nodes: tuple[Node, Node], directory: MemoryDirectory
) -> None:
    first, second = nodes
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.sync.run)
        first.tokens.create("laptop", "ann", None)
        while not directory.tokens:
            await trio.lowlevel.checkpoint()
        second.sync.note(Change("tokens", "", "gpu1"))
        while second.labels != {"laptop"}:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_file_that_cannot_be_read_is_told_once_and_revokes_nothing(
    nodes: tuple[Node, Node], tmp_path: Path, caplog: pytest.LogCaptureFixture, directory: MemoryDirectory
) -> None:
    first, _ = nodes
    first.tokens.create("laptop", "ann", None)
    await first.sync.sync()
    (tmp_path / "gpu1" / "tokens.json").write_text("nonsense")
    await first.sync.sync()
    await first.sync.sync()
    assert sum("tokens are not shared with the cluster" in line for line in caplog.messages) == 1
    assert (len(directory.tokens), directory.revoked) == (1, set())


async def test_revocation_is_told_by_a_node_to_another_without_the_directory(
    nodes: tuple[Node, Node], directory: MemoryDirectory
) -> None:
    first, second = nodes
    token, _ = first.tokens.create("laptop", "ann", None)
    for node in nodes:
        await node.sync.sync()
    directory.lose()
    told = []
    first.sync.tell = lambda: told.append(first.sync.news())
    first.tokens.revoke(token.id)
    assert await first.sync.look()
    assert not await first.sync.look()
    (news,) = told
    assert news.revoked == (token.id,)
    assert not first.sync.has_confirmed("gpu2", token.id)
    before = second.changes
    await second.sync.receive(news)
    assert (second.labels, second.changes) == (set(), before + 1)
    await first.sync.receive(second.sync.news())
    assert first.sync.has_confirmed("gpu2", token.id)
    directory.reachable = True
    await second.sync.renewed()
    assert directory.revoked == {token.id}


async def test_rotated_token_is_told_by_a_node_to_another_and_stays_when_the_directory_is_back(
    nodes: tuple[Node, Node], directory: MemoryDirectory
) -> None:
    first, second = nodes
    token, old = first.tokens.create("laptop", "ann", None)
    for node in nodes:
        await node.sync.sync()
    directory.lose()
    _, secret = first.tokens.rotate(token.id)
    await first.sync.look()
    await second.sync.receive(first.sync.news())
    assert second.tokens.identify(old) is None
    assert second.tokens.authenticate(secret).id == token.id
    await first.sync.receive(second.sync.news())
    assert first.sync.has_confirmed("gpu2", token.id)
    directory.reachable = True
    for node in (second, first, second):
        await node.sync.sync()
    assert second.tokens.authenticate(secret).id == first.tokens.authenticate(secret).id == token.id


async def test_node_confirms_in_the_directory_what_it_has_taken_over(
    nodes: tuple[Node, Node], directory: MemoryDirectory
) -> None:
    first, second = nodes
    first.tokens.create("laptop", "ann", None)
    await first.sync.sync()
    assert directory.confirmed.get("gpu2", 0) < directory.number
    await second.sync.sync()
    assert directory.confirmed["gpu2"] == directory.number
    operations = len(directory.operations)
    await second.sync.sync()
    assert directory.operations[operations:] == ["tokens"]


@pytest.mark.parametrize("name", ["cluster-tokens.json", "tokens.json"])
async def test_damaged_file_confirms_nothing_and_does_not_count_as_read(
    nodes: tuple[Node, Node], tmp_path: Path, name: str
) -> None:
    first, second = nodes
    token, _ = first.tokens.create("laptop", "ann", None)
    for node in nodes:
        await node.sync.renewed()
    damaged = tmp_path / "gpu2" / name
    good = damaged.read_bytes()
    damaged.write_bytes(b"{")
    age = second.sync.hearsay.age(trio.current_time())
    first.tokens.revoke(token.id)
    await first.sync.renewed()
    await second.sync.renewed()
    assert second.sync.problem is not None
    assert name in second.sync.problem
    assert not await second.sync.sync()
    assert age is not None
    assert (second.sync.hearsay.age(trio.current_time()) or 0) > age
    assert not second.sync.has_confirmed("gpu1", token.id)
    damaged.write_bytes(good)
    await second.sync.renewed()
    assert second.sync.problem is None
    assert second.labels == set()


async def test_what_another_node_tells_during_a_comparison_is_written_to_the_directory(
    nodes: tuple[Node, Node], directory: MemoryDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    token, _ = first.tokens.create("laptop", "ann", None)
    for node in nodes:
        await node.sync.renewed()
    second.tokens.revoke(token.id)
    await second.sync.look()
    apply, news = first.sync._apply, second.sync.news()
    told: list[News] = []

    def told_then(shared: SharedTokens | None, told_news: News | None) -> Any:
        if shared is not None and not told:
            told.append(news)
            trio.from_thread.run_sync(nursery.start_soon, first.sync.receive, news)
            trio.from_thread.run(wait_all_tasks_blocked)
        return apply(shared, told_news)

    monkeypatch.setattr(first.sync, "_apply", told_then)
    async with trio.open_nursery() as nursery:
        await first.sync.sync()
    await first.sync.renewed()
    assert token.id in (await first.sync._store.tokens()).revoked


TOKEN = Token(id="00000001", label="x", identity="ann", agents=None, sha256="0" * 64, created="2026-01-01T00:00:00Z")
ROTATED = msgspec.structs.replace(TOKEN, id="00000002", sha256="1" * 64, rotated="2026-01-02T00:00:00Z")


def read(news: News) -> News | None:
    """The news after its way over a connection."""
    return read_news(json.loads(msgspec.json.encode(news)))


def told(node: str, *revoked: str, age: float | None = None) -> News:
    return News(node=node, revoked=revoked, age=age)


def test_news_has_revocations_and_rotated_shared_tokens() -> None:
    news = read(make_news("gpu1", [TOKEN, ROTATED, msgspec.structs.replace(ROTATED, local=True)], ["00000003"]))
    assert news is not None
    assert (news.node, news.revoked, news.tokens) == ("gpu1", ("00000003",), [ROTATED])
    assert news.facts == {"00000003", f"00000002 {'1' * 64}"}


def test_news_tells_the_latest_changes_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_news, "MOST", 2)
    assert make_news("gpu1", [], ["00000001", "00000002", "00000003"]).revoked == ("00000002", "00000003")


def test_entry_of_a_later_version_is_left_out() -> None:
    entry = json.loads(msgspec.json.encode(ROTATED))
    news = read_news({"node": "gpu1", "rotated": [entry | {"later": 1}, entry, {}, 1, entry | {"session": "x"}]})
    assert news is not None
    assert news.tokens == [ROTATED]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"node": "a b"},
        {"node": "a", "revoked": ["x"]},
        {"node": "a", "revoked": ["00000001"] * 1001},
        {"node": "a", "rotated": {}},
        {"node": "a", "age": -1},
        {"node": "a", "age": "1"},
    ],
)
def test_other_values_than_news_are_not_read(value: object) -> None:
    assert read_news(value) is None


def test_node_has_confirmed_what_it_tells_itself() -> None:
    hearsay = Hearsay(0)
    here = make_news("gpu1", [ROTATED], ["00000001"]).facts
    assert not hearsay.has_confirmed("gpu2", "00000001", here)
    hearsay.hear(told("gpu2"), 1)
    assert not hearsay.has_confirmed("gpu2", "00000001", here)
    hearsay.hear(told("gpu2", "00000001", "00000009"), 2)
    assert hearsay.has_confirmed("gpu2", "00000001", here)
    assert not hearsay.has_confirmed("gpu2", "00000002", here)
    hearsay.hear(make_news("gpu2", [ROTATED], []), 3)
    assert hearsay.has_confirmed("gpu2", "00000002", here)
    assert not hearsay.has_confirmed("gpu2", "00000001", here)
    # What this node does not know itself, no node has confirmed.
    assert not hearsay.has_confirmed("gpu2", "00000007", here)


def test_silence_counts_from_the_start_or_from_a_loss_before_it() -> None:
    hearsay = Hearsay(100)
    assert hearsay.age(110) is None
    assert hearsay.silence(110, None) == 10
    hearsay.lost_since(-50)
    hearsay.lost_since(70)
    assert hearsay.silence(110, None) == 160


def test_silence_ends_with_a_read_of_the_directory() -> None:
    hearsay = Hearsay(0)
    hearsay.lost_since(-1000)
    hearsay.read(50)
    assert hearsay.silence(60, ["gpu2"]) == 10


def test_silence_ends_with_a_node_that_has_read_the_directory() -> None:
    hearsay = Hearsay(0)
    hearsay.hear(told("gpu2", age=20), 100)
    assert hearsay.age(110) == 30
    assert hearsay.silence(110, ["gpu2", "gpu3"]) == 30
    hearsay.hear(told("gpu3", age=5), 100)
    assert hearsay.silence(110, ["gpu2", "gpu3", "gpu4"]) == 15


def test_silence_ends_when_all_other_nodes_are_heard_and_not_when_some_are() -> None:
    hearsay = Hearsay(0)
    hearsay.hear(told("gpu2"), 100)
    assert hearsay.silence(110, ["gpu2", "gpu3"]) == 110
    hearsay.hear(told("gpu3"), 105)
    assert hearsay.silence(110, ["gpu2", "gpu3"]) == 10
    # Their own knowledge is not of the directory.
    assert hearsay.age(110) is None
    assert hearsay.silence(110, None) == 110


def test_only_node_has_no_silence() -> None:
    assert Hearsay(0).silence(math.pi, []) == 0
