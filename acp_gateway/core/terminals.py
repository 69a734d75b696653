"""Terminals that clients run for an agent, and their ids, which each client mints for itself.

Two clients of one agent may mint the same id. So the agent gets ids minted here, and messages that name a terminal are
translated: `params.terminalId` of the agent's requests, `result.terminalId` of the client's response to
`terminal/create`, and the terminals in the content of a tool call, also in a permission request, for the client that
runs the terminal. For any other client, and when that one has gone, they are left out of the content: editors drop
updates with terminals that they do not have.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from acp_gateway.core.sessions.session import Client
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup, spans

MAX_REMEMBERED: Final = 10_000
"""Maximum number of remembered terminals of one agent. A released one is still shown in the tool call that it was
started for."""


_PREFIX: Final = "acp-gateway-terminal-"

# A quote without a backslash before it is not part of a text that is shown.
_MINTED: Final = re.compile(rb'(?<!\\)"terminalId"[ \t\n\r]*:[ \t\n\r]*"(%b[0-9]{1,18})"' % _PREFIX.encode())


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal on a client's machine."""

    client: Client
    id: str
    """The client's id."""


class Terminals:
    """Terminals that the clients of one agent run for it, or have run."""

    def __init__(self) -> None:
        # By the id at the agent.
        self._terminals: dict[str, Terminal] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._terminals)

    @property
    def are_used(self) -> bool:
        """True once a client has run a terminal: an update may show one, also of a client that has gone."""
        return self._last > 0

    def names_terminal(self, request: Message) -> bool:
        """Return True if a request of the agent names a terminal, known or not."""
        return lookup.text_param(request, "terminalId") is not None

    def named(self, request: Message) -> Terminal | None:
        """Return the terminal that a request of the agent names."""
        name = lookup.text_param(request, "terminalId")
        return None if name is None else self._terminals.get(name)

    def for_client(self, request: Message, terminal: Terminal) -> Message:
        """Translate a request of the agent to the client's id."""
        at = spans.find(request.text, "params", "terminalId")
        assert at is not None
        return jsonrpc.parse(spans.splice(request.text, [(*at, jsonrpc.encode(terminal.id))]))

    def created(self, client: Client, response: bytes) -> bytes:
        """Translate a client's response to `terminal/create`, under an id that no other terminal has."""
        name = lookup.text_at(response, "result", "terminalId")
        at = spans.find(response, "result", "terminalId")
        if name is None or at is None:
            return response
        self._last += 1
        minted = f"{_PREFIX}{self._last}"
        self._terminals[minted] = Terminal(client, name)
        if len(self._terminals) > MAX_REMEMBERED:
            del self._terminals[next(iter(self._terminals))]
        return spans.splice(response, [(*at, jsonrpc.encode(minted))])

    def client_gone(self, client: Client) -> None:
        """Forget the terminals of a client that has gone."""
        self._terminals = {name: it for name, it in self._terminals.items() if it.client is not client}

    def clear(self) -> None:
        """Forget all terminals: the agent has ended."""
        self._terminals.clear()

    def translations(self, update: bytes, clients: Iterable[Client]) -> dict[Client, bytes]:
        """Return an update, or a permission request, for each of these clients that gets it changed: its own terminals
        under its own ids, and none of others."""
        if _PREFIX.encode() not in update:
            return {}
        found = (spans.find(update, "params", name, "content") for name in ("update", "toolCall"))
        content = next((place for place in found if place is not None), None)
        if content is None or update[content[0]] != ord("["):
            return {}
        items = [update[start:end] for start, end in spans.elements(update, content[0], len(update))]
        shown = [[self._terminals.get(name.decode()) for name in _MINTED.findall(item)] for item in items]
        if not any(shown):
            return {}

        def text_for(client: Client | None) -> bytes:
            kept = [
                _MINTED.sub(lambda match: _named(match, self._terminals[match[1].decode()].id), item)
                for item, terminals in zip(items, shown, strict=True)
                if all(terminal is not None and terminal.client is client for terminal in terminals)
            ]
            return spans.splice(update, [(*content, b"[%b]" % b",".join(kept))])

        owners = {terminal.client for terminals in shown for terminal in terminals if terminal is not None}
        others = text_for(None)
        return {client: text_for(client) if client in owners else others for client in clients}


def _named(match: re.Match[bytes], name: str) -> bytes:
    """Return what names a terminal, with another id."""
    start, end = match.start(1) - match.start() - 1, match.end(1) - match.start() + 1
    return match[0][:start] + jsonrpc.encode(name) + match[0][end:]
