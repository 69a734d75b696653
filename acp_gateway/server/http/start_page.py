"""Tells a person in a few sentences what a gateway is, at `/` where no page is served."""

import html
import re
from http import HTTPStatus
from typing import Final

from acp_gateway.transports.http.head import media_types
from acp_gateway.transports.http.server import Request, Response

PAGE: Final = "/"

TITLE: Final = "acp-gateway"

_TEXT: Final = """\
This is an acp-gateway. It runs coding agents, which editors use over the Agent Client Protocol. It has no page for \
browsers at this address.
To use an agent, have your editor run `acp-gateway connect` with this address and a token.
The owner of this gateway creates a token with `acp-gateway token create`, or with `acp-gateway share` for a guest of \
one session.
If this gateway has a page at another address, `acp-gateway open` prints a link to it."""

_PARAGRAPHS: Final = re.sub("(.+)", r"<p>\1</p>", re.sub("`(.*?)`", r"<code>\1</code>", html.escape(_TEXT)))

_HTML: Final = f"""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{TITLE}</title>
<h1>{TITLE}</h1>
{_PARAGRAPHS}
</html>
"""

PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response for browsers. Nothing is loaded, run or framed, and no copy is kept: it may hold a secret,
and must not outlive an upgrade of the gateway."""

_START_HEADERS: Final = {**PAGE_HEADERS, "Vary": "Accept"}


def start_page(request: Request) -> Response:
    """Return the page: HTML for a client that asks for it, as browsers do, and plain text for others."""
    if "text/html" not in media_types(request.headers, "Accept"):
        return Response.of_text(HTTPStatus.OK, _TEXT, _START_HEADERS)
    headers = {"Content-Type": "text/html; charset=utf-8"} | _START_HEADERS
    return Response(HTTPStatus.OK, _HTML.encode(), headers)
