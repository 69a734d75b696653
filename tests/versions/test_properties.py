"""Properties of the translators: total over the schemas of both versions, valid output, bounded, replay equals live."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.versions.new_agent import NewAgent
from acp_gateway.versions.old_agent import OldAgent
from acp_gateway.versions.translator import Output, Translator
from tests.fuzz.effort import effort
from tests.kit import schemas
from tests.kit.schemas import check_message, definitions
from tests.kit.versions import dump, failure, notification, request, result
from tests.protocol import json_documents

Json = Any
SESSION = "a"


def translator(version: int) -> Translator[Any]:
    """Return the translator for an agent of a version and a client of the other one."""
    return NewAgent() if version == 2 else OldAgent()


class Peers:
    """A client and an agent of different versions around a translator; all that either gets is validated."""

    def __init__(self, agent: int) -> None:
        self.agent, self.client = agent, 3 - agent
        self.translator = translator(agent)
        self.asked_agent: dict[str, str] = {}
        self.asked_client: dict[str, str] = {}
        self.to_client: list[Json] = []
        self.to_agent: list[Json] = []

    def take(self, out: Output) -> Output:
        for text in out.to_client:
            message = json.loads(text)
            asked = self.client_methods.get(json.dumps(message.get("id")), "")
            check_message(self.client, "client", message, asked)
            self.to_client.append(message)
        for text in out.to_agent:
            message = json.loads(text)
            asked = self.asked_client.get(json.dumps(message.get("id")), "")
            check_message(self.agent, "agent", message, asked)
            if "method" in message and "id" in message:
                self.asked_agent[json.dumps(message["id"])] = message["method"]
            self.to_agent.append(message)
        return out

    client_methods: dict[str, str]


def peers(agent: int) -> Peers:
    found = Peers(agent)
    found.client_methods = {}
    return found


def response_of(version: int, side: str, method: str) -> str | None:
    names = [name for name in schemas.methods(version).get((side, method), []) if name.endswith("Response")]
    return names[0] if names else None


def requests_of(version: int, receiver: str) -> list[tuple[str, str]]:
    """The requests and notifications that a side receives, with their definitions."""
    return [
        (method, name)
        for (side, method), names in schemas.methods(version).items()
        for name in names
        if side == receiver and name.endswith(("Request", "Notification"))
    ]


@st.composite
def events(draw: st.DrawFn, version: int) -> list[tuple[str, Json]]:
    """Messages of a client of the other version and an agent of this one: any that their schemas allow."""
    client = 3 - version
    said: list[tuple[str, Json]] = []
    for number in range(draw(st.integers(1, 8))):
        what = draw(st.sampled_from(["client", "answer", "update", "update", "update", "agent", "began", "ended"]))
        match what:
            case "client":
                method, name = draw(st.sampled_from(requests_of(client, "agent")))
                params = draw(schemas.values(client, name))
                if "sessionId" in params:
                    params["sessionId"] = SESSION
                said.append((what, (name, number, method, params)))
            case "answer":
                said.append((what, (draw(st.booleans()), draw(st.randoms(use_true_random=False)))))
            case "update":
                name = "SessionNotification" if version == 1 else "UpdateSessionNotification"
                params = draw(schemas.values(version, name))
                params["sessionId"] = SESSION
                said.append((what, params))
            case "agent":
                method, name = draw(st.sampled_from(requests_of(version, "client")))
                if method != "session/update":
                    params = draw(schemas.values(version, name))
                    said.append((what, (name, f"r{number}", method, params)))
            case _:
                said.append((what, None))
    return said


@pytest.mark.parametrize("version", [1, 2])
@given(data=st.data())
@effort(40)
def test_all_that_schemas_allow_is_translated_to_what_the_schemas_of_the_other_version_allow(
    version: int, data: st.DataObject
) -> None:
    """Each client request is answered by the agent's schema, each agent request by the client's."""
    around = peers(version)
    for what, said in data.draw(events(version)):
        match what:
            case "client":
                name, number, method, params = said
                if name.endswith("Notification"):
                    around.take(around.translator.from_client(notification(method, **params)))
                    continue
                around.client_methods[str(number)] = method
                around.take(around.translator.from_client(request(number, method, **params)))
            case "answer":
                is_error, _ = said
                for raw_id, method in list(around.asked_agent.items()):
                    del around.asked_agent[raw_id]
                    name = response_of(version, "agent", method)
                    if is_error or name is None:
                        text = failure(json.loads(raw_id))
                    else:
                        text = result(json.loads(raw_id), data.draw(schemas.values(version, name)))
                    around.take(around.translator.from_agent(text))
            case "update":
                around.take(around.translator.from_agent(notification("session/update", **said)))
            case "agent":
                name, number, method, params = said
                if name.endswith("Notification"):
                    around.take(around.translator.from_agent(notification(method, **params)))
                    continue
                around.asked_client[json.dumps(number)] = method
                seen = len(around.to_client)
                around.take(around.translator.from_agent(request(number, method, **params)))
                asked = around.to_client[seen:]
                if asked and "method" in asked[-1] and asked[-1].get("id") == number:
                    answer = response_of(around.client, "client", method)
                    if answer is not None:
                        value = data.draw(schemas.values(around.client, answer))
                        around.take(around.translator.from_client(result(number, value)))
            case "began":
                around.take(around.translator.turn_began(SESSION, data.draw(st.sampled_from([None, RawId(b"1")])), 3))
            case "ended":
                around.take(around.translator.turn_ended(SESSION))


@st.composite
def mutated(draw: st.DrawFn, version: int, sender: str) -> bytes:
    """A message of a side in which a value at any place is another one, or is missing."""
    other = "client" if sender == "agent" else "agent"
    method, name = draw(st.sampled_from(requests_of(version, other)))
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": draw(schemas.values(version, name))}
    places: list[tuple[Any, Any]] = []

    def walk(value: Json) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])

    walk(message["params"])
    if places:
        holder, key = draw(st.sampled_from(places))
        if draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = draw(schemas.ANY | st.just([{}]) | st.just([[]]) | st.just({"type": []}))
    if name.endswith("Notification"):
        del message["id"]
    return dump(message)


@pytest.mark.parametrize("version", [1, 2])
@given(data=st.data())
@effort(40)
def test_no_message_makes_a_translator_raise(version: int, data: st.DataObject) -> None:
    it = translator(version)
    for _ in range(data.draw(st.integers(1, 6))):
        from_client = data.draw(st.booleans())
        known = mutated(3 - version, "client") if from_client else mutated(version, "agent")
        answers = st.builds(lambda value: result(1, value), schemas.ANY | st.lists(schemas.ANY, max_size=1))
        text = data.draw(known | answers | json_documents.mutated())
        out = it.from_client(text) if from_client else it.from_agent(text, data.draw(st.none() | st.integers(0, 9)))
        for sent in (*out.to_client, *out.to_agent):
            assert sent is text or json.loads(sent)


def test_the_schemas_have_the_definitions_that_the_properties_use() -> None:
    assert "UpdateSessionNotification" in definitions(2)
    assert "SessionNotification" in definitions(1)
    assert response_of(2, "agent", "session/prompt") == "PromptResponse"
    assert ("session/prompt", "PromptRequest") in requests_of(1, "agent")
