"""Text of a display terminal: bytes decoded across chunks, the last ones kept, escape sequences as they are."""

import binascii
import codecs
from typing import Final

from acp_gateway.versions.parts import members, number, text
from acp_gateway.versions.state import TERMINAL_SIZE

LEFT_OUT: Final = "[earlier output is left out]\n"

_decoder: Final = codecs.getincrementaldecoder("utf-8")


class Terminal:
    """A terminal of an agent of version 2, as a tool call of version 1 shows it."""

    def __init__(self) -> None:
        self.command = ""
        self.tools: dict[str, None] = {}
        """Ids of the tool calls that refer to it."""
        self.text = ""
        self.is_over = False
        """True when it has ended."""
        self._ended = ""
        self._is_cut = False
        self._decode = _decoder("replace")

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return 4 * len(self.text) + len(self.command) + sum(map(len, self.tools))

    def append(self, data: bytes | None) -> int:
        """Append bytes in base64; return how many there were."""
        output = decode_base64(text(data) or "")
        whole = self.text + self._decode.decode(output)
        self._is_cut = self._is_cut or len(whole) > TERMINAL_SIZE
        self.text = whole[-TERMINAL_SIZE:]
        return len(output)

    def replace(self, data: bytes | None) -> int:
        """Replace all output by bytes in base64; return how many there were."""
        self._decode.reset()
        self.text, self._is_cut = "", False
        return self.append(data)

    def end(self, status: bytes) -> None:
        """Read how it has ended."""
        self.is_over = True
        parts = members(status)
        code, signal = number(parts.get("exitCode")), text(parts.get("signal"))
        if signal:
            self._ended = f"[signal {signal}]"
        else:
            self._ended = f"[exit code {parts['exitCode'].decode()}]" if code else ""

    def shown(self) -> str:
        """Return its text."""
        begun = (LEFT_OUT if self._is_cut else "") + self.text
        return begun + ("\n" if begun and self._ended and not begun.endswith("\n") else "") + self._ended


def decode_base64(data: str) -> bytes:
    """Decode base64, as far as it is that; what is cut off within four characters is lost."""
    raw = data.encode("ascii", "ignore")
    try:
        return binascii.a2b_base64(raw)
    except binascii.Error:
        plain = bytes(char for char in raw if char not in b"=\r\n")
        try:
            return binascii.a2b_base64(plain[: len(plain) // 4 * 4])
        except binascii.Error:
            return b""
