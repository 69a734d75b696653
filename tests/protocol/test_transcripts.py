"""Two real conversations, fed through the core: everything arrives verbatim but what is masked or mapped."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.multiplexer import Multiplexer, Policy
from acp_gateway.protocol.paths import PathMaps

DATA = Path(__file__).parent.parent / "data"
THERE = "/home/user/project"
OFFERED = b'"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true'
MASKED = b'"fs":{"readTextFile":false,"writeTextFile":false},"terminal":false'


@dataclass(frozen=True)
class Line:
    sender: str
    text: bytes


@pytest.fixture(params=["opencode-hello.jsonl", "opencode-tool.jsonl"])
def transcript(request: pytest.FixtureRequest) -> list[Line]:
    records = [json.loads(line) for line in (DATA / request.param).read_bytes().splitlines()]
    return [Line(record["from"], record["line"].encode()) for record in records]


def relay(transcript: list[Line], *serves: Capability) -> list[Line]:
    """What arrives, in order, under the name of who sent it."""
    multiplexer = Multiplexer(Policy(frozenset(serves), lambda _: None, 1000, lambda _: "log in"))
    arrived = []
    for line in transcript:
        if line.sender == "client":
            multiplexer.receive_from_client(line.text)
        else:
            multiplexer.receive_from_agent(line.text)
        deliveries = multiplexer.take_deliveries()
        arrived += [Line("client", text) for text in deliveries.to_agent]
        arrived += [Line("agent", text) for text in deliveries.to_client]
    assert multiplexer.take_notes() == []
    multiplexer.client_gone()
    multiplexer.agent_lost("over", {})
    last = multiplexer.take_deliveries()
    assert (last.to_client, last.to_agent) == ([], []), "something was left open"
    return arrived


def test_a_client_that_offers_nothing_is_relayed_verbatim(transcript: list[Line]) -> None:
    assert MASKED in transcript[0].text
    assert relay(transcript) == transcript


def offering(transcript: list[Line]) -> list[Line]:
    """The same conversation with a client that offers its file system and its terminal."""
    first, *rest = transcript
    return [Line(first.sender, first.text.replace(MASKED, OFFERED)), *rest]


def test_only_the_masked_values_of_a_client_that_offers_them_change(transcript: list[Line]) -> None:
    assert relay(offering(transcript)) == transcript


def test_a_client_that_may_serve_what_it_offers_is_relayed_verbatim(transcript: list[Line]) -> None:
    lines = offering(transcript)
    assert relay(lines, Capability.FS, Capability.TERMINAL) == lines


# Path maps

EDITORS = ["/Users/ann/project", "C:\\src\\project"]


def replaced(value: Any, old: str, new: str) -> Any:
    """A message with one path for another in the members that name files, and nowhere else."""
    if isinstance(value, list):
        return [replaced(inner, old, new) for inner in value]
    if isinstance(value, dict):
        return {
            name: new if name in ("cwd", "path") and inner == old else replaced(inner, old, new)
            for name, inner in value.items()
            if name not in FREE_FORM
        } | {name: value[name] for name in FREE_FORM & value.keys()}
    return value


FREE_FORM = {"rawInput", "rawOutput", "text", "_meta"}


def check(line: Line, mapped: bytes, old: str, new: str) -> None:
    before = json.loads(line.text)
    after = replaced(before, old, new)
    assert json.loads(mapped) == after
    assert (mapped is line.text) == (before == after)


@pytest.mark.parametrize("here", EDITORS)
def test_the_agents_paths_are_the_editors_where_they_name_files(transcript: list[Line], here: str) -> None:
    maps = PathMaps([(here, THERE)])
    for line in transcript:
        if line.sender == "agent":
            check(line, maps.to_local(line.text), THERE, here)


@pytest.mark.parametrize("here", EDITORS)
def test_the_editors_paths_become_the_agents_byte_for_byte(transcript: list[Line], here: str) -> None:
    maps = PathMaps([(here, THERE)])
    for line in transcript:
        if line.sender == "client":
            typed = line.text.replace(THERE.encode(), json.dumps(here)[1:-1].encode())
            assert maps.to_remote(typed) == line.text
            assert (typed == line.text) == (maps.to_remote(typed) is typed)


@pytest.mark.parametrize(
    ("transcript", "mapped"), [("opencode-hello.jsonl", 0), ("opencode-tool.jsonl", 4)], indirect=["transcript"]
)
def test_so_many_of_the_agents_messages_name_files(transcript: list[Line], mapped: int) -> None:
    maps = PathMaps([("/Users/ann/project", THERE)])
    assert sum(maps.to_local(line.text) != line.text for line in transcript) == mapped


@pytest.mark.parametrize("direction", [PathMaps.to_local, PathMaps.to_remote])
def test_maps_of_other_directories_touch_nothing(
    transcript: list[Line], direction: Callable[[PathMaps, bytes], bytes]
) -> None:
    maps = PathMaps([("/Users/ann/other", "/home/user/proj"), ("/Users/ann/project2", THERE + "2")])
    assert all(direction(maps, line.text) is line.text for line in transcript)
