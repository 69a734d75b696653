"""One client and its agent: dialogues, rule by rule; then any bytes from both sides; then any order of events."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acp_gateway.protocol.jsonrpc import Kind, parse
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.multiplexer import Deliveries, Multiplexer, Policy, Problem

HINT = "On the far machine: run `agent login`."


def check_directory(cwd: str) -> Problem | None:
    return None if cwd.startswith("/srv") else Problem(f"no {cwd} here", {"cwd": cwd})


def policy(*serves: Capability) -> Policy:
    return Policy(frozenset(serves), check_directory, 1000, lambda _: HINT)


INITIALIZE = b'{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":1}}'
INITIALIZED = b'{"jsonrpc":"2.0","id":"init","result":{"protocolVersion":1}}'


class Talk:
    """A multiplexer between a client and an agent: each thing said returns what is delivered because of it."""

    def __init__(self, *serves: Capability) -> None:
        self.multiplexer = Multiplexer(policy(*serves))

    def client(self, text: bytes) -> Deliveries:
        self.multiplexer.receive_from_client(text)
        return self.multiplexer.take_deliveries()

    def agent(self, text: bytes) -> Deliveries:
        self.multiplexer.receive_from_agent(text)
        return self.multiplexer.take_deliveries()

    def client_gone(self) -> Deliveries:
        self.multiplexer.client_gone()
        return self.multiplexer.take_deliveries()

    def agent_lost(self, why: str = "the agent ended") -> Deliveries:
        self.multiplexer.agent_lost(why, {"exitCode": 1})
        return self.multiplexer.take_deliveries()

    @property
    def notes(self) -> list[str]:
        return self.multiplexer.take_notes()

    @property
    def dropped(self) -> int:
        return self.multiplexer.dropped_responses


@pytest.fixture
def fresh() -> Talk:
    """Nothing has been said yet."""
    return Talk()


@pytest.fixture
def talk() -> Talk:
    """`initialize` has succeeded."""
    return begun()


def begun(*serves: Capability) -> Talk:
    talk = Talk(*serves)
    assert talk.client(INITIALIZE) == to_agent(INITIALIZE)
    assert talk.agent(INITIALIZED) == to_client(INITIALIZED)
    return talk


def to_client(*texts: bytes) -> Deliveries:
    return Deliveries([*texts], [])


def to_agent(*texts: bytes) -> Deliveries:
    return Deliveries([], [*texts])


NOTHING = Deliveries([], [])


def request(raw_id: bytes, method: str = "x/y", params: bytes = b"{}") -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (raw_id, method.encode(), params)


def result(raw_id: bytes, value: bytes = b"{}") -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (raw_id, value)


def notification(method: str, params: bytes = b"{}") -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params)


def cancel(raw_id: bytes) -> bytes:
    return notification("$/cancel_request", b'{"requestId":%b}' % raw_id)


def refused(texts: list[bytes]) -> list[tuple[bytes, int]]:
    """The ids and codes of errors."""
    return [(parse(text).id, json.loads(text)["error"]["code"]) for text in texts]


def client_refused(deliveries: Deliveries) -> tuple[bytes, int]:
    """The id and the code of the one error that the client gets, and nobody gets anything else."""
    assert deliveries.to_agent == []
    (refusal,) = refused(deliveries.to_client)
    return refusal


def agent_refused(deliveries: Deliveries) -> tuple[bytes, int]:
    """The id and the code of the one error that the agent gets, and nobody gets anything else."""
    assert deliveries.to_client == []
    (refusal,) = refused(deliveries.to_agent)
    return refusal


# Verbatim

ODD = [
    rb'{ "_meta" : {"a":1.10} , "jsonrpc":"2.0","id":%b,"method":"a/b" ,"params":{"n":[1e999, 1.0,-0],"u":null } }',
    rb'{"method":"_auth/status_update","params":{"text":"\ud83d \/ \u0041"},"id":%b, "unknown":{"x":[]}}',
    b'\t{"id":%b,"jsonrpc":"2.0","method":"craft/\xc3\xa9","params":["\xe2\x80\xa8"]}\r',
]


@pytest.mark.parametrize("odd", ODD)
def test_messages_pass_byte_for_byte_both_ways(talk: Talk, odd: bytes) -> None:
    text = odd % b"5"
    assert talk.client(text) == to_agent(text)
    assert talk.agent(text) == to_client(text)
    plain = text.replace(b'"id":5', b'"Id":5')
    assert talk.client(plain) == to_agent(plain)
    assert talk.agent(plain) == to_client(plain)
    answer = b' {"result" : {"n":1e999,"_meta":{"b":[ ]}}, "id":5,"x":"\\ud83d"}'
    assert talk.agent(answer) == to_client(answer)
    assert talk.client(answer) == to_agent(answer)


def test_an_error_passes_verbatim_both_ways(talk: Talk) -> None:
    talk.client(request(b"5"))
    talk.agent(request(b"5"))
    error = b'{"id":5,"jsonrpc":"2.0","error":{"message":"no", "code":-32603,"data":[1.10]}}'
    assert talk.agent(error) == to_client(error)
    assert talk.client(error) == to_agent(error)


def test_the_order_of_what_one_side_says_is_kept(talk: Talk) -> None:
    update = notification("session/update")
    talk.client(request(b"1", "session/prompt"))
    for text in (update, request(b"1"), update, result(b"1")):
        talk.multiplexer.receive_from_agent(text)
    assert talk.multiplexer.take_deliveries() == to_client(update, request(b"1"), update, result(b"1"))


# initialize


@pytest.mark.parametrize("method", ["session/new", "session/prompt", "unknown", "authenticate"])
def test_a_request_before_initialize_is_refused(fresh: Talk, method: str) -> None:
    assert client_refused(fresh.client(request(b"1", method))) == (b"1", -32600)
    assert not fresh.multiplexer.wants_agent


def test_a_notification_before_initialize_is_dropped_without_an_answer(fresh: Talk) -> None:
    assert fresh.client(notification("session/cancel")) == NOTHING
    assert fresh.notes == ["dropped a notification of the client: the first request must be initialize"]


def test_bad_text_is_answered_before_initialize_too(fresh: Talk) -> None:
    assert client_refused(fresh.client(b"hello")) == (b"null", -32700)
    assert client_refused(fresh.client(b"[]")) == (b"null", -32600)


def test_an_agent_is_wanted_from_initialize_on(fresh: Talk) -> None:
    fresh.client(INITIALIZE)
    assert fresh.multiplexer.wants_agent
    fresh.agent(INITIALIZED)
    assert fresh.multiplexer.wants_agent


def test_what_is_said_while_initialize_is_open_follows_it(fresh: Talk) -> None:
    assert fresh.client(INITIALIZE) == to_agent(INITIALIZE)
    assert fresh.client(request(b"1", "session/list")) == to_agent(request(b"1", "session/list"))
    assert fresh.client(notification("x")) == to_agent(notification("x"))
    assert fresh.agent(notification("y")) == to_client(notification("y"))


@pytest.mark.parametrize("answered", [False, True])
def test_a_second_initialize_is_refused(fresh: Talk, answered: bool) -> None:
    fresh.client(INITIALIZE)
    if answered:
        fresh.agent(INITIALIZED)
    assert client_refused(fresh.client(request(b"2", "initialize"))) == (b"2", -32600)
    if not answered:
        assert fresh.agent(INITIALIZED) == to_client(INITIALIZED)


def test_a_second_initialize_under_the_id_of_the_first_leaves_it_unharmed(fresh: Talk) -> None:
    fresh.client(INITIALIZE)
    assert client_refused(fresh.client(INITIALIZE)) == (b"null", -32600)
    assert fresh.agent(INITIALIZED) == to_client(INITIALIZED)


def test_initialize_without_an_id_is_not_a_way_round_the_first_one(talk: Talk) -> None:
    assert talk.client(notification("initialize", b'{"clientCapabilities":{"terminal":true}}')) == NOTHING
    assert talk.notes == ["dropped a notification of the client: initialize must be a request"]


def test_after_a_failed_initialize_another_one_is_taken_and_nothing_else(fresh: Talk) -> None:
    failure = b'{"id":"init","error":{"code":-32603,"message":"no"}}'
    fresh.client(INITIALIZE)
    assert fresh.agent(failure) == to_client(failure)
    assert not fresh.multiplexer.wants_agent
    assert client_refused(fresh.client(request(b"1", "session/new"))) == (b"1", -32600)
    assert fresh.client(INITIALIZE) == to_agent(INITIALIZE)
    assert fresh.agent(INITIALIZED) == to_client(INITIALIZED)
    assert fresh.client(request(b"1")) == to_agent(request(b"1"))


def test_a_null_error_beside_the_result_of_initialize_is_no_failure(fresh: Talk) -> None:
    fresh.client(INITIALIZE)
    fresh.agent(b'{"id":"init","result":{},"error":null}')
    assert fresh.client(request(b"1")) == to_agent(request(b"1"))


# Masks


def initialize_with(capabilities: bytes) -> bytes:
    return b'{"id":0,"method":"initialize","params":{"x" : 1.0,"clientCapabilities":%b, "_meta":{}}}' % capabilities


NO_FS = b'{"readTextFile":false,"writeTextFile":false}'


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
    ],
)
def test_what_would_happen_on_the_clients_machine_is_masked_and_only_that(
    fresh: Talk, offered: bytes, masked: bytes
) -> None:
    assert fresh.client(initialize_with(offered)) == to_agent(initialize_with(masked))


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
def test_other_capabilities_pass_verbatim(fresh: Talk, offered: bytes) -> None:
    assert fresh.client(initialize_with(offered)) == to_agent(initialize_with(offered))


def test_only_what_the_policy_serves_is_not_masked() -> None:
    offered = b'{"fs":{"readTextFile":true},"terminal":true,"auth":{"terminal":true}}'
    assert Talk(Capability.FS).client(initialize_with(offered)) == to_agent(
        initialize_with(b'{"fs":{"readTextFile":true},"terminal":false,"auth":{"terminal":false}}')
    )
    assert Talk(Capability.TERMINAL).client(initialize_with(offered)) == to_agent(
        initialize_with(b'{"fs":%b,"terminal":true,"auth":{"terminal":false}}' % NO_FS)
    )


def test_capabilities_anywhere_but_in_initialize_are_no_capabilities(talk: Talk) -> None:
    text = request(b"1", "x/y", b'{"clientCapabilities":{"terminal":true}}')
    assert talk.client(text) == to_agent(text)


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/new"])
def test_a_masked_method_of_the_agent_is_answered_here(talk: Talk, method: str) -> None:
    assert agent_refused(talk.agent(request(b"0", method))) == (b"0", -32601)
    assert talk.notes == [
        f"refused a message of the agent: '{method}' was not offered: the client works on another machine"
    ]


def test_a_masked_method_may_be_called_anything(talk: Talk) -> None:
    assert agent_refused(talk.agent(request(b"0", r"fs/\ud83d\n"))) == (b"0", -32601)
    (note,) = talk.notes
    assert note.isprintable()
    assert agent_refused(talk.agent(request(b"0", "fs/" + "x" * 10_000))) == (b"0", -32601)
    (note,) = talk.notes
    assert len(note) < 250


def test_a_served_method_of_the_agent_passes() -> None:
    talk = begun(Capability.FS)
    text = request(b"0", "fs/read_text_file")
    assert talk.agent(text) == to_client(text)
    assert talk.client(result(b"0")) == to_agent(result(b"0"))
    assert agent_refused(talk.agent(request(b"0", "terminal/create"))) == (b"0", -32601)


# Logging in

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


def initialized_with(auth_methods: bytes) -> bytes:
    return b'{"id":"init","result":{"authMethods" : %b ,"n":1e999}}' % auth_methods


@pytest.mark.parametrize("login", TERMINAL_LOGINS)
def test_a_login_that_would_run_a_command_is_not_offered_to_the_client(fresh: Talk, login: bytes) -> None:
    fresh.client(INITIALIZE)
    assert fresh.agent(initialized_with(b"[ %b ]" % login)) == to_client(initialized_with(b"[]"))


def test_the_other_logins_stay_verbatim_beside_it(fresh: Talk) -> None:
    fresh.client(INITIALIZE)
    mixed = [OTHER_LOGINS[0], TERMINAL_LOGINS[0], *OTHER_LOGINS[1:], TERMINAL_LOGINS[1]]
    assert fresh.agent(initialized_with(b"[" + b", ".join(mixed) + b"]")) == to_client(
        initialized_with(b"[" + b",".join(OTHER_LOGINS) + b"]")
    )


@pytest.mark.parametrize("logins", [b"[ %b ]" % b" , ".join(OTHER_LOGINS), b"[]", b"null", b'{"type":"terminal"}'])
def test_without_such_a_login_the_answer_is_verbatim(fresh: Talk, logins: bytes) -> None:
    fresh.client(INITIALIZE)
    assert fresh.agent(initialized_with(logins)) == to_client(initialized_with(logins))


def test_only_the_answer_to_initialize_is_searched_for_logins(talk: Talk) -> None:
    talk.client(request(b'"init"', "x/y"))
    text = initialized_with(b"[%b]" % TERMINAL_LOGINS[0])
    assert talk.agent(text) == to_client(text)


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
def test_an_agent_that_is_not_logged_in_says_what_to_run(talk: Talk, said: str, explained: str) -> None:
    talk.client(request(b"1", "session/new"))
    answer = talk.agent(LOGIN_ERROR % json.dumps(said).encode())
    assert answer == to_client(LOGIN_ERROR % json.dumps(explained).encode())


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
def test_any_other_error_is_not_explained(talk: Talk, error: bytes) -> None:
    talk.client(request(b"1", "session/new"))
    text = b'{"id":1,"error":%b}' % error
    assert talk.agent(text) == to_client(text)


def test_a_failed_initialize_can_be_explained_too(fresh: Talk) -> None:
    fresh.client(request(b"1", "initialize"))
    assert fresh.agent(LOGIN_ERROR % b'"Log in"') == to_client(LOGIN_ERROR % json.dumps(f"Log in. {HINT}").encode())


def test_the_hint_knows_all_logins_that_the_agent_offered() -> None:
    offered: list[list[dict[str, Any]]] = []

    def hint(auth_methods: list[dict[str, Any]]) -> str:
        offered.append(auth_methods)
        return ""

    multiplexer = Multiplexer(Policy(frozenset(), check_directory, 1000, hint))
    multiplexer.receive_from_client(INITIALIZE)
    multiplexer.receive_from_agent(
        initialized_with(rb'[{"id":"a"},{"type":"terminal","args":["\ud83d"]},5,{"n":%b}]' % (b"1" * 5000))
    )
    multiplexer.receive_from_client(request(b"1"))
    multiplexer.receive_from_agent(LOGIN_ERROR % b'""')
    # A number that Python refuses to read costs the method that it is in.
    assert offered == [[{"id": "a"}, {"type": "terminal", "args": ["\ud83d"]}, {}, {}]]


# Sessions and their directories

OPENING = ["session/new", "session/load", "session/resume", "session/fork"]


@pytest.mark.parametrize("method", OPENING)
def test_a_session_in_a_directory_that_is_not_there_is_refused_with_the_reason(talk: Talk, method: str) -> None:
    deliveries = talk.client(request(b"1", method, b'{"cwd":"/Users/ann"}'))
    assert client_refused(deliveries) == (b"1", -32602)
    error = json.loads(deliveries.to_client[0])["error"]
    assert (error["message"], error["data"]) == ("no /Users/ann here", {"cwd": "/Users/ann"})


@pytest.mark.parametrize("method", OPENING)
@pytest.mark.parametrize("params", [b'{"cwd":"/srv/proj"}', b"{}", b'{"cwd":5}', b"[]"])
def test_a_session_in_any_other_directory_is_for_the_agent_to_judge(talk: Talk, method: str, params: bytes) -> None:
    text = request(b"1", method, params)
    assert talk.client(text) == to_agent(text)


def test_a_directory_of_another_method_is_not_judged(talk: Talk) -> None:
    text = request(b"1", "session/list", b'{"cwd":"/Users/ann"}')
    assert talk.client(text) == to_agent(text)


def test_a_refused_id_is_free_again(talk: Talk) -> None:
    talk.client(request(b"1", "session/new", b'{"cwd":"/Users/ann"}'))
    again = request(b"1", "session/new", b'{"cwd":"/srv"}')
    assert talk.client(again) == to_agent(again)


def test_a_directory_with_a_lone_surrogate_can_be_refused(talk: Talk) -> None:
    deliveries = talk.client(request(b"1", "session/new", rb'{"cwd":"/\ud83d"}'))
    assert json.loads(deliveries.to_client[0])["error"]["data"] == {"cwd": "/\ud83d"}


# Ids

IDS = [b"0", b"1", b'"1"', b"1.0", b"1e2", b'""', b'"null"', b"null", b"9223372036854775808", b'"f81d4fae-7dec"', b"-0"]


def test_ids_of_all_types_in_flight_at_once_come_back_as_they_were_spelled(talk: Talk) -> None:
    for raw in IDS:
        assert talk.client(request(raw)) == to_agent(request(raw))
    for raw in reversed(IDS):
        assert talk.agent(result(raw, raw)) == to_client(result(raw, raw))


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"1e2", b"100"),
        (b"1.0", b"1"),
        (b"1", b"1.0"),
        (b"9223372036854775807", b"9223372036854775808"),
        (rb'"\u0061\/"', b'"a/"'),
    ],
)
def test_an_id_that_the_other_side_spells_anew_gets_its_spelling_back(
    talk: Talk, asked: bytes, answered: bytes
) -> None:
    talk.client(request(asked))
    assert talk.agent(b' {"result":1e999, "id" : %b}' % answered) == to_client(b' {"result":1e999, "id" : %b}' % asked)
    talk.agent(request(asked))
    assert talk.client(result(answered)) == to_agent(result(asked))


def test_an_answer_under_a_new_spelling_is_masked_and_explained_all_the_same(fresh: Talk) -> None:
    fresh.client(request(b"1.0", "initialize"))
    assert fresh.agent(result(b"1", b'{"authMethods":[%b]}' % TERMINAL_LOGINS[0])) == to_client(
        result(b"1.0", b'{"authMethods":[]}')
    )


def test_both_sides_use_the_same_ids_at_once(talk: Talk) -> None:
    talk.client(request(b"0", "session/prompt"))
    talk.agent(request(b"0", "session/request_permission"))
    assert talk.client(result(b"0", b'"allow"')) == to_agent(result(b"0", b'"allow"'))
    assert talk.agent(result(b"0", b'"done"')) == to_client(result(b"0", b'"done"'))


@pytest.mark.parametrize(
    ("first", "second"), [(b"1", b"1"), (b'"a"', rb'"\u0061"'), (b"null", b"null"), (b"1e2", b"1e2")]
)
def test_an_id_in_use_is_refused_and_the_first_request_is_unharmed(talk: Talk, first: bytes, second: bytes) -> None:
    talk.client(request(first))
    assert client_refused(talk.client(request(second))) == (b"null", -32600)
    assert talk.agent(result(first)) == to_client(result(first))
    assert talk.client(request(second)) == to_agent(request(second))


@pytest.mark.parametrize(
    "again",
    [
        request(b"1", "_acp-gateway/hello"),
        request(b"1", "initialize"),
        request(b"1", "session/new", b'{"cwd":"/nowhere"}'),
        b'{"id":1,"method":"a","method":"b"}',
    ],
)
def test_no_refusal_settles_an_earlier_request_of_the_same_id(talk: Talk, again: bytes) -> None:
    talk.client(request(b"1"))
    assert client_refused(talk.client(again))[0] == b"null"
    assert talk.agent(result(b"1")) == to_client(result(b"1"))


def test_the_agent_may_reuse_an_id_after_and_before_its_answer(talk: Talk) -> None:
    for _ in range(2):
        assert talk.agent(request(b"0")) == to_client(request(b"0"))
        assert talk.client(result(b"0")) == to_agent(result(b"0"))
    talk.agent(request(b"0"))
    talk.agent(request(b"0"))
    assert [talk.client(result(b"0")) for _ in range(3)] == [to_agent(result(b"0"))] * 2 + [NOTHING]


# Responses that nobody waits for


def test_a_response_that_nobody_waits_for_is_dropped_and_counted(talk: Talk) -> None:
    assert talk.client(result(b"9")) == NOTHING
    assert talk.agent(result(b"9")) == NOTHING
    assert talk.client(b'{"id":null,"error":{"code":-32700,"message":"?"}}') == NOTHING
    assert talk.dropped == 3
    assert talk.notes == [
        "dropped a response of the client that nobody waits for",
        "dropped a response of the agent that nobody waits for",
        "dropped a response of the client that nobody waits for",
    ]
    assert talk.notes == []


def test_a_second_answer_is_dropped(talk: Talk) -> None:
    talk.client(request(b"1"))
    assert talk.agent(result(b"1")) == to_client(result(b"1"))
    assert talk.agent(result(b"1")) == NOTHING
    assert talk.dropped == 1


def test_nobody_answers_a_request_of_their_own(talk: Talk) -> None:
    talk.client(request(b"1"))
    talk.agent(request(b"2"))
    assert talk.client(result(b"1")) == NOTHING
    assert talk.agent(result(b"2")) == NOTHING
    assert talk.agent(result(b"1")) == to_client(result(b"1"))
    assert talk.client(result(b"2")) == to_agent(result(b"2"))


# Cancelling


def test_a_cancel_of_the_clients_own_request_reaches_the_agent_which_still_answers(talk: Talk) -> None:
    talk.client(request(b"1"))
    assert talk.client(cancel(b"1")) == to_agent(cancel(b"1"))
    assert client_refused(talk.client(request(b"1"))) == (b"null", -32600)
    assert talk.agent(result(b"1")) == to_client(result(b"1"))
    assert talk.client(cancel(b"1")) == NOTHING


def test_a_cancel_of_the_agents_own_request_reaches_the_client_which_still_answers(talk: Talk) -> None:
    talk.agent(request(b'"p"'))
    assert talk.agent(cancel(b'"p"')) == to_client(cancel(b'"p"'))
    assert talk.client(result(b'"p"')) == to_agent(result(b'"p"'))
    assert talk.agent(cancel(b'"p"')) == NOTHING


def test_a_cancel_is_read_in_the_id_space_of_its_sender(talk: Talk) -> None:
    talk.client(request(b"1"))
    talk.agent(request(b"2"))
    assert talk.client(cancel(b"2")) == NOTHING
    assert talk.agent(cancel(b"1")) == NOTHING


@pytest.mark.parametrize("raw", [b'"1"', b"1.0", b"2", b"null", b"true", b"{}", b"[1]"])
def test_a_cancel_of_anything_that_is_not_open_is_dropped(talk: Talk, raw: bytes) -> None:
    talk.client(request(b"1"))
    talk.agent(request(b"1"))
    assert talk.client(cancel(raw)) == NOTHING
    assert talk.agent(cancel(raw)) == NOTHING


@pytest.mark.parametrize("params", [b"{}", b"[1]", b"1", b'{"requestid":1}'])
def test_a_cancel_that_names_nothing_is_dropped(talk: Talk, params: bytes) -> None:
    talk.client(request(b"1"))
    assert talk.client(notification("$/cancel_request", params)) == NOTHING


def test_session_cancel_is_any_other_notification(talk: Talk) -> None:
    text = notification("session/cancel", b'{"sessionId":"s"}')
    assert talk.client(text) == to_agent(text)


# Reserved methods


def test_the_gateways_own_methods_are_refused_from_the_client(talk: Talk) -> None:
    assert client_refused(talk.client(request(b"1", "_acp-gateway/hello"))) == (b"1", -32601)
    assert talk.client(notification("_acp-gateway/resumed")) == NOTHING
    assert talk.notes == ["dropped a notification of the client: this method is the gateway's own"]


def test_the_gateways_own_methods_are_kept_from_the_client(talk: Talk) -> None:
    assert talk.agent(notification("_acp-gateway/resumed")) == NOTHING
    assert agent_refused(talk.agent(request(b"1", "_acp-gateway/hello"))) == (b"1", -32601)
    assert talk.notes == [
        "refused a message of the agent: '_acp-gateway/resumed' is the gateway's own",
        "refused a message of the agent: '_acp-gateway/hello' is the gateway's own",
    ]


def test_the_escaped_name_of_a_reserved_method_is_reserved(talk: Talk) -> None:
    assert client_refused(talk.client(request(b"1", r"\u005facp-gateway\/hello"))) == (b"1", -32601)
    assert talk.agent(notification(r"\u005facp-gateway\/x")) == NOTHING


# Bad text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"not json", -32700),
        (b"", -32700),
        (b'{"id":1,"method":"x","params":"\xff"}', -32700),
        (b'{"id":1,"method":"x","params":NaN}', -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"[" + request(b"1") + b"]", -32600),
        (b"5", -32600),
        (b"{}", -32600),
        (b'{"id":1}', -32600),
        (b'{"id":true,"method":"x"}', -32600),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else None,
)
def test_bad_text_of_the_client_is_answered_here_and_the_conversation_goes_on(
    talk: Talk, text: bytes, code: int
) -> None:
    assert client_refused(talk.client(text)) == (b"null", code)
    assert talk.client(request(b"1")) == to_agent(request(b"1"))


@pytest.mark.parametrize("text", [b"npm warn exec", b"\xff", b"[]", b"{}", b"5", b"[" * 100_000])
def test_bad_text_of_the_agent_is_noted_without_its_content_and_dropped(talk: Talk, text: bytes) -> None:
    assert talk.agent(text) == NOTHING
    (note,) = talk.notes
    assert note.startswith(f"dropped a line of {len(text)} bytes from the agent: ")
    assert "npm" not in note
    assert talk.agent(notification("x")) == to_client(notification("x"))


@pytest.mark.parametrize(
    ("text", "answer_to"),
    [
        (b'{"id":1,"method":"a","method":"b"}', b"1"),
        (b'{"id":1,"method":"a","Method":"b"}', b"1"),
        (rb'{"id":1,"method":"a","m\u0065thod":"b"}', b"1"),
        (b'{"id":1,"method":"a","x":1,"x":1}', b"1"),
        (b'{"id":1,"method":"a","params":{"sessionId":"s","sessionId":"t"}}', b"1"),
        (b'{"id":1,"method":"a","params":{"sessionId":"s","SESSIONID":"t"}}', b"1"),
        (rb'{"id":1,"method":"a","params":{"sessionId":"s","\u0073essionId":"t"}}', b"1"),
        (b'{"id":1,"method":"a","params":{},"params":{}}', b"1"),
        (b'{"id":1,"id":2,"method":"a"}', b"null"),
        (b'{"id":1,"ID":2,"method":"a"}', b"null"),
        (b'{"method":"a","method":"b"}', b"null"),
        (rb'{"id":1,"method":"a","\ud83d":1,"\ud83d":1}', b"1"),
    ],
)
def test_a_repeated_member_of_the_client_is_refused(talk: Talk, text: bytes, answer_to: bytes) -> None:
    assert client_refused(talk.client(text)) == (answer_to, -32600)


def test_a_repeated_member_in_a_response_decides_nothing(talk: Talk) -> None:
    talk.agent(request(b"1"))
    # Not under the id 1: the client may have a request of its own under it.
    assert client_refused(talk.client(b'{"id":1,"result":"yes","result":"no"}')) == (b"null", -32600)
    assert talk.client(result(b"1")) == to_agent(result(b"1"))


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":1,"method":"a","params":{"deep":{"x":1,"x":1}}}',
        b'{"id":1,"method":"a","params":[{"x":1,"x":1}]}',
        b'{"id":1,"method":"a","_meta":{"x":1,"x":1}}',
    ],
)
def test_a_member_repeated_where_nobody_looks_passes(talk: Talk, text: bytes) -> None:
    assert talk.client(text) == to_agent(text)


def test_a_repeated_member_of_the_agent_passes(talk: Talk) -> None:
    text = b'{"method":"session/update","params":{"x":1,"x":2},"params":{"y":1,"Y":2}}'
    assert talk.agent(text) == to_client(text)


# The end of one side


def test_when_the_agent_is_lost_every_open_request_is_answered_once(talk: Talk) -> None:
    for raw in IDS:
        talk.client(request(raw))
    talk.agent(request(b"7"))
    deliveries = talk.agent_lost("it crashed")
    assert deliveries.to_agent == []
    assert refused(deliveries.to_client) == [(raw, -32603) for raw in IDS]
    assert {json.dumps(json.loads(text)["error"]) for text in deliveries.to_client} == {
        json.dumps({"code": -32603, "message": "it crashed", "data": {"exitCode": 1}})
    }
    assert talk.agent_lost() == NOTHING


def test_when_the_agent_is_lost_later_requests_are_told_the_same(talk: Talk) -> None:
    talk.agent_lost("it crashed")
    assert not talk.multiplexer.wants_agent
    for method in ("session/prompt", "initialize"):
        deliveries = talk.client(request(b"1", method))
        assert client_refused(deliveries) == (b"1", -32603)
        assert json.loads(deliveries.to_client[0])["error"]["message"] == "it crashed"
    assert talk.client(notification("x")) == NOTHING


def test_an_agent_that_could_not_be_started_answers_initialize(fresh: Talk) -> None:
    fresh.client(INITIALIZE)
    deliveries = fresh.agent_lost("command not found")
    assert client_refused(deliveries) == (b'"init"', -32603)


def test_when_the_client_is_gone_each_session_with_an_open_turn_is_cancelled_once(talk: Talk) -> None:
    talk.client(request(b"1", "session/prompt", b'{"sessionId":"a"}'))
    talk.client(request(b"2", "session/prompt", b'{"sessionId":"a"}'))
    talk.client(request(b"3", "session/prompt", rb'{"sessionId":"\ud83d"}'))
    talk.client(request(b"4", "session/prompt", b'{"sessionId":"over"}'))
    talk.client(request(b"5", "session/set_mode", b'{"sessionId":"idle"}'))
    talk.client(request(b"6", "session/prompt"))
    talk.agent(result(b"4"))
    assert talk.client_gone() == to_agent(
        notification("session/cancel", b'{"sessionId":"a"}'),
        notification("session/cancel", rb'{"sessionId":"\ud83d"}'),
    )
    assert talk.agent(result(b"1")) == NOTHING
    assert talk.dropped == 1


def test_when_the_client_is_gone_what_the_agent_asked_is_settled_once(talk: Talk) -> None:
    talk.client(request(b"1", "session/prompt", b'{"sessionId":"a"}'))
    talk.agent(request(b"1.0", "session/request_permission"))
    talk.agent(request(b'"e"', "elicitation/create"))
    talk.agent(request(b"0", "x/y"))
    talk.agent(request(b"5", "x/y"))
    talk.client(result(b"5"))
    deliveries = talk.client_gone()
    assert deliveries.to_client == []
    turn, permission, elicitation, other = deliveries.to_agent
    assert turn == notification("session/cancel", b'{"sessionId":"a"}')
    assert permission == result(b"1.0", b'{"outcome":{"outcome":"cancelled"}}')
    assert elicitation == result(b'"e"', b'{"action":"cancel"}')
    assert refused([other]) == [(b"0", -32800)]
    assert talk.client_gone() == NOTHING


def test_a_client_that_never_began_leaves_nothing_behind(fresh: Talk) -> None:
    assert fresh.client_gone() == NOTHING
    assert fresh.agent_lost() == NOTHING


# Any bytes from both sides

PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\x00", b"\xff", b"{}", b"[]", b"NaN", b"1e999", b"null"),
    *(b'"id":1', b'"id":"a"', b'"id":1.0', b'"method":"session/prompt"', b'"method":"initialize"', b'"result":{}'),
    *(b'"params"', rb'"\ud83d"', b'"error":{"code":-32000,"message":"m"}', b"-32000", b'"cwd"', b'"sessionId"', b"5"),
    *(b'"method":"fs/x"', b'"method":"$/cancel_request"', b'"params":{"requestId":1}', b'"authMethods"', b'"fs"'),
]
METHODS = [
    *("initialize", "session/new", "session/prompt", "session/update", "fs/read_text_file", "terminal/create"),
    *("$/cancel_request", "session/request_permission", "_acp-gateway/hello", "elicitation/create", r"x\ud83d"),
]
PARAMS = [
    *(
        b"{}",
        b"[]",
        b"null",
        b'{"requestId":1}',
        b'{"requestId":"a"}',
        b'{"sessionId":"s"}',
        rb'{"sessionId":"\ud83d"}',
    ),
    *(
        rb'{"cwd":"\ud83d"}',
        b'{"cwd":"/srv"}',
        b'{"clientCapabilities":{"fs":{},"terminal":true,"auth":{"terminal":1}}}',
    ),
]
RESULTS = [b"{}", b"null", b'{"authMethods":[{"type":"terminal"},{"_meta":{}},5]}', b'{"authMethods":{}}']
raw_ids = st.sampled_from([b"1", b"1.0", b'"a"', rb'"\u0061"', b"null", b'"init"', b"1e999", rb'"\ud83d"'])
well_formed = st.one_of(
    st.builds(request, raw_ids, st.sampled_from(METHODS), st.sampled_from(PARAMS)),
    st.builds(notification, st.sampled_from(METHODS), st.sampled_from(PARAMS)),
    st.builds(result, raw_ids, st.sampled_from(RESULTS)),
    st.builds(
        lambda raw, error: b'{"id":%b,"error":%b}' % (raw, error),
        raw_ids,
        st.sampled_from([b'{"code":-32000,"message":"m"}', b'{"code":-32000,"message":5}', b"null", b"[]"]),
    ),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A message with a place replaced, cut out or filled in."""
    text = draw(well_formed)
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 12)))
    return text[:start] + draw(st.sampled_from(PIECES) | st.binary(max_size=2)) + text[end:]


