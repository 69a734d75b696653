"""Prompts that wait: their text as it is shown, and another one in its place."""

import json
from typing import Any

import pytest

from acp_gateway.core.turns.queued_prompts import SHOWN_SIZE, describe_prompt, with_text
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message

LINK = {"type": "resource_link", "uri": "file:///srv/a.py", "name": "a.py"}
IMAGE = {"type": "image", "mimeType": "image/png", "data": "AAAA"}


def prompt(*blocks: Any) -> Message:
    params = {"sessionId": "s", "prompt": list(blocks), "messageId": "m"}
    return jsonrpc.parse(json.dumps({"id": 1, "method": "session/prompt", "params": params}).encode())


def say(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("blocks", "text", "attached"),
    [
        ([say("hello")], "hello", 0),
        ([say("look at "), LINK, say(", please")], "look at @a.py, please", 0),
        ([say("one"), say("two")], "one\ntwo", 0),
        ([say("see"), IMAGE, {"type": "resource"}, 7, {"type": "text", "text": 7}], "see", 4),
        ([], "", 0),
    ],
)
def test_the_text_of_a_queued_prompt_is_shown_with_the_number_of_what_is_attached(
    blocks: list[Any], text: str, attached: int
) -> None:
    shown = describe_prompt("k", 5, prompt(*blocks))
    assert (shown.key, shown.at, shown.text, shown.whole, shown.attached) == ("k", 5, text, True, attached)


@pytest.mark.parametrize("blocks", [[say("x" * SHOWN_SIZE)], [say("x" * 3000), say("y" * 3000), say("z")]])
def test_of_a_long_queued_prompt_the_beginning_is_shown(blocks: list[Any]) -> None:
    shown = describe_prompt("k", None, prompt(*blocks))
    assert not shown.whole
    assert SHOWN_SIZE - 10 <= len(shown.text) <= SHOWN_SIZE + len(blocks)
    assert shown.text.startswith("xxx")


def test_another_text_replaces_the_text_blocks_and_keeps_what_is_attached() -> None:
    after = json.loads(with_text(prompt(say("look at "), LINK, say(", please"), IMAGE), "now look at @a.py"))
    assert after["params"] == {"sessionId": "s", "prompt": [say("now look at @a.py"), LINK, IMAGE], "messageId": "m"}


def test_a_link_that_the_other_text_does_not_mention_is_dropped() -> None:
    after = json.loads(with_text(prompt(say("look at "), LINK), "look elsewhere"))
    assert after["params"]["prompt"] == [say("look elsewhere")]


def test_an_empty_text_leaves_what_is_attached() -> None:
    assert json.loads(with_text(prompt(say("see"), IMAGE), " "))["params"]["prompt"] == [IMAGE]
