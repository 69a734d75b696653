"""Messages for the tests of translators, and what comes out of these as Python values."""

import json
from typing import Any

from acp_gateway.protocol.text.pairs import texts_of
from acp_gateway.versions.agent_edge import EdgeOutput
from acp_gateway.versions.translator import Output

Json = Any
S = "s"


def dump(message: Json) -> bytes:
    return json.dumps(message).encode()


def request(number: int | str, method: str, **params: Json) -> bytes:
    return dump({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification(method: str, **params: Json) -> bytes:
    return dump({"jsonrpc": "2.0", "method": method, "params": params})


def result(number: int | str, value: Json) -> bytes:
    return dump({"jsonrpc": "2.0", "id": number, "result": value})


def failure(number: int | str, code: int = -32603, message: str = "no") -> bytes:
    return dump({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})


def update(kind: str, /, **members: Json) -> bytes:
    return notification("session/update", sessionId=S, update={"sessionUpdate": kind, **members})


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def content(words: str, **told: Json) -> Json:
    """An item of a tool call, with what the gateway tells of it to those who know it."""
    return {"type": "content", "content": text(words), **(own(**told) if told else {})}


def own(**told: Json) -> Json:
    return {"_meta": {"acp-gateway": told}}


def to_client(out: Output | EdgeOutput) -> list[Json]:
    """The messages that the client gets, if the agent gets nothing."""
    assert not out.to_agent
    return list(map(json.loads, texts_of(out.to_client)))


def to_agent(out: Output | EdgeOutput) -> list[Json]:
    """The messages that the agent gets, if the client gets nothing."""
    assert not out.to_client
    return list(map(json.loads, out.to_agent))


def updates(out: Output) -> list[Json]:
    """The updates that the client gets, and nothing else."""
    return [message["params"]["update"] for message in to_client(out)]
