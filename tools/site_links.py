"""A hook of mkdocs for `make docs`: reports addresses in raw HTML that lead to no file of the site.

mkdocs adapts addresses of Markdown to the place of the page in the site, and checks them; raw HTML it leaves as it is.
"""

import logging
import posixpath
from collections.abc import Collection
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

_ATTRIBUTES = {"src", "poster"}


class _Addresses(HTMLParser):
    """Collects the addresses of pictures and the like."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses of an element."""
        for name, value in attrs:
            if name in _ATTRIBUTES:
                self.found.append(value or "")
            elif name == "srcset":
                # It has several, each with its size.
                self.found += [part.split()[0] for part in (value or "").split(",") if part.strip()]


def missing(html: str, page: str, files: Collection[str]) -> list[str]:
    """Return the addresses in a page of the site that lead to a file that it lacks; both are paths from its root."""
    addresses = _Addresses()
    addresses.feed(html)
    wrong = []
    for address in addresses.found:
        parts = urlsplit(address)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), parts.path))
        if not parts.scheme and not parts.netloc and path not in files:
            wrong.append(address)
    return wrong


def on_page_content(html: str, page: Any, config: Any, files: Any) -> None:  # noqa: ARG001
    """Warn of each missing file: with `--strict`, a warning fails the build."""
    for address in missing(html, page.file.dest_uri, {file.dest_uri for file in files}):
        logging.getLogger("mkdocs.hooks").warning("%s shows '%s', which is not in the site", page.file.src_uri, address)
