"""The text of a prompt that waits: what clients are shown of it, and another one in its place."""

from collections.abc import Sequence
from typing import Any, Final

from acp_gateway.acp.reading import ABSENT, string
from acp_gateway.acp.updates import Block
from acp_gateway.core.requests import QueuedPrompt
from acp_gateway.core.sessions.session import Request
from acp_gateway.core.turns import updates
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import spans

SHOWN_SIZE: Final = 4096
"""Maximum size of the text of a prompt that clients are shown, in bytes: 20 of them are told together, and often."""

MOST_TOLD: Final = 10
"""Maximum number of prompts that news name."""

TOLD_SIZE: Final = 200
"""Maximum characters of their texts in news."""


def describe_prompt(key: str, at: int | None, message: Message) -> QueuedPrompt:
    """Describe a prompt that has to wait; `at` is the time in milliseconds since 1970."""
    parts: list[str] = []
    size = attached = 0
    whole, after_text = True, False
    for block in updates.blocks_of(message):
        told = Block.read(block)
        kind = told.type
        raw = bytes({"text": told.text, "resource_link": told.name}.get(kind or "", ABSENT))
        if not raw.startswith(b'"'):
            attached += 1
            continue
        whole = whole and size + len(raw) <= SHOWN_SIZE
        text = spans.string_beginning(raw, SHOWN_SIZE - size) if size < SHOWN_SIZE else ""
        size += len(raw)
        if kind == "text":
            parts += ["\n", text] if after_text else [text]
        else:
            parts.append(f"@{text}")
        after_text = kind == "text"
    return QueuedPrompt(key, at, "".join(parts), whole, attached)


def with_text(message: Message, text: str) -> bytes:
    """Return a prompt with another text; see `QueueChange.text`."""
    kept = [jsonrpc.encode({"type": "text", "text": text})] if text.strip() else []
    for block in updates.blocks_of(message):
        told = Block.read(block)
        if told.type == "resource_link":
            name = string(told.name)
            if name is None or f"@{name}" in text:
                kept.append(block)
        elif told.type != "text":
            kept.append(block)
    at = spans.find(message.text, "params", "prompt")
    assert at is not None, "a prompt that is edited has blocks"
    return spans.splice(message.text, [(*at, b"[%b]" % b",".join(kept))])


def queue_news(queue: Sequence[Request]) -> dict[str, Any]:
    """Return the members of the news of prompts that wait: their number, and the first ones."""
    shown = [(request.client.reach.identity, request.queued) for request in queue if request.queued is not None]
    prompts = [{"identity": identity, "text": prompt.text[:TOLD_SIZE]} for identity, prompt in shown[:MOST_TOLD]]
    return {"count": len(shown), "prompts": prompts}
