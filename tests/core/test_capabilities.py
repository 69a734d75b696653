"""`initialize`: what an agent is offered, what is read in its answer, and what of that a client gets."""

import json
from typing import Any

import pytest

from acp_gateway.core.capabilities import (
    Abilities,
    abilities,
    advertise,
    advertise_own,
    asks_for,
    auth_methods,
    explain_login,
    mask_capabilities,
    own_initialize,
    requested_version,
    strip_terminal_logins,
    wants_news,
)
from acp_gateway.protocol.jsonrpc import Kind
from acp_gateway.protocol.methods import Capability
from tests.kit.scene import HINT, Scene, make_policy

BOTH = frozenset(Capability)
NO_FS = b'{"readTextFile":false,"writeTextFile":false}'

# What the gateway offers in its own name.


@pytest.mark.parametrize("serves", [frozenset(), {Capability.FS}, {Capability.TERMINAL}, BOTH])
def test_an_agent_for_several_clients_is_offered_what_the_policy_serves_and_nothing_else(
    serves: set[Capability],
) -> None:
    message = own_initialize(serves, "1.2")
    fs = Capability.FS in serves
    assert (message.kind, message.method) == (Kind.REQUEST, "initialize")
    assert json.loads(message.text)["params"] == {
        "protocolVersion": 1,
        "clientCapabilities": {
            "fs": {"readTextFile": fs, "writeTextFile": fs},
            "terminal": Capability.TERMINAL in serves,
        },
        "clientInfo": {"name": "acp-gateway", "title": "acp-gateway", "version": "1.2"},
    }


# What a client offers to an agent of its own.


def initialize_with(capabilities: bytes) -> bytes:
    return b'{"id":0,"method":"initialize","params":{"x" : 1.0,"clientCapabilities":%b, "_meta":{}}}' % capabilities


@pytest.mark.parametrize(
    ("offered", "masked"),
    [
        (b'{ "fs" : {"readTextFile":true,"writeTextFile":true} }', b'{ "fs" : %b }' % NO_FS),
        (b'{"fs":{}}', b'{"fs":%b}' % NO_FS),
        (b'{"fs":null}', b'{"fs":%b}' % NO_FS),
        (rb'{"f\u0073":{"readTextFile":true}}', rb'{"f\u0073":%b}' % NO_FS),
        (b'{"fs":{"readTextFile":true},"fs":{"writeTextFile":true}}', b'{"fs":%b,"fs":%b}' % (NO_FS, NO_FS)),
        (b'{"terminal" :true ,"y":1e999}', b'{"terminal" :false ,"y":1e999}'),
        (b'{"auth":{"terminal":true, "z":true}}', b'{"auth":{"terminal":false, "z":true}}'),
        (b'{"FS":{"readTextFile":true},"Terminal":true}', b'{"FS":%b,"Terminal":false}' % NO_FS),
        (b'{"Auth":{"TERMINAL":true}}', b'{"Auth":{"TERMINAL":false}}'),
        (b'{"auth":[true]}', b'{"auth":{}}'),
    ],
)
def test_capabilities_that_act_on_the_clients_machine_are_masked_and_no_others(offered: bytes, masked: bytes) -> None:
    assert mask_capabilities(initialize_with(offered), ()) == initialize_with(masked)


@pytest.mark.parametrize(
    "offered",
    [
        b"{}",
        b"null",
        b'"fs"',
        b'[{"fs":true}]',
        b'{"auth":true}',
        b'{"auth":{"z":true}}',
        b'{"elicitation":{"fs":{"readTextFile":true}},"_meta":{"terminal":true}}',
    ],
)
def test_other_capabilities_stay_verbatim(offered: bytes) -> None:
    assert mask_capabilities(initialize_with(offered), ()) == initialize_with(offered)


