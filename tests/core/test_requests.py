"""Requests for the agent: what is kept of their text, and counted for their clients."""

from acp_gateway.core.requests import OwnRequest
from acp_gateway.core.sessions.session import Client, Request, SessionReach
from acp_gateway.core.states import Presence
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text import lookup


def test_what_the_gateway_itself_asked_is_forgotten_as_well() -> None:
    request = OwnRequest(jsonrpc.parse(b'{"id":1,"method":"x"}'))
    request.set_text(b"")
    assert not request.abandoned
    assert request.message.text == b""


def test_a_request_that_is_replaced_counts_with_what_it_says_now() -> None:
    client = Client("ann", SessionReach("me"))
    request = Request(client, jsonrpc.parse(b'{"id":1.0,"method":"session/new","params":{"mcpServers":[1]}}'))
    client.add_request(request)
    replaced = b'{"id":1.0,"method":"session/new","params":{"mcpServers":[]}}'
    request.replace(replaced)
    assert (request.message.text, request.id, client.waiting_size) == (replaced, b"1.0", len(replaced))
    client.remove_request(request)
    assert (client.waiting_size, client.requests) == (0, {})


def test_of_what_a_client_said_that_has_gone_only_the_short_parameters_are_kept() -> None:
    long = {"cwd": "/srv", "mcpServers": [{"name": "x" * 100_000}]}
    text = b'{"jsonrpc":"2.0","id":7,"method":"session/new","params":%b}' % jsonrpc.encode(long)
    request = Request(Client("ann", SessionReach("me")), jsonrpc.parse(text))
    request.forget_most()
    assert (request.id, request.message.method) == (b"7", "session/new")
    assert lookup.text_at(request.message.text, "params", "cwd") == "/srv"
    assert len(request.message.text) < 100
    small = Request(Client("ann", SessionReach("me")), jsonrpc.parse(text.replace(b"x" * 100_000, b"")))
    before = small.message
    small.forget_most()
    assert small.message is before


def test_a_request_is_abandoned_once_its_client_has_gone() -> None:
    client = Client("ann", SessionReach("me"))
    request = Request(client, jsonrpc.parse(b'{"id":1,"method":"x"}'))
    client.become(Presence.AWAY)
    assert not request.abandoned
    client.become(Presence.GONE)
    assert request.abandoned
