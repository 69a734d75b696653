"""Cuts and kills at random, with everything real: nothing comes twice, and nothing is missing without a word."""

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from acp_gateway.config.load import load_config
from tests.end_to_end.soak import Soak, soak
from tests.end_to_end.soak_pauses import MOST_PAUSE, too_long
from tests.kit.faulty_proxy import FaultyProxy
from tests.kit.redis_server import RedisServer
from tests.kit.running import RunningGateway, write_config
from tests.kit.seen import faults_of

SEED = int(os.environ.get("TEST_SEED", "1"))
"""Seed of all random choices; a failure prints it. The times of events differ from run to run."""


# Gateways that were killed leave the ends of their pipes to the collector of garbage.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_whatever_is_cut_and_killed_each_viewer_has_all_of_the_history_or_was_told(tmp_path: Path) -> None:
    # Through the door as well: `make soak`, in which a minute shows more.
    report = soak(tmp_path, SEED, 40, ("wss", "tcp", "unix"))
    assert report.disturbed.total() > 0
    assert report.viewers > report.sessions
    assert report.faults == [], str(report)


@pytest.mark.parametrize(
    ("seen", "truth", "faults"),
    [
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 2, 3], [2, 3], 0),
        ([1, 3], [1, 2, 3], 1),
        ([1, None, 3], [1, 2, 3], 0),
        ([1, 3, None], [1, 2, 3], 1),
        ([None, 3], [1, 2, 3], 0),
        ([1, 2, None], [1, 2, 3], 0),
        ([1, 1, 2], [1, 2], 1),
        ([1, None, 1], [1], 1),
        ([2, 1], [1, 2], 1),
    ],
)
def test_a_soak_finds_what_is_missing_without_a_word_and_what_comes_twice(
    seen: list[int | None], truth: list[int], faults: int
) -> None:
    assert len(faults_of(seen, truth)) == faults


@pytest.mark.parametrize(("slow", "faults"), [(4, 0), (6, 1)])
def test_pauses_are_a_fault_if_more_than_one_in_twenty_is_long(slow: int, faults: int) -> None:
    assert len(too_long([0.2] * (100 - slow) + [MOST_PAUSE + 0.1] * slow)) == faults


class Written:
    """A gateway of a soak that is configured, and not started."""

    configs: ClassVar[list[Path]] = []

    def __init__(self, directory: Path, sections: str, more: str, ports: dict[str, int]) -> None:
        directory.mkdir()
        write_config(directory, sections, more=more, ports=ports)
        self.pin = f"sha256:{'0' * 64}"
        self.gateway = RunningGateway(directory, cast("Any", None), self.pin)
        self.configs.append(directory / "config.toml")

    def end(self) -> None:
        """Nothing runs."""


@pytest.mark.parametrize("redis", [None, SimpleNamespace(url="redis://127.0.0.1:1")], ids=["alone", "with Redis"])
def test_a_soak_configures_no_option_that_the_program_ignores(
    redis: RedisServer | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.end_to_end.soak.has_redis", lambda: False)
    monkeypatch.setattr("tests.end_to_end.soak.Machine", Written)
    monkeypatch.setattr(Written, "configs", [])
    with ExitStack() as stack:
        scene = Soak(tmp_path, SEED, 0, stack)
        scene.redis, scene.proxies = redis, {}
        for place in ("hop", "lent"):
            scene.proxies[place] = FaultyProxy(1, seed=SEED, cuts=0, size=(1, 1))
            scene.proxies[place].port = 1
        scene.start()
    assert [load_config(config).removed for config in Written.configs] == [(), (), ()]