MANY = b"{%b}" % b",".join(b'"k%d":1' % number for number in range(513))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "params",
    [
        b'{"protocolVersion":1,"clientCapabilities":%b}' % MANY,
        b'{"protocolVersion":1,"clientCapabilities":{"auth":%b}}' % MANY,
        b'{"protocolVersion":1,"clientCapabilities":[{"readTextFile":true},true]}',
        b'{"protocolVersion":1,"ClientCapabilities":{"fs":{"readTextFile":true}}}',
        b'[1,{"fs":{"readTextFile":true}}]',
    ],
    ids=["many", "many within", "an array", "another case", "positional"],
)
def test_an_offer_that_cannot_be_masked_is_refused_and_another_may_follow(shared: bool, params: bytes) -> None:
    scene = Scene(make_policy(shared=shared))
    ann = scene.join("ann", initialize=False)
    ann.say(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":%b}' % params)
    assert ann.hears()["error"]["code"] == -32602
    assert not scene.agent.heard()
    ann.request("initialize", protocolVersion=1)
    assert scene.agent.takes("initialize")


def test_where_nothing_is_offered_there_is_nothing_to_mask() -> None:
    text = b'{"id":0,"method":"initialize","params":{"protocolVersion":1}}'
    assert mask_capabilities(text, ()) == text


def test_served_capabilities_are_not_masked_except_a_terminal_login() -> None:
    offered = b'{"fs":{"readTextFile":true},"terminal":true,"auth":{"terminal":true}}'
    assert mask_capabilities(initialize_with(offered), {Capability.FS}) == initialize_with(
        b'{"fs":{"readTextFile":true},"terminal":false,"auth":{"terminal":false}}'
    )
    assert mask_capabilities(initialize_with(offered), {Capability.TERMINAL}) == initialize_with(
        b'{"fs":%b,"terminal":true,"auth":{"terminal":false}}' % NO_FS
    )


@pytest.mark.parametrize(
    ("meta", "wanted"),
    [
        ({"acp-gateway": {}}, True),
        ({"acp-gateway": True}, True),
        ({"acp-gateway": False}, False),
        ({"acp-gateway": None}, False),
        ({"other": {}}, False),
        (None, False),
        ("acp-gateway", False),
    ],
)
def test_news_are_for_who_asks_for_them(meta: Any, wanted: bool) -> None:
    assert wants_news(initialize_with(json.dumps({"_meta": meta}).encode())) is wanted


@pytest.mark.parametrize(
    ("spelling", "version"),
    [
        (b"1", 1),
        (b"2", 2),
        (b"0", 0),
        (b'"1"', None),
        (b"1.0", None),
        (b"-1", None),
        (b"null", None),
        (b"1" * 10, None),
    ],
)
def test_the_version_that_is_asked_for_is_a_small_whole_number(spelling: bytes, version: int | None) -> None:
    assert requested_version(b'{"params":{"protocolVersion":%b}}' % spelling) == version
    assert requested_version(b'{"params":{}}') is None


# What the agent says it can do.


def initialized(result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"result":%b}' % result


def test_an_agent_can_do_what_it_says() -> None:
    capabilities = b'{"loadSession":true,"sessionCapabilities":{"list":{},"resume":{"x":1},"close":{},"fork":{}}}'
    text = initialized(b'{"protocolVersion":1,"agentCapabilities":%b}' % capabilities)
    assert abilities(text) == Abilities(version=1, load=True, resume=True, list=True, close=True)


@pytest.mark.parametrize(
    "result",
    [
        b"{}",
        b"null",
        b'{"agentCapabilities":null,"protocolVersion":"1"}',
        b'{"agentCapabilities":{"sessionCapabilities":null,"loadSession":"true"},"protocolVersion":null}',
        b'{"agentCapabilities":{"loadSession":false,"sessionCapabilities":{"list":null,"resume":false}}}',
        b'{"protocolVersion":12345678901}',
    ],
)
def test_an_agent_can_do_nothing_that_it_does_not_say(result: bytes) -> None:
    assert abilities(initialized(result)) == Abilities()


@pytest.mark.parametrize(
    ("able", "reopens"),
    [(Abilities(), False), (Abilities(load=True), True), (Abilities(resume=True), True), (Abilities(list=True), False)],
)
def test_a_session_outlives_its_process_where_the_agent_can_load_or_resume(able: Abilities, reopens: bool) -> None:
    assert able.reopens is reopens


@pytest.mark.parametrize(("version", "echoes"), [(None, False), (1, False), (2, True), (3, True)])
def test_agents_show_what_was_said_from_the_second_version_on(version: int | None, echoes: bool) -> None:
    assert Abilities(version=version).echoes is echoes


# What clients are told that an agent for several can do.


def test_sessions_of_an_agent_for_several_can_be_loaded_listed_resumed_and_closed_whatever_it_can_do() -> None:
    told = json.loads(advertise(initialized(b'{"protocolVersion":1,"authMethods":[]}')))
    assert told == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "protocolVersion": 1,
            "authMethods": [],
            "agentCapabilities": {"loadSession": True, "sessionCapabilities": {"list": {}, "resume": {}, "close": {}}},
        },
    }


def test_other_members_of_the_agents_initialize_response_stay_verbatim() -> None:
    text = initialized(
        b'{"protocolVersion":1,"agentCapabilities":{"loadSession":false,"promptCapabilities":{"n" : 1e999},'
        b'"sessionCapabilities":{"list":{"x":1.10},"close":null,"fork":{}}},"_meta":{"s":"\\ud83d"}}'
    )
    assert advertise(text) == initialized(
        b'{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"promptCapabilities":{"n" : 1e999},'
        b'"sessionCapabilities":{"list":{"x":1.10},"close":{},"fork":{},"resume":{}}},"_meta":{"s":"\\ud83d"}}'
    )


@pytest.mark.parametrize("result", [b'{"protocolVersion":2}', b"{}", b"null"])
def test_for_other_versions_nothing_is_claimed(result: bytes) -> None:
    assert advertise(initialized(result)) == initialized(result)


