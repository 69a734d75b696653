"""The ports of a session's programs in words, and the ports that texts offer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.port_lines import (
    MOST_SHOWN,
    Offers,
    Port,
    find_offers,
    name_ports,
    node_of,
    read_ports,
    tell_ports,
    way_to,
)
from tests.kit.updates import said


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("see http://localhost:6006/", [6006]),
        ("http://127.0.0.1:8000 and LOCALHOST:80, again localhost:80", [8000, 80]),
        ("serving at 0.0.0.0:5000, [::]:5001 and [::1]:5002.", [5000, 5001, 5002]),
        ("(localhost:3000)", [3000]),
        ("postgres://me@localhost:5432/db", [5432]),
        ("localhost:0 localhost:65536 localhost:65535", [65535]),
        ("localhost:123456", []),
        ("localhost: 80, localhost", []),
        ("notlocalhost:80 a.localhost:81 x-localhost:82 1127.0.0.1:83 my_localhost:84", []),
        ("box.example:80 10.0.0.1:81 localhost.example:82", []),
        ("localhost:\N{ARABIC-INDIC DIGIT ONE}", []),
    ],
)
def test_a_text_offers_ports_of_loopback_alone(text: str, ports: list[int]) -> None:
    assert find_offers(text, is_whole=True) == (ports, "")


@given(st.lists(st.sampled_from(["localhost:", "127.0.0.1:", "6006", "8", "x", " ", ".", "[::1]:", "loc"])), st.data())
def test_what_a_text_offers_does_not_depend_on_its_parts(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    offers, found = Offers(), set[int]()
    for first, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found.update(offers.receive(said(text[first:end])))
    found.update(offers.end())
    assert found == set(find_offers(text, is_whole=True)[0])


def test_a_port_that_is_not_offered_is_not_found_where_its_text_is_taken_up() -> None:
    offers = Offers()
    assert offers.receive(said("6006[::1]:6006[::1]:")) == offers.receive(said("")) == offers.end() == []


def test_an_offer_ends_with_its_message_and_not_with_an_update_of_another_kind() -> None:
    offers = Offers()
    assert offers.receive(said("localhost:60")) == []
    assert offers.receive({"sessionUpdate": "usage_update"}) == []
    assert offers.receive(said("06 ")) == [6006]
    assert offers.receive(said("localhost:7")) == []
    assert offers.receive(said("000", "user")) == [7]
    assert offers.receive(said("localhost:8", "user")) == offers.end() == []


@pytest.mark.parametrize("kind", ["tool_call", "tool_call_update"])
def test_the_output_of_a_tool_offers_ports(kind: str) -> None:
    content = [{"type": "content", "content": {"type": "text", "text": text}} for text in ("localhost:1", "[::]:2")]
    update: dict[str, Any] = {"sessionUpdate": kind, "toolCallId": "t", "content": content}
    assert Offers().receive(update) == [1, 2]
    assert Offers().receive({"sessionUpdate": kind, "content": "localhost:1"}) == []
    assert Offers().receive({"sessionUpdate": [kind], "content": content}) == []


def test_ports_are_named_as_in_the_page_and_the_way_there_is_told() -> None:
    ports = read_ports({"ports": [{"port": 6006, "program": "tensor\x1bboard"}, {"port": 8888, "program": ""}]})
    assert tell_ports(ports, "box", "s") == r"6006 · tensor\x1bboard, 8888: acp-gateway forward box 6006"
    assert tell_ports(ports[1:], "door", "gpu2/s") == "8888: acp-gateway forward door 8888 --node gpu2"
    assert name_ports([Port(9, "")] * (MOST_SHOWN + 2)) == "9, " * MOST_SHOWN + "2 more"
    assert read_ports({}) == []


def test_a_port_of_this_machine_is_here_already() -> None:
    assert way_to("unix:///run/g.sock", 80) == "http://localhost:80"
    assert way_to("unix:///run/g.sock", 80, "gpu2") == "acp-gateway forward HOST 80 --node gpu2"
    assert [node_of(name) for name in ("s", "gpu2/s", "/s", "gpu2/")] == ["", "gpu2", "", ""]