anything = well_formed | mutated() | st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join) | st.binary(max_size=8)


@settings(max_examples=300)
@given(
    st.booleans(),
    st.lists(
        st.sampled_from(["client", "agent"]).flatmap(lambda side: st.tuples(st.just(side), anything)), max_size=20
    ),
    st.permutations(["client_gone", "agent_lost"]),
)
def test_nothing_that_anybody_says_raises_and_only_messages_are_delivered(
    in_the_middle: bool, said: list[tuple[str, bytes]], ends: list[str]
) -> None:
    talk = begun() if in_the_middle else Talk()
    deliveries = [getattr(talk, side)(text) for side, text in said]
    deliveries += [getattr(talk, end)() for end in ends]
    delivered = [text for each in deliveries for text in (*each.to_client, *each.to_agent)]
    for text in delivered:
        parse(text)
    assert all(note.isprintable() for note in talk.notes)
    event(f"passed on: {any(text in delivered for _, text in said)}")


# Any order of events


class Conversation(RuleBasedStateMachine):
    """Both sides talk in any order; whoever gets something compares it with what the other one said.

    Every request that is passed on gets exactly one answer under its own id, and nothing arrives that was not sent but
    for the gateway's own answers. The id null is not among those here: the gateway's own errors under it can't be told
    from the answer to a request.
    """

    IDS = (b"0", b"1", b'"1"', b"1.0", b"1e2", b'""', rb'"\u0061"', b'"a"', b"9223372036854775807", b"-7")

    def __init__(self) -> None:
        super().__init__()
        self.talk = Talk(Capability.FS)
        self.client_is_there = True
        self.agent_is_there = True
        self.dropped = 0
        # What each side has asked and has not been answered: the id's text, the oldest first.
        self.asked_by_client: list[bytes] = []
        self.asked_by_agent: list[bytes] = []
        # Makes every message unique.
        self.serial = 0

    def unique(self, text: bytes) -> bytes:
        self.serial += 1
        return text.replace(b"{", b'{"_meta":{"serial": %d },' % self.serial, 1)

    def exchange(self, side: str, text: bytes, expected: Deliveries) -> None:
        assert getattr(self.talk, side)(text) == expected

    @initialize(raw=st.sampled_from(IDS), succeeds=st.booleans())
    def begin(self, raw: bytes, succeeds: bool) -> None:
        text = self.unique(request(raw, "initialize"))
        self.exchange("client", text, to_agent(text))
        if succeeds:
            self.exchange("agent", result(raw), to_client(result(raw)))
        else:
            self.asked_by_client.append(raw)

    # Requests

    @precondition(lambda self: self.client_is_there)
    @rule(raw=st.sampled_from(IDS), method=st.sampled_from(["session/prompt", "session/new", "x/y"]))
    def client_asks(self, raw: bytes, method: str) -> None:
        text = self.unique(request(raw, method, b'{"sessionId":"s","cwd":"/srv"}'))
        if in_use(raw, self.asked_by_client):
            assert client_refused(self.talk.client(text)) == (b"null", -32600)
        elif self.agent_is_there:
            self.exchange("client", text, to_agent(text))
            self.asked_by_client.append(raw)
        else:
            assert client_refused(self.talk.client(text)) == (raw, -32603)

    @precondition(lambda self: self.client_is_there and self.agent_is_there)
    @rule(
        raw=st.sampled_from(IDS),
        text=st.sampled_from(
            [
                request(b"%b", "_acp-gateway/hello"),
                request(b"%b", "initialize"),
                request(b"%b", "session/new", b'{"cwd":"/nowhere"}'),
                request(b"%b", "x", b'{"a":1,"A":1}'),
            ]
        ),
    )
    def client_asks_what_is_refused(self, raw: bytes, text: bytes) -> None:
        answer_to, _ = client_refused(self.talk.client(text % raw))
        assert answer_to == (b"null" if in_use(raw, self.asked_by_client) else raw)

    @precondition(lambda self: self.client_is_there and self.agent_is_there)
    @rule(
        raw=st.sampled_from(IDS), method=st.sampled_from(["session/request_permission", "elicitation/create", "fs/x"])
    )
    def agent_asks(self, raw: bytes, method: str) -> None:
        text = self.unique(request(raw, method))
        self.exchange("agent", text, to_client(text))
        self.asked_by_agent.append(raw)

    @precondition(lambda self: self.agent_is_there)
    @rule(raw=st.sampled_from(IDS), method=st.sampled_from(["terminal/create", "_acp-gateway/x"]))
    def agent_asks_what_is_refused(self, raw: bytes, method: str) -> None:
        assert agent_refused(self.talk.agent(request(raw, method))) == (raw, -32601)

    # Answers

    @precondition(lambda self: self.asked_by_client and self.agent_is_there)
    @rule(data=st.data(), respell=st.booleans())
    def agent_answers(self, data: st.DataObject, respell: bool) -> None:
        raw = data.draw(st.sampled_from(self.asked_by_client))
        self.asked_by_client.remove(raw)
        answer = self.unique(result(b"%b"))
        spelled = respelled(raw, self.asked_by_client) if respell else raw
        self.exchange("agent", answer % spelled, to_client(answer % raw))

    @precondition(lambda self: self.asked_by_agent and self.client_is_there)
    @rule(data=st.data(), respell=st.booleans())
    def client_answers(self, data: st.DataObject, respell: bool) -> None:
        raw = data.draw(st.sampled_from(self.asked_by_agent))
        spelled = respelled(raw, self.asked_by_agent) if respell else raw
        # Of two requests under one id, however spelled, the first is answered first.
        answered = next(asked for asked in self.asked_by_agent if same_id(asked, raw))
        self.asked_by_agent.remove(answered)
        answer = self.unique(b'{"id":%b,"error":{"code":1,"message":"no"}}')
        self.exchange("client", answer % spelled, to_agent(answer % answered))

    @rule(raw=st.sampled_from([*IDS, b"2", b'"2"', b"null"]), side=st.sampled_from(["client", "agent"]))
    def somebody_answers_what_nobody_asked(self, raw: bytes, side: str) -> None:
        asked = self.asked_by_agent if side == "client" else self.asked_by_client
        if not any(looks_like(raw, other) for other in asked):
            self.exchange(side, result(raw), NOTHING)
            self.dropped += 1

    # Notifications and noise

    @precondition(lambda self: self.client_is_there and self.agent_is_there)
    @rule(side=st.sampled_from(["client", "agent"]))
    def somebody_notifies(self, side: str) -> None:
        text = self.unique(notification("session/update"))
        self.exchange(side, text, to_agent(text) if side == "client" else to_client(text))

    @precondition(lambda self: self.client_is_there and self.agent_is_there)
    @rule(side=st.sampled_from(["client", "agent"]), raw=st.sampled_from(IDS))
    def somebody_cancels(self, side: str, raw: bytes) -> None:
        text = self.unique(cancel(raw))
        own, delivered = (
            (self.asked_by_client, to_agent(text)) if side == "client" else (self.asked_by_agent, to_client(text))
        )
        self.exchange(side, text, delivered if in_use(raw, own) else NOTHING)

    @rule(
        noise=st.sampled_from([b"", b"banner", b"[]", b"{}", b'{"id":1}', b'{"id":[],"result":1}', b'{"result":NaN}'])
    )
    def the_agent_makes_noise(self, noise: bytes) -> None:
        self.exchange("agent", noise, NOTHING)

    @precondition(lambda self: self.client_is_there)
    @rule(noise=st.sampled_from([b"", b"banner", b"[]", b"{}", b'{"id":1}', b'{"id":1,"result":1,"result":1}']))
    def the_client_makes_noise(self, noise: bytes) -> None:
        assert client_refused(self.talk.client(noise))[0] == b"null"

    # Ends

    @precondition(lambda self: self.agent_is_there)
    @rule()
    def the_agent_is_lost(self) -> None:
        deliveries = self.talk.agent_lost()
        assert deliveries.to_agent == []
        assert Counter(refused(deliveries.to_client)) == Counter((raw, -32603) for raw in self.asked_by_client)
        self.agent_is_there = False
        self.asked_by_client, self.asked_by_agent = [], []

    @precondition(lambda self: self.client_is_there)
    @rule()
    def the_client_goes(self) -> None:
        deliveries = self.talk.client_gone()
        assert deliveries.to_client == []
        messages = [parse(text) for text in deliveries.to_agent]
        answers = [message.id for message in messages if message.kind is Kind.RESPONSE]
        assert Counter(answers) == Counter(self.asked_by_agent)
        assert [message.method for message in messages if message.kind is not Kind.RESPONSE] in ([], ["session/cancel"])
        self.client_is_there = False
        self.asked_by_client, self.asked_by_agent = [], []

    @invariant()
    def responses_that_nobody_waits_for_are_counted(self) -> None:
        assert self.talk.dropped == self.dropped

    def teardown(self) -> None:
        if self.client_is_there:
            self.the_client_goes()
        if self.agent_is_there:
            self.the_agent_is_lost()
        assert self.talk.client_gone() == self.talk.agent_lost() == NOTHING


