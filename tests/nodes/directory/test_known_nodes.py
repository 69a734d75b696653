"""The nodes of the cluster that a gateway remembers on its disk."""

from pathlib import Path

import pytest

from acp_gateway.nodes.directory.known_nodes import KnownCluster, KnownNode, KnownNodesFile
from acp_gateway.nodes.directory.records import NodeRecord

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
