"""Memory of the C library: large blocks are used again, and what is free goes back to the system."""

import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from acp_gateway.server.allocator import FREE_END, INTERVAL, LARGEST, LEAST_WORK, give_back_memory, keep_blocks, trimmer

FREE = """
from pathlib import Path
from acp_gateway.server.allocator import keep_blocks, trimmer

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

keep_blocks()
before = resident()
pieces = [bytes([n % 255 + 1]) * 65536 for n in range(1000)]
full = resident()
del pieces[:999]
kept = resident()
trimmer()()
print(full - before, kept - before, resident() - before)
"""


def test_both_thresholds_of_glibc_are_fixed() -> None:
    calls: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return 1

    keep_blocks(mallopt)
    assert calls == [(-3, LARGEST), (-1, FREE_END)]


def test_a_c_library_that_takes_no_thresholds_raises_nothing() -> None:
    keep_blocks(lambda _parameter, _value: 0)


def test_the_thresholds_of_this_process_can_be_set() -> None:
    keep_blocks()


@pytest.mark.skipif(trimmer() is None or not Path("/proc/self/statm").exists(), reason="needs glibc on Linux")
def test_memory_that_is_free_goes_back_although_something_lies_behind_it() -> None:
    done = subprocess.run([sys.executable, "-c", FREE], capture_output=True, text=True, check=True)
    full, kept, left = map(int, done.stdout.split())
    assert kept > full * 0.9
    assert left < full * 0.1


async def test_memory_is_given_back_once_after_work(autojump_clock: trio.testing.MockClock) -> None:
    looks, trimmed = list[float](), trio.Event()

    def work() -> float:
        looks.append(trio.current_time())
        return LEAST_WORK if len(looks) > 2 else LEAST_WORK / 2

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_back_memory, lambda: trio.from_thread.run_sync(trimmed.set), work)
        await trimmed.wait()
        assert [round(look - began) for look in looks[:3]] == [INTERVAL, 2 * INTERVAL, 3 * INTERVAL]
        trimmed = trio.Event()
        await trio.sleep(10 * INTERVAL)
        assert not trimmed.is_set()
        nursery.cancel_scope.cancel()
