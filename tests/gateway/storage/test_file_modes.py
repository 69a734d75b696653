"""The modes of the gateway's files, which an agent changes in a fence of Landlock."""

import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from acp_gateway.config.load import AgentSection, Config
from acp_gateway.gateway.storage.file_modes import INTERVAL, FileModes
from tests.kit.doubles import make_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="modes are mended where there are fences")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("name", "before", "changed", "after"),
    [
        ("state", 0o700, 0o000, 0o700),
        ("state", 0o750, 0o777, 0o750),
        ("state/sessions.db", 0o600, 0o000, 0o600),
        ("state/sessions.db", 0o600, 0o666, 0o600),
        ("state/audit.jsonl", 0o600, 0o400, 0o600),
        ("state/homes", 0o700, 0o755, 0o700),
        # These are compared first, by those who read them.
        ("state/tokens.json", 0o600, 0o666, 0o666),
        ("state/tokens.json", 0o600, 0o000, 0o600),
        ("config.toml", 0o640, 0o040, 0o640),
        ("config.toml", 0o640, 0o646, 0o640),
        ("keys.env", 0o600, 0o604, 0o600),
    ],
)
def test_the_mode_of_a_file_is_as_it_was_before_a_program_changed_it(
    name: str, before: int, changed: int, after: int, tmp_path: Path
) -> None:
    (tmp_path / "state/homes").mkdir(parents=True, mode=0o700)
    for file in ("state/sessions.db", "state/audit.jsonl", "state/tokens.json", "config.toml", "keys.env"):
        (tmp_path / file).touch(0o600)
    section = AgentSection(command=("agent",), env_file=tmp_path / "keys.env")
    config = replace(make_config(tmp_path / "state", agents={"a": section}), path=tmp_path / "config.toml")
    (tmp_path / name).chmod(before)
    modes = FileModes()
    modes.look(config)
    assert mode_of(tmp_path / name) == before
    (tmp_path / name).chmod(changed)
    modes.look(config)
    assert mode_of(tmp_path / name) == after


def test_a_file_that_its_user_may_not_open_is_mended_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/sessions.db").touch()
    (tmp_path / "state/sessions.db").chmod(0)
    FileModes().look(make_config(tmp_path / "state"))
    assert mode_of(tmp_path / "state/sessions.db") == 0o600


def test_a_file_of_the_gateway_is_taken_from_others_also_if_it_was_new(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    modes, config = FileModes(), make_config(tmp_path / "state")
    modes.look(config)
    for name in ("sessions.db", "socket"):
        (tmp_path / "state" / name).touch()
        (tmp_path / "state" / name).chmod(0o666)
    modes.look(config)
    assert mode_of(tmp_path / "state/sessions.db") == 0o600
    # A person may have given that to others.
    assert mode_of(tmp_path / "state/socket") == 0o666


def test_a_key_in_the_state_folder_that_is_not_to_be_written_stays_so(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/key.pem").touch()
    (tmp_path / "state/key.pem").chmod(0o400)
    FileModes().look(make_config(tmp_path / "state"))
    assert mode_of(tmp_path / "state/key.pem") == 0o400


async def test_modes_are_looked_at_again_and_again(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path / "state")
    looks: list[Config] = []
    modes = FileModes()
    looked = trio.Event()

    def look(config: Config) -> None:
        looks.append(config)
        trio.from_thread.run_sync(looked.set)

    monkeypatch.setattr(modes, "look", look)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(modes.run, lambda: config)
        await trio.testing.wait_all_tasks_blocked()
        assert looks == []
        mock_clock.jump(INTERVAL)
        await looked.wait()
        nursery.cancel_scope.cancel()
    assert looks == [config]