# Logging in.

TERMINAL_LOGINS = [
    b'{"id":"t","type":"terminal","args":["--login"]}',
    b'{"id":"t","_meta":{"terminal-auth":{"command":"x"}}}',
    b'{"id":"t","_meta":{"type":"terminal"}}',
    rb'{"id":"t","type":"\u0074erminal","description":"\ud83d"}',
]
OTHER_LOGINS = [
    b'{"id" : "a", "name":"A","_meta":{"n":1.10}}',
    b'{"id":"b","type":"env_var","vars":[{"name":"terminal"}]}',
    b'{"id":"c","_meta":null}',
    b'"terminal"',
    b"null",
]


def initialized_with(logins: bytes) -> bytes:
    return b'{"id":"init","result":{"authMethods" : %b ,"n":1e999}}' % logins


@pytest.mark.parametrize("login", TERMINAL_LOGINS)
def test_a_login_that_would_run_a_command_is_not_offered_to_a_client(login: bytes) -> None:
    assert strip_terminal_logins(initialized_with(b"[ %b ]" % login)) == initialized_with(b"[]")


def test_the_other_logins_stay_verbatim_beside_it() -> None:
    mixed = [OTHER_LOGINS[0], TERMINAL_LOGINS[0], *OTHER_LOGINS[1:], TERMINAL_LOGINS[1]]
    assert strip_terminal_logins(initialized_with(b"[" + b", ".join(mixed) + b"]")) == initialized_with(
        b"[" + b",".join(OTHER_LOGINS) + b"]"
    )


@pytest.mark.parametrize("logins", [b"[ %b ]" % b" , ".join(OTHER_LOGINS), b"[]", b"null", b'{"type":"terminal"}'])
def test_without_such_a_login_the_answer_is_verbatim(logins: bytes) -> None:
    assert strip_terminal_logins(initialized_with(logins)) == initialized_with(logins)


def test_the_logins_can_be_told_to_a_person_as_far_as_they_can_be_read() -> None:
    # A number that Python refuses to read costs the method that it is in.
    logins = rb'[{"id":"a"},{"type":"terminal","args":["\ud83d"]},5,{"n":%b}]' % (b"1" * 5000)
    assert auth_methods(initialized_with(logins)) == [{"id": "a"}, {"type": "terminal", "args": ["\ud83d"]}, {}, {}]
    assert auth_methods(initialized(b"{}")) == []


LOGIN_ERROR = b'{"id":1,"error":{"data":{"n":1.10}, "code" : -32000 , "message": %b ,"x":1e999}}'


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        ("Authentication required", f"Authentication required. {HINT}"),
        ("Log in first.", f"Log in first. {HINT}"),
        ("Who are you? ", f"Who are you? {HINT}"),
        ("", HINT),
        ("é \ud83d", f"é \ud83d. {HINT}"),
    ],
)
def test_an_agent_that_is_not_logged_in_says_what_to_run(said: str, explained: str) -> None:
    answer = explain_login(LOGIN_ERROR % json.dumps(said).encode(), [], lambda _: HINT)
    assert answer == LOGIN_ERROR % json.dumps(explained).encode()


@pytest.mark.parametrize(
    "error",
    [
        b'{"code":-32001,"message":"no"}',
        b'{"code":"-32000","message":"no"}',
        b'{"code":-32000}',
        b'{"code":-32000,"message":null}',
        b'{"message":"-32000"}',
        b'"-32000"',
        b"[-32000]",
    ],
)
def test_any_other_error_is_not_explained(error: bytes) -> None:
    text = b'{"id":1,"error":%b}' % error
    assert explain_login(text, [], lambda _: HINT) == text


@pytest.mark.parametrize("name", ["queue", "cursors"])
@pytest.mark.parametrize(("value", "wanted"), [(True, True), (1, False), (None, False)])
def test_what_a_client_asks_for_by_its_name_it_gets(name: str, value: Any, wanted: bool) -> None:
    for asked, gets in (({name: value}, wanted), ({}, False), (True, False)):
        assert asks_for(initialize_with(json.dumps({"_meta": {"acp-gateway": asked}}).encode()), name) is gets


def test_a_client_with_cursors_is_told_of_these_and_of_the_status() -> None:
    text = initialized(
        b'{"agentCapabilities":{"x":1.50,"sessionCapabilities":{"list":{}},"_meta":{"y":1,"acp-gateway":{"z":2}}}}'
    )
    told = json.loads(advertise_own(text, cursors=True))["result"]["agentCapabilities"]
    assert told == {
        "x": 1.5,
        "sessionCapabilities": {"list": {}, "status": {}},
        "_meta": {"y": 1, "acp-gateway": {"z": 2, "cursors": True}},
    }
    for other in (b"{}", b"null", b'{"agentCapabilities":5}'):
        assert advertise_own(initialized(other), cursors=True) == initialized(other)
