"""The load of a machine, as its files and a library for its GPUs tell it."""

import os
from pathlib import Path

import msgspec
import pytest

from acp_gateway.made.machine import (
    MAX_DISKS,
    TEXT,
    Disk,
    DiskOf,
    Gpu,
    Holder,
    Machine,
    Space,
    find_library,
    free_text,
    once,
    read_disks,
    read_gpus,
    read_processors,
    read_told,
    size_text,
)
from tests.kit.nvml import FakeGpu, FakeNvml, NVMLError

GIB = 2**30


def test_memory_is_what_programs_can_get_of_all(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 64 kB\nMemFree: 1 kB\nMemAvailable: 48 kB\nHugePages_Total: 0\n")
    machine = read_processors(tmp_path)
    assert machine.memory == Space(64 * 1024, 48 * 1024)
    assert machine.cpus == os.cpu_count()
    assert machine.busy >= 0


@pytest.mark.parametrize("text", [None, "", "MemTotal\n", "MemTotal: a kB\nMemAvailable: 1 kB\n"])
def test_memory_without_a_file_of_linux_has_its_size_alone(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    memory = read_processors(tmp_path).memory
    assert memory is not None
    assert memory.total > 0
    assert memory.free is None


def test_a_disk_of_several_workspaces_is_told_once_and_one_that_is_gone_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    found = read_disks([str(tmp_path), str(tmp_path / "b"), str(tmp_path / "gone")])
    assert [it.disk.path for it in found] == [str(tmp_path), str(tmp_path / "b")]
    (disk,) = once(found)
    assert disk.path == str(tmp_path)
    assert 0 <= disk.free <= disk.total


def test_the_number_of_disks_is_bounded() -> None:
    assert len(once(DiskOf(number, Disk("/", 1, 1)) for number in range(100))) == MAX_DISKS


def test_gpus_have_what_their_driver_tells_and_the_library_is_closed() -> None:
    library = FakeNvml(FakeGpu("A", 97, 80 * GIB, 71 * GIB, 66, {12: 70 * GIB, 13: None}), FakeGpu(b"B" * 300))
    first, second = read_gpus(library)
    assert first.gpu == Gpu("A", 0.97, 80 * GIB, 71 * GIB, 66)
    assert first.processes == {12: 70 * GIB, 13: None}
    assert second.gpu.name == "B" * TEXT
    assert not first.gpu.is_free
    assert second.gpu.is_free
    assert library.open == 0


def test_a_value_that_a_gpu_does_not_tell_is_left_out() -> None:
    (used,) = read_gpus(FakeNvml(FakeGpu(use=None, total=None, temperature=None)))
    assert used.gpu == Gpu("NVIDIA H100", None, None, None, None)
    assert used.gpu.is_free


def test_a_driver_that_fails_raises_its_own_error() -> None:
    with pytest.raises(NVMLError):
        read_gpus(FakeNvml(error="Driver/library version mismatch"))


def test_the_library_is_imported_only_where_a_driver_is(tmp_path: Path) -> None:
    (tmp_path / "driver").touch()
    assert find_library([tmp_path / "none"], "no_such_library") is None
    with pytest.raises(ImportError):
        find_library([tmp_path / "driver"], "no_such_library")
    assert find_library([tmp_path / "none", tmp_path / "driver"], "json") is not None


@pytest.mark.parametrize(
    ("use", "used", "free"), [(0.0, 4, True), (0.5, 0, False), (None, 40, False), (0.02, 40, False)]
)
def test_a_gpu_is_free_if_neither_its_time_nor_its_memory_is_used(use: float | None, used: int, *, free: bool) -> None:
    assert Gpu("", use, 80, used, None).is_free is free


MACHINE = Machine(
    64, 12.4, Space(512 * GIB, 400 * GIB), (Disk("/srv", 4, 1),), (Gpu("A", 0.0, 1, 0, 40), Gpu("B", 1.0, 1, 1, 90))
)


def test_what_is_free_is_said_in_a_few_words() -> None:
    assert free_text(MACHINE) == "1 of 2 GPUs, 52 of 64 CPUs, 400 GiB memory"
    assert free_text(Machine(2, 9.0)) == "0 of 2 CPUs"


def test_sizes_are_for_people() -> None:
    sizes = [5 * 2**20, 3 * GIB, 71 * GIB, 4 * 2**40]
    assert [size_text(size) for size in sizes] == ["5 MiB", "3.0 GiB", "71 GiB", "4.0 TiB"]


def test_another_gateway_is_believed_as_to_its_machine_but_not_as_to_sessions() -> None:
    held = msgspec.structs.replace(MACHINE.gpus[1], holders=(Holder(5, "claude", "s1", "Train"),))
    told = msgspec.to_builtins(msgspec.structs.replace(MACHINE, gpus=(MACHINE.gpus[0], held)))
    (holder,) = told["gpus"][1]["holders"]
    assert holder == {"memory": 5, "agentType": "claude", "sessionId": "s1", "title": "Train"}
    assert read_told(told) == MACHINE
    assert read_told(told, holders=True) != MACHINE


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"cpus": 0, "busy": 1},
        {"cpus": 1, "busy": -1},
        {"cpus": 1, "busy": 1, "disks": [{"path": "/", "total": 1, "free": 1}] * 99},
        {"cpus": 1, "busy": 1, "gpus": [{"name": "x" * 999, "use": 0, "total": 1, "used": 1, "temperature": 1}]},
        {"cpus": 1, "busy": 1, "memory": {"total": 2**70, "free": 0}},
    ],
)
def test_what_no_machine_is_like_is_not_read(value: object) -> None:
    assert read_told(value) is None
