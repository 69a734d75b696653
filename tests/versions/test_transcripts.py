"""Transcripts are the same in both versions, and after a replay with a cut at every message."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from acp_gateway.versions.state import MADE
from tests.fuzz.effort import effort
from tests.kit.folds import NEW_UPDATES, NewTranscript, OldTranscript, essence, old_conversations
from tests.kit.versions import S, dump, request, result, text

Json = Any

MODES = {"currentModeId": "a", "availableModes": [{"id": name, "name": name} for name in "abc"]}


def as_message(update: Json) -> bytes:
    return dump({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": S, "update": update}})


class Chain:
    """A client of version 1 and an agent of version 1, with version 2 between them."""

    def __init__(self) -> None:
        self.old_agent, self.new_agent = OldAgent(), NewAgent()
        self.transcript = OldTranscript()
        self.answers: dict[int, Json] = {}

    def client_says(self, message: bytes) -> list[bytes]:
        """Return the messages that the agent gets."""
        out = self.new_agent.from_client(message)
        assert not out.to_client
        return [sent for inner in out.to_agent for sent in self.old_agent.from_client(inner).to_agent]

    def agent_says(self, message: bytes, position: int = 0) -> None:
        self._pass(self.old_agent.from_agent(message, position).to_client)

    def turn_began(self, number: int, position: int) -> None:
        self._pass(self.old_agent.turn_began(S, RawId(b"%d" % number), position).to_client)

    def _pass(self, messages: list[bytes]) -> None:
        for inner in messages:
            for sent in map(json.loads, self.new_agent.from_agent(inner).to_client):
                if "method" in sent:
                    self.transcript.apply(sent["params"]["update"])
                else:
                    self.answers[sent["id"]] = sent["result"]


@given(old_conversations(), st.sampled_from(["end_turn", "max_tokens", "cancelled"]))
@effort(150)
def test_a_conversation_of_version_1_shows_the_same_transcript_through_version_2(
    conversation: list[Json], reason: str
) -> None:
    chain, direct = Chain(), OldTranscript()
    chain.client_says(request(1, "session/new", cwd="/w", mcpServers=[]))
    chain.agent_says(result(1, {"sessionId": S, "modes": MODES}))
    assert chain.answers[1]["modes"] == MODES
    number = 2
    for position, update in enumerate([None, *conversation, None]):
        if update is not None:
            direct.apply(update)
            chain.agent_says(as_message(update), position)
            continue
        direct.end_turn()
        if number > 2:
            chain.agent_says(result(number - 1, {"stopReason": reason}))
            assert chain.answers[number - 1] == {"stopReason": reason}
        chain.transcript.end_turn()
        prompt = request(number, "session/prompt", sessionId=S, prompt=[text("hi")])
        assert [json.loads(sent) for sent in chain.client_says(prompt)] == [json.loads(prompt)]
        chain.turn_began(number, position)
        number += 1
    mode = direct.state.get("current_mode_update", {}).get("currentModeId", "a")
    chain.transcript.state.pop("config_option_update", None)
    assert chain.transcript.state.get("current_mode_update", {}).get("currentModeId", "a") == mode
    for shown in (direct, chain.transcript):
        shown.state.pop("current_mode_update", None)
    assert chain.transcript.shown() == direct.shown()


IDLE = {"sessionUpdate": "state_update", "state": "idle"}


@given(st.lists(NEW_UPDATES, max_size=25))
@effort(200)
def test_a_conversation_of_version_2_shows_the_same_messages_and_tool_calls_in_version_1(
    conversation: list[Json],
) -> None:
    it, old, new = NewAgent(), OldTranscript(), NewTranscript()
    for update in [*conversation, IDLE]:
        new.apply(update)
        for sent in map(json.loads, it.from_agent(as_message(update)).to_client):
            old.apply(sent["params"]["update"])
    for name, (kind, blocks) in new.messages.items():
        shown = old.messages.get(name, (kind, []))
        assert (shown[0], essence(shown[1])) == (kind, essence(blocks))
    for name, tool in new.old_tools().items():
        assert {key: old.tools[name][key] for key in tool} == tool
        assert old.tools[name]["title"] == new.tools[name]["title"] or new.tools[name]["title"] is None
    made = {name for name in old.tools if name.startswith(MADE)}
    assert old.tools.keys() - made == new.tools.keys()


@given(st.lists(NEW_UPDATES, max_size=15), st.sampled_from(["end_turn", "refusal"]))
@effort(100)
def test_every_prompt_is_answered_once_with_the_reason_of_its_turn(conversation: list[Json], reason: str) -> None:
    it = NewAgent()
    answers: list[Json] = []

    def say(message: bytes) -> None:
        answers.extend(sent for sent in map(json.loads, it.from_agent(message).to_client) if "id" in sent)

    for update in conversation:
        say(as_message(update))
    it.from_client(request(1, "session/prompt", sessionId=S, prompt=[text("hi")]))
    say(result(1, {"messageId": "mine"}))
    say(as_message({"sessionUpdate": "state_update", "state": "running"}))
    for update in conversation:
        if update["sessionUpdate"] != "state_update":
            say(as_message(update))
    assert not answers
    say(as_message(IDLE | {"stopReason": reason}))
    say(as_message(IDLE | {"stopReason": "cancelled"}))
    assert [answer["result"] for answer in answers] == [{"stopReason": reason}]


@given(st.lists(NEW_UPDATES, max_size=10))
@effort(60)
def test_a_client_of_version_1_that_comes_later_sees_what_the_first_one_sees(conversation: list[Json]) -> None:
    """With the history from the beginning, or primed with it, from any message on."""
    messages = list(map(as_message, conversation))
    first = NewAgent()
    live = [first.from_agent(message).to_client for message in messages]
    for cut in range(len(messages) + 1):
        joined = NewAgent()
        joined.begin_replay(S)
        assert [joined.from_agent(message).to_client for message in messages] == live
        primed = NewAgent()
        primed.prime(S, messages[:cut], 0)
        assert [primed.from_agent(message).to_client for message in messages[cut:]] == live[cut:]


@given(old_conversations())
@effort(60)
def test_a_client_of_version_2_that_comes_later_sees_what_the_first_one_sees(conversation: list[Json]) -> None:
    """A history may begin at any turn, as its beginning is cut off turn by turn."""
    first = OldAgent()
    first.turn_began(S, None, 0)
    live: list[list[bytes] | None] = []
    position, starts = 0, [(0, 0)]
    for index, update in enumerate(conversation):
        if update is None:
            first.turn_ended(S)
            first.turn_began(S, None, position)
            live.append(None)
            starts.append((index + 1, position))
        else:
            live.append(first.from_agent(as_message(update), position).to_client)
            position += 1
    for begin, place in starts:
        joined = OldAgent()
        joined.begin_replay(S)
        assert without_modes(replayed(joined, conversation[begin:], place)) == without_modes(live[begin:])
    for cut in range(len(conversation) + 1):
        # It has seen a part, from which on it gets the rest.
        begin, place = max(start for start in starts if start[0] <= cut)
        seen = [as_message(update) for update in conversation[begin:cut]]
        returned = OldAgent()
        returned.begin_replay(S)
        returned.prime(S, seen, place)
        assert without_modes(replayed(returned, conversation[cut:], place + len(seen))) == without_modes(live[cut:])


def replayed(it: OldAgent, conversation: list[Json], place: int) -> list[list[bytes] | None]:
    """Return what becomes of a history from this position on; None for the end of a turn."""
    outputs: list[list[bytes] | None] = []
    for update in conversation:
        if update is None:
            it.turn_boundary(S)
            outputs.append(None)
        else:
            outputs.append(it.from_agent(as_message(update), place).to_client)
            place += 1
    return outputs


def without_modes(outputs: list[list[bytes] | None]) -> list[list[bytes] | None]:
    """Leave out the modes: a client reads them from the response that opens the session."""
    return [None if out is None else [sent for sent in out if b"config_option_update" not in sent] for out in outputs]
