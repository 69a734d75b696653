"""Prompts that have not reached the agent: their responses, and their names for a person."""

import json

import pytest

from acp_gateway.protocol.not_sent import CANCELLED, SHOWN, first_text, name_prompt, was_not_sent


def test_a_result_says_that_its_prompt_was_not_sent() -> None:
    assert json.loads(CANCELLED)["stopReason"] == "cancelled"
    assert was_not_sent(b'{"id":1,"result":%b}' % CANCELLED)


@pytest.mark.parametrize(
    "response",
    [
        b'{"id":1,"result":{"stopReason":"cancelled"}}',
        b'{"id":1,"result":{"_meta":{"acp-gateway":{"notSent":false}}}}',
        b'{"id":1,"result":{"_meta":{"other":{"notSent":true}}}}',
        b'{"id":1,"error":{"data":{"notSent":true}}}',
        b'"notSent"',
    ],
)
def test_no_other_response_does(response: bytes) -> None:
    assert not was_not_sent(response)


def test_a_prompt_is_named_by_the_beginning_of_its_text_in_one_line() -> None:
    assert name_prompt("lost", "fix\n the  tests ") == 'lost: "fix the tests"'
    assert name_prompt("lost", " \n") == "lost"
    assert name_prompt("lost", "x" * 300) == f'lost: "{"x" * SHOWN}…"'


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        (b'[{"type":"image","data":""},{"type":"text","text":"a\\u00fc"},{"type":"text","text":"b"}]', "a\u00fc"),
        (b'[{"type":"resource_link","text":"x"}]', ""),
        (b'[{"type":"text","text":7}]', ""),
        (b"[]", ""),
        (b"{}", ""),
        (b'[{"type":"te', ""),
    ],
)
def test_the_text_of_a_prompt_is_that_of_its_first_block_of_text(blocks: bytes, text: str) -> None:
    assert first_text(blocks) == text
    assert len(first_text(b'[{"type":"text","text":"%b"}]' % (b"x" * 10_000))) < 10 * SHOWN
