"""Updates, as they are read and as they are passed on."""

import json

import pytest
from msgspec import Raw

from acp_gateway.acp.updates import Meta, Passed, SessionUpdate, Update, kind_of


@pytest.mark.parametrize("text", ["x", "\\ud83d", "\\\\ud83d \\uD83D\\ude00 \\\\\\ud83d\\\\"])
def test_an_update_is_passed_on_as_it_is_beside_its_session(text: str) -> None:
    update = b'{ "text" : "%b", "sessionUpdate": "plan" }' % text.encode()
    passed = Passed.of(b'{"params":{"update":%b,"sessionId":"s"}}' % update)
    assert (passed.session_id, bytes(passed.update), kind_of(passed.update)) == ("s", update, "plan")


def test_an_update_that_is_not_there_is_absent() -> None:
    passed = Passed.of(b'{"params":{"sessionId":7}}')
    assert (passed.session_id, bytes(passed.update), kind_of(passed.update)) == (None, b"", None)


@pytest.mark.parametrize("state", ["running", "\\ud83d"])
def test_the_members_of_the_gateway_s_own_are_told_apart_from_those_of_others(state: str) -> None:
    own = b'{"state":"%b","background":7,"terminal":{"terminalId":"t"}}' % state.encode()
    update = b'{"sessionUpdate":"session_info_update","_meta":{"state":"idle","acp-gateway":%b}}' % own
    told = Meta.read(SessionUpdate.of(b'{"params":{"update":%b}}' % update).update.meta).own
    assert (told.state, bytes(told.background), bytes(told.terminal.terminal_id)) == (
        json.loads(f'"{state}"'),
        b"7",
        b'"t"',
    )


def test_only_an_object_has_members() -> None:
    told = SessionUpdate.of(b'{"params":{"sessionId":"s","update":{"sessionUpdate":"plan","state":7,"title":[null]}}}')
    assert told == SessionUpdate("s", Update("plan", state=Raw(b"7")))
    assert SessionUpdate.of(b'{"params":{"sessionId":"s","update":[]}}') == SessionUpdate("s")
    assert SessionUpdate.of(b'{"params":null}') == SessionUpdate.of(b"[]") == SessionUpdate()