def same_id(one: bytes, other: bytes) -> bool:
    """Whether two texts are the same id: strings by value, numbers by text."""
    if one.startswith(b'"') and other.startswith(b'"'):
        return bool(json.loads(one) == json.loads(other))
    return one == other


def in_use(raw: bytes, asked: list[bytes]) -> bool:
    return any(same_id(raw, other) for other in asked)


def looks_like(raw: bytes, other: bytes) -> bool:
    """Whether two texts are one id to some parser: strings by value, numbers as floating point."""
    one, two = json.loads(raw, parse_int=float), json.loads(other, parse_int=float)
    return type(one) is type(two) and bool(one == two)


def respelled(raw: bytes, others: list[bytes]) -> bytes:
    """An id as JavaScript spells it, unless that could be another open one."""
    if any(looks_like(raw, other) and other != raw for other in others):
        return raw
    value = json.loads(raw, parse_int=float)
    if isinstance(value, float):
        return b"%d" % int(value)
    return json.dumps(value, ensure_ascii=False).encode()


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=150, stateful_step_count=40)


def test_more_requests_than_may_be_open_are_refused_on_either_side() -> None:
    multiplexer = Multiplexer(Policy(frozenset(), check_directory, 2, lambda _: HINT))
    multiplexer.receive_from_client(INITIALIZE)
    multiplexer.receive_from_client(b'{"id":"x","method":"m"}')
    multiplexer.receive_from_client(b'{"id":"y","method":"m"}')
    for number in range(3):
        multiplexer.receive_from_agent(b'{"id":%d,"method":"ask"}' % number)
    deliveries = multiplexer.take_deliveries()
    assert [message for message in deliveries.to_client if b'"y"' in message and b"max_open_requests (2)" in message]
    assert [message for message in deliveries.to_agent if b'"id":2' in message and b"max_open_requests (2)" in message]


def test_an_id_that_is_a_book_is_refused() -> None:
    multiplexer = Multiplexer(policy())
    multiplexer.receive_from_client(INITIALIZE)
    multiplexer.receive_from_client(b'{"id":"%b","method":"m"}' % (b"x" * 2000))
    assert b"more than 1024 bytes" in multiplexer.take_deliveries().to_client[-1]


def test_when_the_gateway_ends_it_the_client_gets_answers_and_the_agent_hears_of_it() -> None:
    multiplexer = Multiplexer(policy())
    multiplexer.receive_from_client(INITIALIZE)
    multiplexer.receive_from_client(b'{"id":7,"method":"session/prompt","params":{"sessionId":"s"}}')
    multiplexer.take_deliveries()
    multiplexer.closing("the gateway is stopping", {"reason": "gateway_stopping"})
    deliveries = multiplexer.take_deliveries()
    assert all(b'"gateway_stopping"' in message for message in deliveries.to_client)
    assert len(deliveries.to_client) == 2
    assert b"session/cancel" in deliveries.to_agent[0]
    multiplexer.closing("again", {})
    assert multiplexer.take_deliveries().to_client == []
