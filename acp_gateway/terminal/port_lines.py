"""The ports of a session's programs, and the ways to them, as a terminal tells them; the ports that texts offer."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from acp_gateway.printable import printable
from acp_gateway.protocol.methods import AGENT_CHUNK, CHUNKS, TOOL_CALL, TOOL_CALL_UPDATE
from acp_gateway.terminal.content import block_text, read_tool_content, text_of

MOST_SHOWN: Final = 6
"""Ports that a line names: a program may listen on many."""

_OFFER: Final = re.compile(
    r"(?<![\w.-])(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\]):([0-9]{1,5})(?![0-9])", re.IGNORECASE | re.ASCII
)

OFFER_SIZE: Final = 16
"""Characters of the longest offer, `localhost:65535`, and of the one before it."""

_OTHER_PARTS: Final = CHUNKS | {TOOL_CALL, TOOL_CALL_UPDATE}
"""Kinds of updates before which a message has ended."""


class Port(NamedTuple):
    """A port of a session, and the name of the program that listens; empty if it is not known."""

    number: int
    program: str

    def __str__(self) -> str:
        """Return what it is called, as in the page, on one line without control characters."""
        return f"{self.number} · {printable(self.program)}" if self.program else str(self.number)


def read_ports(session: Mapping[str, Any]) -> list[Port]:
    """Return the ports of a session in a list of `control.list_sessions`."""
    return [Port(one["port"], one["program"]) for one in session.get("ports", ())]


def name_ports(ports: Sequence[Port]) -> str:
    """Return the names of ports, and how many are left out."""
    more = [f"{len(ports) - MOST_SHOWN} more"] if len(ports) > MOST_SHOWN else []
    return ", ".join([*map(str, ports[:MOST_SHOWN]), *more])


def way_to(target: str, port: int, node: str = "") -> str:
    """Return the command that forwards a port of a gateway, or of its node.

    With the socket of a gateway on this machine, it is here already; no node is reached over one.
    """
    if not target.startswith("unix:"):
        return f"acp-gateway forward {printable(target)} {port}{f' --node {printable(node)}' if node else ''}"
    return f"acp-gateway forward HOST {port} --node {printable(node)}" if node else f"http://localhost:{port}"


def node_of(session: str) -> str:
    """Return the node in the name of a session, `NODE/ID`; empty for one of the gateway itself."""
    node, slash, session_id = session.partition("/")
    return node if slash and session_id else ""


def tell_ports(ports: Sequence[Port], target: str, session: str) -> str:
    """Return the line about the ports of a session, with the way to the first."""
    return f"{name_ports(ports)}: {way_to(target, ports[0].number, node_of(session))}"


def find_offers(text: str, *, is_whole: bool, is_end: bool = False) -> tuple[list[int], str]:
    """Return the ports that a text offers, as `localhost:6006`, in their order and each once, and the end of the text.

    Unless the text is whole, more may follow: its end is to be put before that, as an offer may lie in both. None is
    lost. In a text that `is_end` at its beginning, none begins with the first character.
    """
    found: dict[int, None] = {}
    start = max(len(text) - OFFER_SIZE, 0)
    for offer in _OFFER.finditer(text, 1 if is_end else 0):
        if offer.end() == len(text) and not is_whole:
            # Further digits may follow.
            return list(found), text[offer.start() - 1 if offer.start() else 0 :]
        if 0 < (port := int(offer[1])) < 65536:
            found[port] = None
        start = max(start, offer.end() - 1)
    return list(found), "" if is_whole else text[start:]


class Offers:
    """The ports that the updates of one session offer, also in parts of a message and in the output of tools."""

    def __init__(self) -> None:
        self._rest = " "  # End of the message so far, in which an offer may have begun behind the first character.

    def receive(self, update: Mapping[str, Any]) -> list[int]:
        """Return the ports that are offered as far as this update."""
        kind = text_of(update.get("sessionUpdate"))
        if kind == AGENT_CHUNK:
            said = self._rest + block_text(update.get("content"))
            found, self._rest = find_offers(said, is_whole=False, is_end=True)
            return found
        if kind not in _OTHER_PARTS:
            return []
        found = self.end()
        if kind not in CHUNKS:
            for output in read_tool_content(update.get("content")).outputs:
                found += find_offers(output.text, is_whole=True)[0]
        return found

    def end(self) -> list[int]:
        """Return the port that the end of a message offers."""
        rest, self._rest = self._rest, " "
        return find_offers(rest, is_whole=True, is_end=True)[0]
