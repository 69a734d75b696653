"""Costs of sessions by the program itself: told by `usage`, also after a restart, and asked about beyond a limit."""

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.playing import editor, playing_gateway, said
from tests.kit.running import WORK, RunningGateway, run_program, start_gateway, until

COST = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 0.25, "currency": "USD"}}
PLAYS = {"work": [{"update": COST}, said("Done.")]}
PROMPT = [{"type": "text", "text": "work"}]


def spent(gateway: RunningGateway) -> Any:
    return json.loads(run_program("usage", "--config", gateway.config, "--json"))["total"]


def test_costs_outlive_a_restart_and_a_limit_on_them_asks_before_the_next_prompt(tmp_path: Path) -> None:
    limit = '[limits]\ncost_per_identity = "0.20 USD"\n'
    with playing_gateway(tmp_path, PLAYS, more=limit) as gateway, editor(gateway) as ann:
        session = ann.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"]
        ann.call("session/prompt", sessionId=session, prompt=PROMPT)
        until(lambda: spent(gateway)["turns"] == 1)
        assert spent(gateway)["costs"] == {"USD": 0.25}
        second = ann.begin("session/prompt", sessionId=session, prompt=PROMPT)
        question = ann.hears("session/request_permission")
        title = question["params"]["toolCall"]["title"]
        assert title == "Send the prompt? cost_per_identity (0.20 USD a day) is reached: 0.25 USD today"
        ann.respond(question["id"], outcome={"outcome": "selected", "optionId": "send"})
        assert ann.result(second)["stopReason"] == "end_turn"
    again = start_gateway(tmp_path, gateway.pin)
    try:
        # The agent has told the same total again.
        assert (spent(again)["turns"], spent(again)["costs"]) == (2, {"USD": 0.25})
    finally:
        again.stop()
