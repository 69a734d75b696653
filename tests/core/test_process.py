"""An agent's process: what goes to it under which id, and what comes back to which request."""

import pytest

from acp_gateway.core.output import LogMessage, Outgoing
from acp_gateway.core.process import OpenRequests, Process
from acp_gateway.core.requests import ErrorObject, LostErrors
from acp_gateway.core.sessions.session import Client, Request, SessionReach
from acp_gateway.core.sessions.sub_agents import SubAgents
from acp_gateway.core.states import AgentPhase
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.text import spans
from tests.kit.scene import Scene, make_policy


class Alone:
    """The requests of one client, without anything that decides."""

    def __init__(self) -> None:
        self.out = Outgoing()
        self.client = Client("ann", SessionReach("me"))
        self.sub_agents = SubAgents({}, [self.client])
        self.answered: list[tuple[Request, Message]] = []
        self.settled: list[tuple[Request, Message]] = []
        self.requests = OpenRequests(self.out, self.sub_agents, lambda *its: self.answered.append(its))

    def asks(self, raw_id: bytes = b"1", more: bytes = b"") -> Request:
        return Request(self.client, jsonrpc.parse(b'{"id":%b,"method":"x/y"%b}' % (raw_id, more)))

    def settle(self, request: Request, response: Message) -> None:
        self.settled.append((request, response))

    def to_agent(self) -> list[bytes]:
        return self.out.take().to_agent


@pytest.fixture
def alone() -> Alone:
    return Alone()


def test_a_process_that_is_lost_stays_so_with_the_last_errors() -> None:
    process = Process()
    assert (process.phase, process.lost) == (AgentPhase.ABSENT, None)
    for why in ("it ended", "it was stopped"):
        errors = LostErrors(ErrorObject(-32603, why), ErrorObject(-32603, f"{why}: its output"))
        process.end_for_good(errors)
        assert (process.phase, process.lost) == (AgentPhase.LOST, errors)


def test_each_request_gets_an_id_that_was_never_used(alone: Alone) -> None:
    requests = [alone.asks(b"7", b',"params":{"n":1.10}') for _ in range(3)]
    for request in requests:
        alone.requests.forward(request, alone.settle)
    assert [request.agent_id for request in requests] == [1, 2, 3]
    assert alone.to_agent() == [b'{"id":%d,"method":"x/y","params":{"n":1.10}}' % number for number in (1, 2, 3)]
    alone.requests.receive_response(jsonrpc.parse(b'{"id":2,"result":5}'))
    again = alone.asks(b"7")
    alone.requests.forward(again, alone.settle)
    assert again.agent_id == 4


def test_another_text_can_go_in_place_of_the_requests_own(alone: Alone) -> None:
    alone.requests.forward(alone.asks(), alone.settle, b'{"method":"other","id":0}')
    assert alone.to_agent() == [b'{"method":"other","id":1}']


def test_a_response_comes_back_to_what_was_named_for_it_and_once(alone: Alone) -> None:
    request = alone.asks()
    alone.requests.forward(request, alone.settle)
    response = jsonrpc.parse(b'{"id":1.0,"result":5}')
    for _ in range(2):
        alone.requests.receive_response(response)
    assert alone.settled == [(request, response)]
    assert request.agent_id is None
    assert alone.out.take().effects == [LogMessage("dropped a response of the agent to no open request")]


def test_a_response_under_something_else_than_a_number_of_ours_is_dropped(alone: Alone) -> None:
    alone.requests.forward(alone.asks(), alone.settle)
    for raw in (b'"1"', b"null", b"2", b"1.5", b"-1"):
        alone.requests.receive_response(jsonrpc.parse(b'{"id":%b,"result":5}' % raw))
    assert alone.settled == []
    assert len(alone.out.take().effects) == 5


def test_no_request_of_a_gone_client_is_kept_if_its_response_changes_nothing() -> None:
    scene = Scene()
    scene.join("bob")
    for number in range(3):
        ann = scene.join(f"ann {number}")
        ann.request("x/y")
        ann.gone()
    asked = scene.agent.heard()
    assert not scene.multiplexer._agent.open_requests
    for request in asked:
        scene.agent.send(id=request["id"], result={})
    assert len(scene.notes) == 3


def test_requests_of_gone_clients_count_against_max_open_requests_of_their_identity() -> None:
    scene = Scene(make_policy(max_open_requests=3))
    first = scene.join("first")
    first.new_session()
    for name in ("ann", "bob", "cem"):
        ann = scene.join(name)
        ann.load()
        ann.request("session/set_mode", sessionId="s", modeId="m")
        ann.gone()
    asked = scene.agent.heard()
    other = scene.join("other", "another identity")
    other.request("x/y")
    assert not other.heard()
    first.request("x/y")
    assert "max_open_requests (3) of closed connections" in first.hears()["error"]["message"]
    scene.agent.answer(asked[0])
    first.heard()
    first.request("x/y")
    assert not first.heard()


def test_a_result_with_more_members_than_are_looked_at_is_an_error() -> None:
    scene = Scene()
    ann = scene.join("ann")
    ann.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s", **{str(number): 1 for number in range(spans.MEMBERS)})
    assert f"more than {spans.MEMBERS} members" in ann.hears()["error"]["message"]


def test_a_response_goes_to_the_client_where_nothing_else_is_named_for_it(alone: Alone) -> None:
    request, response = alone.asks(), jsonrpc.parse(b'{"id":1,"result":5}')
    alone.requests.forward(request)
    alone.requests.receive_response(response)
    assert (alone.answered, alone.settled) == ([(request, response)], [])


def test_an_account_for_which_a_session_will_be_named_is_known_until_the_response(alone: Alone) -> None:
    alone.requests.forward(alone.asks(), alone.settle, names_for="me")
    alone.requests.forward(alone.asks(), alone.settle)
    alone.requests.forward(alone.asks(), alone.settle, names_for="me")
    assert list(alone.sub_agents.naming.values()) == ["me", "me"]
    alone.requests.receive_response(jsonrpc.parse(b'{"id":1,"error":{"code":1,"message":"no"}}'))
    assert alone.sub_agents.naming == {3: "me"}
    alone.requests.clear()
    assert (alone.sub_agents.naming, len(alone.requests)) == ({}, 0)


def test_a_request_of_a_client_is_found_by_its_id_at_the_agent(alone: Alone) -> None:
    request = alone.asks(b'"x"')
    alone.requests.forward(request)
    assert alone.requests.of_client(RawId(b"1")) is request
    assert [alone.requests.of_client(RawId(raw)) for raw in (b"2", b'"x"', b"null")] == [None] * 3
