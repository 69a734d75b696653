"""Terminals that clients run for an agent: their ids, which each client mints for itself.

Two clients of one agent may mint the same id. So the agent gets ids that are minted here, and what names a terminal is
translated on its way: `params.terminalId` of the agent's requests, `result.terminalId` of the client's answer to
`terminal/create`, and the terminals that the content of a tool call shows, for the client whose terminal it is.
"""

import re
from dataclasses import dataclass
from typing import Final

from acp_gateway.core.sessions import Client
from acp_gateway.protocol import jsonrpc, spans
from acp_gateway.protocol.jsonrpc import Message

REMEMBERED: Final = 10_000
"""Terminals of one agent at most. A released one still stands in the tool call that it was started for, and clients go
on to show it there."""


# Quotes that no backslash escapes, so it is no part of a text that is shown.
_MINTED: Final = re.compile(rb'(?<!\\)"terminalId"[ \t\n\r]*:[ \t\n\r]*"(acp-gateway-terminal-[0-9]{1,18})"')


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal on a client's machine."""

    client: Client
    id: str
    """As the client calls it."""


class Terminals:
    """The terminals that the clients of one agent run for it, or have run."""

    def __init__(self) -> None:
        # By the id that the agent knows.
        self._terminals: dict[str, Terminal] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._terminals)

    def names_one(self, request: Message) -> bool:
        """Whether a request of the agent is about a terminal, one that is there or not."""
        return jsonrpc.text_param(request, "terminalId") is not None

    def named(self, request: Message) -> Terminal | None:
        """The terminal that a request of the agent is about."""
        name = jsonrpc.text_param(request, "terminalId")
        return None if name is None else self._terminals.get(name)

    def for_client(self, request: Message, terminal: Terminal) -> Message:
        """That request, with the id that its client knows."""
        at = spans.find(request.text, "params", "terminalId")
        assert at is not None
        return jsonrpc.parse(spans.splice(request.text, [(*at, jsonrpc.encode(terminal.id))]))

    def created(self, client: Client, response: bytes) -> bytes:
        """A client's answer to `terminal/create`, with an id that no other terminal has."""
        name = jsonrpc.text_at(response, "result", "terminalId")
        at = spans.find(response, "result", "terminalId")
        if name is None or at is None:
            return response
        self._last += 1
        minted = f"acp-gateway-terminal-{self._last}"
        self._terminals[minted] = Terminal(client, name)
        if len(self._terminals) > REMEMBERED:
            del self._terminals[next(iter(self._terminals))]
        return spans.splice(response, [(*at, jsonrpc.encode(minted))])

    def client_gone(self, client: Client) -> None:
        """A client took its terminals along."""
        self._terminals = {name: it for name, it in self._terminals.items() if it.client is not client}

    def clear(self) -> None:
        """The agent has ended."""
        self._terminals.clear()

    def translations(self, update: bytes) -> dict[Client, bytes]:
        """How an update looks to the clients whose terminals it shows; all others get it as it is."""
        if not self._terminals or b'"terminalId"' not in update:
            return {}
        edits: dict[Client, list[tuple[int, int, bytes]]] = {}
        content = spans.find(update, "params", "update", "content")
        if content is None or update[content[0]] != ord("["):
            return {}
        for match in _MINTED.finditer(update, *content):
            terminal = self._terminals.get(match[1].decode())
            if terminal is not None:
                edit = match.start(1) - 1, match.end(1) + 1, jsonrpc.encode(terminal.id)
                edits.setdefault(terminal.client, []).append(edit)
        return {client: spans.splice(update, its) for client, its in edits.items()}
