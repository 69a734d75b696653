"""Steering with the real program: a page and an editor behind `connect` give an agent text within a turn."""

from pathlib import Path

from tests.end_to_end.parties import party, run, texts
from tests.end_to_end.playing import playing_gateway, said
from tests.end_to_end.test_web_protocol import browser
from tests.kit.running import WORK

PLAYS = {"work": [said("begun"), {"steered": True}, {"steered": True}]}


def test_a_page_and_an_editor_steer_one_turn_and_see_each_others_words(tmp_path: Path) -> None:
    async def scenario() -> None:
        with playing_gateway(tmp_path, PLAYS, steers=True) as gateway:
            async with browser(gateway) as page, party(gateway, "tcp") as editor:
                session = (await editor.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id
                assert (await page.result("session/get", sessionId=session))["session"]["canSteer"] is True
                turn = await editor.begin(session, "work")
                await page.until_said("begun")
                await page.result("session/steer", sessionId=session, prompt=[{"type": "text", "text": "left"}])
                await editor.until_told(session, "left")
                params = {"sessionId": session, "prompt": [{"type": "text", "text": "right"}]}
                # The SDK adds the underscore of an extension.
                assert await editor.agent.ext_method("session/steering", params) == {"outcome": "injected"}
                assert await turn == "end_turn"
                words = ["work", "begun", "left", "left", "right", "right"]
                await page.until(lambda: len(page.updates()) >= len(words))
                assert [one["payload"]["content"]["text"] for one in page.updates()] == words
                kinds = [one["updateType"] for one in page.updates()]
                assert kinds == ["user_message", "agent_message_chunk"] + ["user_message", "agent_message_chunk"] * 2
                assert texts(editor.updates(session)) == ["begun", "left", "right"]
                assert texts(editor.updates(session), "user_message_chunk") == ["left"]
                # Without a turn it begins one, which the page is told.
                params["prompt"][0]["text"] = "alone"
                assert await editor.agent.ext_method("session/steering", params) == {"outcome": "startedNewTurn"}
                await editor.until_told(session, "alone")
                await page.until(lambda: len([one for one in page.entries() if one["updateType"] == "turn_end"]) == 2)

    run(scenario())


def test_a_prompt_that_waits_is_given_to_the_turn_from_the_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        with playing_gateway(tmp_path, {"work": [said("begun"), {"steered": True}]}, steers=True) as gateway:
            async with browser(gateway) as page, party(gateway, "tcp") as editor:
                session = (await editor.agent.new_session(cwd=str(WORK), mcp_servers=[])).session_id
                await page.result("session/get", sessionId=session)
                turn = await editor.begin(session, "work")
                await page.until_said("begun")
                waits = await editor.begin(session, "left")
                (told,) = (await page.until(lambda: page.of("session/queue_changed")))[-1]["queue"]
                await page.result("session/queue", sessionId=session, promptId=told["promptId"], action="steer")
                assert {await turn, await waits} == {"end_turn"}
                assert texts(editor.updates(session)) == ["begun", "left"]

    run(scenario())
