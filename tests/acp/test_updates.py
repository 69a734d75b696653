"""Updates, as they are read and as they are passed on."""

import pytest

from acp_gateway.acp.updates import kind_of, read_passed, read_update, told_in


@pytest.mark.parametrize("text", ["x", "\\ud83d"])
def test_an_update_is_passed_on_as_it_is_beside_its_session(text: str) -> None:
    update = b'{ "text" : "%b", "sessionUpdate": "plan" }' % text.encode()
    passed = read_passed(b'{"params":{"update":%b,"sessionId":"s"}}' % update)
    assert (passed.session_id, bytes(passed.update), kind_of(passed.update)) == ("s", update, "plan")


def test_an_update_that_is_not_there_is_absent() -> None:
    passed = read_passed(b'{"params":{"sessionId":7}}')
    assert (passed.session_id, bytes(passed.update), kind_of(passed.update)) == (None, b"", None)


def test_the_members_of_the_gateway_s_own_are_told_apart_from_those_of_others() -> None:
    meta = b'{"state":"idle","acp-gateway":{"state":"running","background":7,"terminal":{"terminalId":"t"}}}'
    update = read_update(b'{"params":{"update":{"sessionUpdate":"session_info_update","_meta":%b}}}' % meta).update
    told = told_in(update.meta)
    assert (told.state, bytes(told.background), bytes(told.terminal.terminal_id)) == ("running", b"7", b'"t"')
