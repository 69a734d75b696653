"""Readiness: which problems it reports, and how often it looks."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from acp_gateway.gateway.extensions import Extensions
from acp_gateway.gateway.gateway import CHECK_INTERVAL, Readiness
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.token_store import TokenStore

URLS = ["ws://127.0.0.1:1/acp", "ws://[::1]:1/acp"]


class Storage:
    """The storage, as far as its problem."""

    problem: str | None = None

    def __call__(self) -> str | None:
        return self.problem


@pytest.fixture
def storage() -> Storage:
    return Storage()


def readiness_of(state_dir: Path, storage: Storage) -> Readiness:
    tokens = TokenStore(state_dir)
    return Readiness(state_dir, tokens, BrowserStore(state_dir, tokens), storage, Extensions())


@pytest.fixture
def readiness(tmp_path: Path, storage: Storage) -> Readiness:
    return readiness_of(tmp_path, storage)


async def test_a_gateway_is_ready_while_every_listener_accepts(readiness: Readiness) -> None:
    readiness.set_listening(URLS, accepting=True)
    assert (readiness.ready, readiness.problems) == (True, [])
    readiness.set_listening(URLS[1:], accepting=False)
    assert (readiness.ready, readiness.problems) == (False, [f"{URLS[1]} accepts no connections"])


async def test_a_problem_of_the_storage_is_reported(readiness: Readiness, storage: Storage) -> None:
    storage.problem = "sessions.db: the disk is full"
    assert readiness.problems == ["sessions.db: the disk is full"]


async def test_it_looks_again_when_told_to(readiness: Readiness, storage: Storage) -> None:
    assert readiness.ready
    storage.problem = "sessions.db: the disk is full"
    assert readiness.ready
    readiness.look_again()
    assert not readiness.ready


async def test_a_state_dir_that_has_gone_cannot_be_written(tmp_path: Path, storage: Storage) -> None:
    gone = tmp_path / "gone"
    assert readiness_of(gone, storage).problems == [f"{gone} cannot be written"]


async def test_tokens_that_cannot_be_read_are_reported(readiness: Readiness, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text("[")
    (problem,) = readiness.problems
    assert "tokens.json" in problem
    assert not readiness.tokens_readable


@pytest.mark.parametrize(
    ("content", "mode", "remedy"),
    [("{}", 0o644, "chmod 600 "), ("[", 0o600, "restore it, or remove it and sign in again")],
)
async def test_browsers_that_cannot_be_read_are_a_warning_with_the_remedy_and_keep_the_gateway_ready(
    content: str, mode: int, remedy: str, readiness: Readiness, tmp_path: Path, mock_clock: MockClock
) -> None:
    assert readiness.warnings == []
    (tmp_path / "browsers.json").write_text(content)
    (tmp_path / "browsers.json").chmod(mode)
    mock_clock.jump(CHECK_INTERVAL)
    (warning,) = readiness.warnings
    assert warning.startswith(f"{tmp_path}/browsers.json: ")
    assert remedy in warning
    assert (readiness.ready, readiness.problems) == (True, [])
    (tmp_path / "browsers.json").unlink()
    mock_clock.jump(CHECK_INTERVAL)
    assert readiness.warnings == []


async def test_a_gateway_that_is_stopping_is_not_ready_at_once(readiness: Readiness) -> None:
    assert readiness.ready
    readiness.stopping = True
    assert readiness.problems == ["the gateway is stopping"]


async def test_a_check_is_repeated_after_check_interval_and_no_sooner(
    readiness: Readiness, storage: Storage, mock_clock: MockClock
) -> None:
    assert readiness.ready
    storage.problem = "full"
    mock_clock.jump(CHECK_INTERVAL / 2)
    assert readiness.ready
    mock_clock.jump(CHECK_INTERVAL / 2)
    assert not readiness.ready
