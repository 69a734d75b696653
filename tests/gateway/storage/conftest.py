"""A storage with a disk, a clock and pauses of its own."""

from pathlib import Path

import pytest

from acp_gateway.gateway.storage import write_queue
from acp_gateway.gateway.storage.store import Storage
from tests.gateway.storage.stores import Clock, Disk, Pauses, make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sessions.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def storage(path: Path, clock: Clock, disk: Disk, pauses: Pauses) -> Storage:
    return make(path, clock, disk, pauses)


@pytest.fixture
def narrow(path: Path, clock: Clock, disk: Disk, pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A storage in which no more may wait to be written than one whole history."""
    monkeypatch.setattr(write_queue, "QUEUE", 0)
    return make(path, clock, disk, pauses)
