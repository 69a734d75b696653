"""Answers requests in plain HTTP at a TLS port: a redirect for browsers, a sentence for programs."""

import re
from typing import Final

HEAD_SIZE: Final = 4096
"""Bytes of a request that are read: its line and its `Host`, beside the cookies of a browser."""

_LINE: Final = re.compile(rb"(?:(GET|HEAD)|POST|PUT|DELETE|OPTIONS) (/[!-~]*) HTTP/1\.[01]\r\n")
_HOST: Final = re.compile(rb"\r\nHost:[ \t]*((?:[\w.-]+|\[[0-9A-F:.]+\])(?::\d+)?)[ \t]*\r\n", re.IGNORECASE)
_NOT_OF_A_BROWSER: Final = re.compile(rb"\r\n(?:Authorization|Upgrade):", re.IGNORECASE)


def answer_plaintext(head: bytes) -> bytes:
    """Return the response to the first bytes of a connection if they are an HTTP request, else nothing.

    A request with a token is not redirected: its sender should learn that the token went over the network unencrypted.
    """
    line = _LINE.match(head)
    if line is None:
        return b""
    host = _HOST.search(head)
    if line[1] and host and not _NOT_OF_A_BROWSER.search(head):
        status, location = b"307 Temporary Redirect", b"Location: https://%b%b\r\n" % (host[1], line[2])
    else:
        status, location = b"400 Bad Request", b""
    text = b"This port speaks TLS: use https:// or wss:// in place of http:// or ws://.\n"
    return b"HTTP/1.1 %b\r\n%bContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        status,
        location,
        len(text),
        b"" if line[1] == b"HEAD" else text,
    )
