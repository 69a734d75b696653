"""Which gateways were reached, across processes, and what a folder that can't be used does: nothing."""

import stat
from pathlib import Path

import pytest

from acp_gateway.cli.client.reached_hosts import REMEMBER_TIME, RENEWAL_INTERVAL, ReachedHosts, own_reached_hosts
from tests.kit.clocks import Clock

BOX, OTHER = "wss://box.example:7443/acp", "ssh://ann@box"


def test_a_gateway_that_was_reached_is_known_to_the_next_process_for_a_month(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    folder = tmp_path / "state" / "reached"
    ReachedHosts(folder, clock).record(BOX)
    reached = ReachedHosts(folder, clock)
    assert (reached.knows(BOX), reached.knows(OTHER)) == (True, False)
    clock.now += REMEMBER_TIME - 1
    assert reached.knows(BOX)
    clock.now += 1
    assert not reached.knows(BOX)


def test_a_gateway_is_noted_once_a_day(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    reached = ReachedHosts(tmp_path, clock)
    reached.record(BOX)
    (path,) = tmp_path.iterdir()
    for seconds, renewed in ((RENEWAL_INTERVAL - 1, False), (2, True)):
        clock.now += seconds
        reached.record(BOX)
        assert (path.stat().st_mtime == clock.now) == renewed


def test_what_is_noted_is_for_its_owner_and_does_not_name_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "reached"
    ReachedHosts(folder).record(BOX)
    (path,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "box" not in path.name
    assert path.read_bytes() == b""


def test_a_folder_that_cannot_be_used_is_as_if_nothing_was_ever_reached(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for reached in (ReachedHosts(None), ReachedHosts(tmp_path / "file" / "reached")):
        reached.record(BOX)
        assert not reached.knows(BOX)


def test_the_folder_is_in_the_users_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    own_reached_hosts().record(BOX)
    assert len([*(tmp_path / "acp-gateway" / "reached").iterdir()]) == 1
