"""Two real conversations, fed through the core: everything arrives verbatim but what is masked or mapped."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.protocol.jsonrpc import Kind, RawId, parse, with_id
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.path_maps import PathMaps
from tests.kit.scene import Scene, make_policy

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


class Relay:
    """A client and an agent that say what they said then, through the core.

    Each side answers under the ids that it gets here; `arrived` has what the other side gets, under the ids of then.
    """

    def __init__(self, *serves: Capability, shared: bool = False) -> None:
        self.scene = Scene(make_policy(shared=shared, serves=frozenset(serves)))
        self.scene.look = lambda _: DirectoryCheckResult()
        self.client = self.scene.join("ann", initialize=False)
        self.arrived: list[Line] = []
        # What each side calls a request that it got, by the id that the other one gave it.
        self.names: dict[tuple[str, bytes], bytes] = {}

    def play(self, line: Line) -> None:
        """One side says its line."""
        message = parse(line.text)
        speaker, listener, other = (
            (self.client, self.scene.agent, "agent")
            if line.sender == "client"
            else (self.scene.agent, self.client, "client")
        )
        if message.kind is Kind.RESPONSE:
            speaker.say(with_id(message, RawId(self.names.pop((other, message.id)))))
        else:
            speaker.say(line.text)
        for text in listener.heard_text():
            got = parse(text)
            if got.kind is Kind.REQUEST:
                self.names[line.sender, message.id] = got.id
                text = with_id(got, message.id)
            self.arrived.append(Line(line.sender, text))
        assert not speaker.inbox


def relay(transcript: list[Line], *serves: Capability, shared: bool = False) -> list[Line]:
    """Return the received messages in order, with their senders."""
    relay = Relay(*serves, shared=shared)
    for line in transcript:
        relay.play(line)
    assert relay.scene.notes == []
    assert not relay.names
    assert not relay.scene.multiplexer.busy, "something was left open"
    return relay.arrived


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


def test_a_shared_agent_hears_and_says_the_same_but_for_initialize(transcript: list[Line]) -> None:
    arrived = relay(offering(transcript), shared=True)
    assert arrived[2:] == transcript[2:]
    asked, answered = (json.loads(line.text) for line in arrived[:2])
    assert asked["params"]["clientInfo"]["name"] == "acp-gateway"
    assert MASKED in arrived[0].text
    then = json.loads(transcript[1].text)["result"]
    assert answered["result"].pop("agentCapabilities").pop("loadSession") is True
    del then["agentCapabilities"]
    assert answered["result"] == then


def test_a_late_joiner_gets_the_history_and_the_states(transcript: list[Line]) -> None:
    played = Relay(shared=True)
    for line in transcript:
        played.play(line)
    updates = [line.text for line in transcript if b'"session/update"' in line.text]
    (session,) = played.scene.multiplexer.sessions
    bob = played.scene.join("bob")
    bob.request("session/load", sessionId=session.id, cwd="/srv", mcpServers=[])
    *history, response = bob.heard_text()
    prompts = [text for text in history if b'"user_message_chunk"' in text]
    assert [text for text in history if text not in prompts] == updates
    assert len(prompts) == 1
    opened = json.loads(transcript[3].text)["result"]
    assert json.loads(response)["result"] == {"configOptions": opened["configOptions"]}


# Editors, whose messages were written after their sources


def said(file: str) -> list[Line]:
    records = [json.loads(line) for line in (DATA / file).read_bytes().splitlines()]
    return [Line(record["from"], record["line"].encode()) for record in records]


def zeds() -> list[Line]:
    return said("zed.jsonl")


@pytest.mark.parametrize("shared", [False, True])
def test_zeds_messages_after_initialize_are_relayed_verbatim(*, shared: bool) -> None:
    lines = zeds()
    assert len(lines) == 18
    assert relay(lines, Capability.FS, Capability.TERMINAL, shared=shared)[2:] == lines[2:]


def test_zed_logs_an_agent_of_another_machine_in_by_no_terminal() -> None:
    asked, answered = (json.loads(line.text) for line in relay(zeds(), Capability.FS, Capability.TERMINAL)[:2])
    first, second = (json.loads(line.text) for line in zeds()[:2])
    first["params"]["clientCapabilities"]["auth"]["terminal"] = False
    second["result"]["authMethods"] = []
    assert asked == first
    assert answered == second


def test_terminal_output_in_meta_is_offered_to_an_agent_with_one_client_only() -> None:
    (alone, *_), (shared, *_) = (relay(zeds(), shared=each) for each in (False, True))
    assert b'"terminal_output":true' in alone.text
    assert b"terminal_output" not in shared.text


def test_zeds_directories_are_mapped_and_the_rest_stays() -> None:
    maps = PathMaps([("/home/ann/proj", "/srv/proj"), ("/home/ann/lib", "/srv/lib")])
    opening = zeds()[2].text
    typed = opening.replace(b"/srv/", b"/home/ann/")
    assert typed != opening
    assert maps.to_remote(typed) == opening


@pytest.mark.parametrize("shared", [False, True])
def test_jetbrains_messages_after_initialize_are_relayed_verbatim_but_for_decisions(*, shared: bool) -> None:
    lines = said("jetbrains.jsonl")
    assert len(lines) == 26
    arrived = relay(lines, Capability.FS, Capability.TERMINAL, shared=shared)
    changed = {number for number in range(2, 26) if arrived[number] != lines[number]}
    assert b'"method":"session/request_permission"' in lines[13].text
    assert changed == {14}
    # Who decides a permission may be another client: its answer is composed.
    assert json.loads(arrived[14].text)["result"] == json.loads(lines[14].text)["result"]


def test_jetbrains_directories_are_mapped_and_its_names_of_classes_stay() -> None:
    maps = PathMaps([("/home/ann/proj", "/srv/proj")])
    opening = said("jetbrains.jsonl")[2].text
    typed = opening.replace(b"/srv/", b"/home/ann/")
    assert typed != opening
    assert maps.to_remote(typed) == opening


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
