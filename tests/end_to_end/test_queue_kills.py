"""Prompts that wait in a real gateway that is killed again and again: none is sent twice, or after its removal."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.parties import run
from tests.end_to_end.test_web_protocol import Browser, browser, set_up
from tests.kit.running import WORK, RunningGateway, start_gateway

pytestmark = pytest.mark.slow

KILLS = 6
PROMPTS = 6
LONGEST = 0.4
"""Seconds until a kill at most: some turns."""


class Killed:
    """One session through several lives of its gateway."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pin = set_up(directory)
        self.chance = random.Random(7)  # noqa: S311
        self.session = ""
        self.sent = 0
        self.shown: set[str] = set()
        """Texts that were shown as waiting after a restart."""
        self.removed: dict[str, bool] = {}
        """Texts that were removed; False for those that an agent may have had."""

    def heard(self) -> Counter[str]:
        """The prompts that agents have got, by text."""
        lines = (self.directory / "memory" / "heard").read_text().splitlines()
        messages = [json.loads(line) for line in lines]
        return Counter(it["params"]["prompt"][0]["text"] for it in messages if it.get("method") == "session/prompt")

    async def live(self, page: Browser) -> None:
        """Look at what waits, remove one of it, and send more, until the kill."""
        if not self.session:
            self.session = (await page.result("session/new", cwd=str(WORK)))["sessionId"]
        queue = (await page.result("session/get", sessionId=self.session))["queue"]
        self.shown |= {it["text"] for it in queue}
        for prompt in queue[-1:]:
            change = {"promptId": prompt["promptId"], "action": "remove"}
            if "result" in await page.ask("session/queue", sessionId=self.session, **change):
                self.removed[prompt["text"]] = prompt["state"] != "lost"
        for _ in range(PROMPTS):
            self.sent += 1
            blocks = [{"type": "text", "text": f"text {self.sent}"}]
            await page.result("session/prompt", sessionId=self.session, prompt=blocks, queue={"auto": True})
        await asyncio.sleep(self.chance.uniform(0.0, LONGEST))

    async def settle(self, page: Browser) -> set[str]:
        """Wait until nothing is sent any more, and return the texts of those that were lost."""
        while True:
            got = await page.result("session/get", sessionId=self.session)
            states: list[dict[str, Any]] = got["queue"]
            if all(it["state"] == "lost" for it in states) and not got["session"]["turn"]:
                return {it["text"] for it in states}
            await asyncio.sleep(0.05)


def test_kills_of_a_real_gateway_send_no_prompt_twice_and_none_that_was_removed(tmp_path: Path) -> None:
    killed = Killed(tmp_path)

    async def live(gateway: RunningGateway) -> None:
        async with browser(gateway) as page:
            await killed.live(page)
            gateway.process.kill()

    for _ in range(KILLS):
        gateway = start_gateway(tmp_path, killed.pin)
        run(live(gateway))
        gateway.stop()
    gateway = start_gateway(tmp_path, killed.pin)
    lost: set[str] = set()

    async def end() -> None:
        async with browser(gateway) as page:
            lost.update(await killed.settle(page))

    run(end())
    assert gateway.stop() == 0, "".join(gateway.log)
    heard = killed.heard()
    assert set(heard.values()) == {1}
    assert killed.shown - killed.removed.keys() <= heard.keys() | lost
    assert not {text for text, waited in killed.removed.items() if waited} & heard.keys()
