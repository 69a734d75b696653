"""Looks at the machine: what holds its GPUs, who is told of that, and what does not answer."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.core.sessions.session import Session
from acp_gateway.gateway.made.machine_looks import FRESH, MachineLooks, Reader, RunningAgent, session_at
from acp_gateway.made.machine import NO_ANSWER, NO_LIBRARY, Holder
from tests.kit.nvml import FakeGpu, FakeNvml


def session(name: str, cwd: str | None) -> Session:
    return cast("Session", SimpleNamespace(name=name, cwd=cwd, title=f"of {name}"))


TRAIN, CLEAN = session("train", "/srv/train"), session("clean", "/srv/clean")


def process(proc: Path, pid: int, parent: int, cwd: str) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    rest = f"S {parent} {pid} {pid} " + " ".join("0" for _ in range(15)) + f" {1000 + pid} 0 5 0"
    (folder / "stat").write_text(f"{pid} (python) {rest}")
    (folder / "cwd").symlink_to(cwd)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine with an agent, two processes of it, and one of another program."""
    for pid, parent, cwd in ((700, 1, "/"), (701, 700, "/srv/train/run"), (702, 701, "/tmp"), (900, 1, "/srv/train")):
        process(tmp_path, pid, parent, cwd)
    return tmp_path


def looks(
    proc: Path, library: Any, *, sessions: Sequence[Session] = (TRAIN, CLEAN), roots: Sequence[str] = ()
) -> MachineLooks:
    return MachineLooks(lambda: [RunningAgent("claude", 700, sessions)], lambda: roots, lambda: library, proc)


async def holders(proc: Path, reader: Reader, sessions: Sequence[Session] = (TRAIN, CLEAN)) -> list[Holder]:
    library = FakeNvml(FakeGpu(processes={701: 5, 702: 7, 900: 1}))
    look = await looks(proc, library, sessions=sessions).look()
    return list(look.told(reader).gpus[0].holders)


async def test_processes_of_an_agent_are_told_with_the_session_in_whose_directory_they_are(proc: Path) -> None:
    assert await holders(proc, Reader()) == [
        Holder(5, "claude", "train", "of train"),
        Holder(7, "claude"),
        Holder(1),
    ]


async def test_the_only_session_of_an_agent_has_all_its_processes(proc: Path) -> None:
    assert await holders(proc, Reader(), [CLEAN]) == [Holder(12, "claude", "clean", "of clean"), Holder(1)]


async def test_sessions_and_agents_of_others_are_told_as_other_programs(proc: Path) -> None:
    blind = Reader(lambda it: it is not TRAIN, lambda _: False)
    assert await holders(proc, blind) == [Holder(13)]


async def test_an_agent_is_named_only_to_who_sees_all_sessions_that_a_process_may_be_of(proc: Path) -> None:
    half = Reader(lambda it: it is TRAIN)
    assert await holders(proc, half) == [Holder(5, "claude", "train", "of train"), Holder(8)]


@pytest.mark.parametrize(
    ("directory", "found"),
    [("/srv/train", "train"), ("/srv/train/run/1", "train"), ("/srv/trains", None), ("/", None), (None, None)],
)
def test_of_several_sessions_the_one_counts_whose_directory_contains_that_of_the_process(
    directory: str | None, found: str | None
) -> None:
    its = session_at(directory, [TRAIN, CLEAN, session("none", None)])
    assert (None if its is None else its.name) == found


def test_of_nested_directories_the_innermost_counts_and_of_equal_ones_none() -> None:
    inner = session("inner", "/srv/train/run")
    assert session_at("/srv/train/run/1", [TRAIN, inner]) is inner
    assert session_at("/srv/train", [TRAIN, session("same", "/srv/train")]) is None


async def test_a_look_is_used_again_for_a_while(proc: Path, mock_clock: MockClock) -> None:
    library = FakeNvml(FakeGpu())
    its = looks(proc, library)
    first = await its.look()
    assert await its.look() is first
    assert library.looks == 1
    mock_clock.jump(FRESH + 1)
    assert await its.look() is its.last
    assert library.looks == 2


async def test_those_who_ask_together_are_told_of_one_look(proc: Path) -> None:
    library = FakeNvml(FakeGpu())
    its = looks(proc, library)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(its.look)
    assert library.looks == 1


async def test_disks_are_told_only_of_workspaces_that_the_reader_may_use(proc: Path, tmp_path: Path) -> None:
    look = await looks(proc, None, roots=[str(tmp_path), "/"]).look()
    assert [disk.path for disk in look.told(Reader(opens=lambda root: root == "/")).disks] == ["/"]
    assert look.told(Reader(opens=lambda _: False)).disks == ()


async def test_a_driver_that_hangs_is_said_and_hides_nothing_else(
    proc: Path, autojump_clock: MockClock, tmp_path: Path
) -> None:
    hanging = threading.Event()

    def library() -> Any:
        hanging.wait(60)

    its = MachineLooks(list, list, library, proc)
    try:
        machine = (await its.look()).told(Reader())
        assert (machine.problem, machine.gpus) == (NO_ANSWER, ())
        assert machine.cpus == os.cpu_count()
    finally:
        hanging.set()


@pytest.mark.parametrize("early", [True, False])
async def test_whatever_a_library_raises_ends_nothing(early: bool, proc: Path) -> None:
    class Broken(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise OSError("no such device")

    def library() -> Any:
        if early:
            raise ValueError("a library of another version")
        return Broken()

    machine = (await MachineLooks(list, list, library, proc).look()).told(Reader())
    assert (machine.problem, machine.gpus) == (NO_ANSWER, ())
    assert machine.cpus == os.cpu_count()


async def test_without_the_library_where_a_driver_is_the_problem_names_the_remedy(proc: Path) -> None:
    def library() -> Any:
        raise ImportError

    its = MachineLooks(list, list, library, proc)
    assert (await its.look()).told(Reader()).problem == NO_LIBRARY


async def test_a_failure_of_the_driver_is_said(proc: Path) -> None:
    problem = (await looks(proc, FakeNvml(error="Driver/library\nversion mismatch")).look()).machine.problem
    assert problem == "the GPUs can't be read: Driver/library version mismatch"
