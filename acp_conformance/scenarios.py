"""The dialogues that the kit has with an agent or a client: a fixture each, and how its bytes are written."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from acp_conformance.client_script import parse_fixture
from acp_conformance.dialogue import Line

BIG: Final = 2 * 1024 * 1024
"""Bytes of the text of a large prompt or chunk: beyond buffers of 64 KiB and 1 MiB, which are common."""


IDS: Final = ("1", '"1"', '""', '"a b/\\u00e9"', "-7", '"5e0c9e1c-8f1a-4c52-9f5e-3d3f4c5b6a79"')
"""Keys of the ids in the fixtures `ids` and `agent-ids`."""

UNUSUAL_IDS: Final = ("9007199254740993", "null")
"""Keys of the ids in `ids-unusual` and `agent-ids-unusual`: an integer beyond a float's precision, and null."""


@dataclass(frozen=True)
class Scenario:
    """One dialogue with a fresh process of the program."""

    name: str
    fixture: str
    """Name of the bundled fixture, without its suffix."""
    piece: int = 0
    """Bytes that are written at once; 0 to write all of a message at once."""
    first: bytes = b""
    """A line that is written before the dialogue."""
    prompt: str | None = None
    """The text of the prompts, in place of the user's or the fixture's."""
    chunk: str | None = None
    """The text of the agent's chunks, in place of the fixture's."""
    stderr: int = 0
    """Bytes that the agent writes to stderr before anything else."""
    lost: bool = False
    """True if the agent ends where the fixture ends, with an exit code that is not 0."""


PLAIN: Final = (
    *("initialize", "version-unsupported", "version-lower", "ids", "ids-unusual", "extensions", "session-new"),
    *("unknown-session", "load", "modes", "prompt-updates", "blocks", "permission", "permission-reject"),
    *("permission-cancelled", "cancellation", "file-system", "terminal"),
)
"""Names of the fixtures that are played as they are."""

SCENARIOS: Final = (
    *(Scenario(name, name) for name in PLAIN),
    Scenario("big", "framing", prompt="x" * BIG),
    Scenario("split", "framing", piece=7),
    Scenario("garbage", "initialize", first=b"this is not JSON"),
)

STDERR: Final = 256 * 1024
"""Bytes that an agent writes to stderr: four times what a pipe holds."""

CLIENT_PLAIN: Final = (
    *("agent-text", "agent-version", "agent-authentication", "agent-updates", "agent-update-unknown", "agent-members"),
    *("agent-meta", "agent-requests", "agent-notifications", "agent-ids", "agent-ids-unusual", "permission"),
    *("permission-reject", "agent-options", "permission-cancelled", "cancellation", "agent-stop-reasons"),
    *("file-system", "terminal"),
)
"""Names of the fixtures that are played to clients as they are. The first shows whether a client can be run at all."""

CLIENT_SCENARIOS: Final = (
    *(Scenario(name, name) for name in CLIENT_PLAIN),
    Scenario("agent-big", "agent-text", chunk="x" * BIG),
    Scenario("agent-split", "agent-text", piece=7),
    Scenario("agent-garbage", "agent-text", first=b"this is not JSON"),
    Scenario("agent-stderr", "agent-text", stderr=STDERR),
    Scenario("agent-lost", "agent-lost", lost=True),
)


def load_fixture(name: str) -> list[Line]:
    """Return the lines of a bundled fixture."""
    return parse_fixture((files("acp_conformance") / "fixtures" / f"{name}.jsonl").read_bytes())
