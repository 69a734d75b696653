"""The ends of browsers in the audit, and the removal of expired ones."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.gateway.browsers import CHECK_INTERVAL, browser_details, end_expired_browsers, record_ends
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.security.browser_sessions import DAY, Browser, BrowserStore
from acp_gateway.security.token_store import TokenStore


class Scene:
    """A store of browsers whose time begins in 2026, and an audit."""

    def __init__(self, state_dir: Path) -> None:
        self.seconds = 1.8e9
        self.state_dir = state_dir
        self.browsers = BrowserStore(
            state_dir, TokenStore(state_dir), days=30, idle_days=7, most=16, now=lambda: self.seconds
        )
        self.audit = Audit(state_dir / "audit.jsonl", max_size=1 << 20, files=2)

    def sign_in(self, label: str) -> Browser:
        return self.browsers.sign_in(self.browsers.make_code(None, "ann", label=label)[1]).browser

    def ends(self) -> list[dict[str, Any]]:
        """The entries, without their time."""
        if not (self.state_dir / "audit.jsonl").exists():
            return []
        entries = [json.loads(line) for line in (self.state_dir / "audit.jsonl").read_text().splitlines()]
        return [{name: value for name, value in entry.items() if name != "time"} for entry in entries]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "state")


def test_the_end_of_a_browser_is_recorded_with_what_is_known_about_it(scene: Scene) -> None:
    browser = scene.sign_in("phone")
    record_ends(scene.audit, [browser], "replaced")
    known = {"id": browser.id, "label": "phone", "identity": "ann"}
    assert scene.ends() == [{"event": "browser_ended", **known, "why": "replaced"}]


def test_a_code_has_no_id_among_its_details(scene: Scene) -> None:
    code, _ = scene.browsers.make_code(None, "ann", label="phone")
    assert browser_details(code) == {"label": "phone", "identity": "ann", "token": None}


async def test_an_expired_browser_is_recorded_once_within_check_interval(
    scene: Scene, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    old = scene.sign_in("old")
    nursery.start_soon(end_expired_browsers, scene.browsers, scene.audit)
    await trio.sleep(1)
    assert scene.ends() == []
    for _ in range(29):
        scene.seconds += DAY
        scene.browsers.note_use(old)
    idle = scene.sign_in("idle")
    scene.seconds += DAY
    await trio.sleep(CHECK_INTERVAL)
    scene.seconds += 6 * DAY
    await trio.sleep(10 * CHECK_INTERVAL)
    assert [(entry["id"], entry["why"]) for entry in scene.ends()] == [(old.id, "expired"), (idle.id, "unused")]


async def test_a_browser_that_expired_while_no_gateway_ran_is_recorded_at_the_start(
    scene: Scene, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    browser = scene.sign_in("phone")
    scene.seconds += 8 * DAY
    nursery.start_soon(end_expired_browsers, scene.browsers, scene.audit)
    await trio.testing.wait_all_tasks_blocked()
    assert [entry["id"] for entry in scene.ends()] == [browser.id]


async def test_a_file_that_cannot_be_written_is_logged_once_and_tried_again(
    scene: Scene,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    browser = scene.sign_in("phone")
    scene.seconds += 8 * DAY
    # What a writer that was killed leaves behind is removed; a folder is not.
    blocking = scene.state_dir / "browsers.json.new"
    blocking.mkdir()
    with caplog.at_level(logging.WARNING):
        nursery.start_soon(end_expired_browsers, scene.browsers, scene.audit)
        await trio.sleep(3.5 * CHECK_INTERVAL)
        assert [record.message.split(":")[0] for record in caplog.records] == ["expired browsers are not removed"]
        assert scene.ends() == []
        blocking.rmdir()
        await trio.sleep(CHECK_INTERVAL)
    assert [entry["id"] for entry in scene.ends()] == [browser.id]
