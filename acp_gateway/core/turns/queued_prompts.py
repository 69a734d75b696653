"""The text of a prompt that waits: what clients are shown of it, and another one in its place."""

from dataclasses import replace
from typing import Any, Final

from acp_gateway.acp.reading import ABSENT, string
from acp_gateway.acp.updates import Block
from acp_gateway.core.requests import KeptPrompt, QueuedPrompt, QueueState
from acp_gateway.core.sessions.own_meta import without_own_meta
from acp_gateway.core.sessions.session import Request, Session
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


def kept(request: Request) -> KeptPrompt:
    """Return a prompt that waits as it is kept and stored."""
    assert request.queued is not None, "it waits"
    client = request.client
    text = without_own_meta(request.message.text)
    return KeptPrompt(request.queued, client.reach.identity, client.sender, text, request.is_new)


def left(prompt: KeptPrompt, now: int | None, why: str = "", *, was_sent: bool = False) -> KeptPrompt:
    """Return a prompt as it waits after the end of the agent or of the gateway.

    `now` is the time in milliseconds since 1970. `why` is a reason for which a person alone sends it; one that
    `was_sent` may have reached the agent, and is not sent again.
    """
    shown = prompt.shown
    is_ahead = shown.due is not None and (now is None or shown.due > now)
    state: QueueState = "lost" if was_sent else "held" if why or not (is_ahead or shown.auto) else "timed"
    due = None if state != "timed" else shown.due if is_ahead else now or 0
    why = why or ("its time has passed" if state == "held" and shown.due else "")
    return replace(prompt, shown=replace(shown, state=state, due=due, why=why))


def queue_news(session: Session) -> dict[str, Any]:
    """Return the members of the news of prompts that wait: their number, and the first ones."""
    queued = [(request.client.reach.identity, request.queued) for request in session.queue]
    told = [*queued, *((it.identity, it.shown) for it in session.kept.values())]
    shown = [(identity, prompt) for identity, prompt in told if prompt is not None]
    prompts = [_told(identity, prompt) for identity, prompt in shown[:MOST_TOLD]]
    return {"count": len(shown), "prompts": prompts}


def _told(identity: str, prompt: QueuedPrompt) -> dict[str, Any]:
    told: dict[str, Any] = {"identity": identity, "text": prompt.text[:TOLD_SIZE]}
    if prompt.state != "queued":
        told |= {"promptId": prompt.key, "state": prompt.state, "due": prompt.due}
    return told
