"""Echoes: prompts that some agents repeat before they begin to answer.

The gateway fans a prompt out to the other clients of its session, as no agent has to. If the agent repeats it, all
clients but the sender would see it twice, and every late joiner would. So an echo goes to the sender of the prompt
alone, as it would without a gateway.

An echo consists of user chunks in the turn of the prompt, before any other update, with the text of the prompt: in one
chunk, in one for each block, or in pieces. White space is ignored, as agents join blocks with line breaks of their own.
Other blocks may be left out or reordered. Only the last piece of text completes an echo. Until then its chunks are
withheld from the other clients; they are fanned out after all if the echo ends early.
"""

from typing import Final, Generic, TypeVar

from acp_gateway.acp.reading import string
from acp_gateway.acp.updates import Block, Resource, SessionUpdate

MAX_WITHHELD: Final = 1024 * 1024
"""Maximum size of a withheld, unfinished echo, in bytes: a page of prompt repeated letter by letter. Longer prompts
come in larger pieces."""

RequestT = TypeVar("RequestT")
"""The request of a prompt, which is above its echo."""

_Essence = tuple[str | None, ...]


class Echo(Generic[RequestT]):
    """Expected echo of one prompt.

    Args:
        request: the prompt.
        chunks: the updates that the other clients got.
    """

    __slots__ = ("_at", "_blocks", "_chunks", "_text", "_withheld_size", "request", "size", "withheld")

    def __init__(self, request: RequestT, chunks: list[bytes]) -> None:
        self.request = request
        self.withheld: list[bytes] = []
        """Chunks of the unfinished echo."""
        self._chunks = chunks
        self.size = 0
        """Bytes kept until the echo is complete: the withheld chunks, and what they are compared with."""
        self._withheld_size = 0
        # Read at the first comparison: the text, the position in it, and the other blocks.
        self._text: bytes | None = None
        self._at = 0
        self._blocks: list[_Essence] = []

    @property
    def is_complete(self) -> bool:
        """True if the echo is complete."""
        return self._text is not None and self._at == len(self._text) and not self._blocks

    def take(self, chunk: bytes) -> bool:
        """Match a `user_message_chunk` of the agent; return True if it continues the echo."""
        if self._text is None:
            self._text = self._read()
        essence = _essence(chunk)
        if essence[0] == "text":
            if not self._continues(_plain(essence[1] or "")):
                return False
        elif essence in self._blocks:
            self._blocks.remove(essence)
        else:
            return False
        if self._at == len(self._text) and (self._text or not self._blocks):
            self.withheld.clear()
            return True
        self._withheld_size += len(chunk)
        self.size += len(chunk)
        if self._withheld_size > MAX_WITHHELD:
            return False
        self.withheld.append(chunk)
        return True

    def _read(self) -> bytes:
        essences = list(map(_essence, self._chunks))
        self._chunks = []
        self._blocks = [essence for essence in essences if essence[0] != "text"]
        text = b"".join(_plain(essence[1] or "") for essence in essences if essence[0] == "text")
        self.size = len(text) + sum(len(part or "") for essence in self._blocks for part in essence)
        return text

    def _continues(self, text: bytes) -> bool:
        assert self._text is not None
        if self._at == len(self._text) or not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True


def _essence(chunk: bytes) -> _Essence:
    """Return the parts that equal blocks share, whatever members an agent adds or leaves out."""
    content = SessionUpdate.of(chunk).update.content
    if not content:
        return (None,)
    block = Block.read(content)
    match block.type:
        case "text":
            return block.type, string(block.text)
        case "image" | "audio":
            return block.type, string(block.data)
        case "resource_link":
            return block.type, string(block.uri)
        case "resource":
            resource = Resource.read(block.resource)
            return block.type, resource.uri, resource.text, resource.blob
    return block.type, bytes(content).decode(errors="surrogateescape")


def _plain(text: str) -> bytes:
    """Remove white space and encode in UTF-16: an agent in JavaScript may split within a character."""
    return "".join(text.split()).encode("utf-16-le", "surrogatepass")
