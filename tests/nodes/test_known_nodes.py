"""The nodes of the cluster that a gateway remembers on its disk."""

from pathlib import Path

import msgspec
import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.nodes import known_nodes
from acp_gateway.nodes.known_nodes import RETENTION, ClusterNodes, Contact, KnownCluster, KnownNode, KnownNodesFile
from acp_gateway.nodes.store import NodeRecord

KNOWN = KnownCluster(
    (KnownNode(NodeRecord(name="gpu2", url="wss://gpu2:1", pin="sha256:1", boot="", agents=("a",)), 86400.0),), 5.0
)


async def test_nodes_are_read_as_they_were_written_in_a_private_file_without_tokens(tmp_path: Path) -> None:
    await KnownNodesFile(tmp_path).write(KNOWN)
    path = tmp_path / "cluster-nodes.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "token" not in path.read_text()
    assert KnownNodesFile(tmp_path).read() == KNOWN


async def test_same_nodes_are_written_once(tmp_path: Path) -> None:
    file = KnownNodesFile(tmp_path)
    await file.write(KNOWN)
    (tmp_path / "cluster-nodes.json").unlink()
    await file.write(KNOWN)
    assert file.read() == KnownCluster()
    await file.write(KnownCluster())
    assert (tmp_path / "cluster-nodes.json").exists()


@pytest.mark.parametrize("flaw", ["text", "mode", "folder"])
async def test_file_that_cannot_be_used_is_told_once(
    flaw: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cluster-nodes.json"
    file = KnownNodesFile(tmp_path)
    if flaw == "folder":
        path.mkdir()
        await file.write(KNOWN)
        await file.write(KNOWN)
    else:
        path.touch(0o600)
        path.write_text("nonsense")
        if flaw == "mode":
            path.chmod(0o644)
    assert file.read() == KnownCluster()
    assert file.read() == KnownCluster()
    assert sum("are not remembered" in line for line in caplog.messages) == (2 if flaw == "folder" else 1)


PIN = "sha256:" + "0" * 64
TOKEN = Path("cluster.token")


def record(name: str, **fields: object) -> NodeRecord:
    return msgspec.convert({"name": name, "url": f"wss://{name}:7443", "boot": "b", **fields}, NodeRecord)


@pytest.fixture
def nodes() -> ClusterNodes:
    return ClusterNodes("gpu1", TOKEN)


def test_found_nodes_have_sections_with_url_pin_and_the_token_of_the_cluster(nodes: ClusterNodes) -> None:
    update = nodes.update([record("gpu1"), record("gpu2", pin=PIN)], 0)
    assert update.sections == {"gpu2": NodeSection(url=parse_target("wss://gpu2:7443"), token_file=TOKEN, pin=PIN)}
    assert (update.removed, update.unusable) == ([], [])


def test_known_nodes_are_not_news_until_their_address_changes(nodes: ClusterNodes) -> None:
    nodes.update([record("gpu2")], 0)
    assert nodes.update([record("gpu2", sessions=3)], 1).sections == {}
    assert nodes.records["gpu2"].sessions == 3
    assert set(nodes.update([record("gpu2", url="wss://other:1")], 2).sections) == {"gpu2"}


def test_node_without_a_record_stays_known_until_the_retention_is_over(nodes: ClusterNodes) -> None:
    nodes.update([record("gpu2")], 0)
    assert (nodes.update([], RETENTION).removed, set(nodes.records)) == ([], {"gpu2"})
    assert nodes.update([], RETENTION + 1).removed == ["gpu2"]
    assert nodes.records == {}


def test_remembered_nodes_are_recalled_with_their_address_agents_and_workspaces(nodes: ClusterNodes) -> None:
    nodes.update([record("gpu2", pin=PIN, agents=["a"], version="1", sessions=3, lag=0.5)], 1e6)
    remembered = nodes.remember()
    later = ClusterNodes("gpu1", TOKEN)
    assert not later.is_read
    assert later.recall(remembered, 2e6).sections == nodes.update([], 1e6).sections | {
        "gpu2": NodeSection(url=parse_target("wss://gpu2:7443"), token_file=TOKEN, pin=PIN)
    }
    assert later.is_read
    assert later.records["gpu2"] == record("gpu2", pin=PIN, agents=["a"], version="1", boot="")
    assert later.update([], 1e6 + RETENTION + 1).removed == ["gpu2"]


def test_remembered_nodes_change_once_a_day_and_with_what_lasts(nodes: ClusterNodes) -> None:
    day = 86400.0
    nodes.update([record("gpu2")], 10 * day)
    first = nodes.remember()
    nodes.update([record("gpu2", sessions=7, turns=1, boot="other")], 11 * day - 1)
    assert nodes.remember() == first
    nodes.update([record("gpu2")], 11 * day)
    assert nodes.remember() != first
    nodes.update([record("gpu2", agents=["a"])], 10 * day)
    assert nodes.remember()[0].record.agents == ("a",)


@pytest.mark.parametrize(
    "flaw",
    [
        {"url": "tcp://127.0.0.1:1"},
        {"url": "ws://gpu2"},
        {"url": "nonsense/"},
        {"url": "ssh://gpu2"},
        {"pin": "sha256:1"},
    ],
)
def test_record_with_an_unusable_address_is_left_out_and_told_once(
    flaw: dict[str, object], nodes: ClusterNodes
) -> None:
    update = nodes.update([record("gpu2", **flaw)], 0)
    assert (update.sections, len(update.unusable), update.unusable[0][0]) == ({}, 1, "gpu2")
    assert nodes.update([record("gpu2", **flaw)], 1).unusable == []


def test_record_that_becomes_unusable_leaves_the_node_as_it_was(nodes: ClusterNodes) -> None:
    nodes.update([record("gpu2")], 0)
    nodes.update([record("gpu2", url="x/")], 1)
    assert nodes.records["gpu2"].url == "wss://gpu2:7443"


def test_further_nodes_than_the_maximum_are_left_out(nodes: ClusterNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_nodes, "MAX_NODES", 2)
    update = nodes.update([record(f"n{number}") for number in range(3)], 0)
    assert set(update.sections) == {"n0", "n1"}
    assert "there are 2 others already" in update.unusable[0][1]


def test_contact_that_was_lost_before_the_start_is_overdue_from_then_on() -> None:
    contact = Contact(1000, ttl=15, lost=900)
    assert contact.fall_due(1001)
    assert not contact.fall_due(1002)
    assert contact.lost_since is not None
    assert "since 1970-01-01T00:15:00Z, for longer than ttl (15 s)" in contact.lost_since
    contact.reached(1003)
    assert contact.problem is None
    contact.lost("refused", 1010)
    assert not contact.fall_due(1025)
    assert contact.fall_due(1026)


def test_contact_tells_of_changes_once_and_since_when() -> None:
    contact = Contact(0)
    assert contact.lost("refused", 5)
    assert not contact.lost("refused", 6)
    assert contact.problem is not None
    assert contact.problem.startswith("the directory of the cluster is lost since 1970-01-01T00:00:00Z")
    assert contact.reached(7)
    assert not contact.reached(8)
    assert contact.problem is None
    assert contact.lost("no\nanswer", 60)
    assert contact.problem == (
        "the directory of the cluster is lost since 1970-01-01T00:01:00Z, the gateway goes on without it: no answer"
    )
    assert contact.lost_since is not None
    assert "answer" not in contact.lost_since
