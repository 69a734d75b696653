"""Serves the page for browsers: the files of `acp_gateway/web/`, each at one exact path, and its modules joined to one,
as its styles are.

A path is looked up as it was sent, so that no dot segment, encoding or backslash leads to another file. The files are
read at the first request. Modules and styles have a hash of all files in their path, and are kept by browsers for good;
the page itself is not.
"""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Final

from websockets.datastructures import Headers

from acp_gateway.dialects.browser.joined_modules import join
from acp_gateway.server.http.start_page import PAGE, PAGE_HEADERS
from acp_gateway.transports.http.server import Request, Response

WEB: Final = Path(__file__).parents[2] / "web"
"""The folder of the files."""

FOLDER: Final = "/assets/"
"""Beginning of the paths that have the hash of all files behind it."""

MANIFEST: Final = "/manifest.webmanifest"
FAVICON: Final = "/favicon.ico"
WORKER: Final = "/worker.js"
"""The service worker, which serves the pages beside and below its own path alone."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self'; frame-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Scripts and styles are files of the gateway, connections go to it alone, no string becomes HTML or script, and images
of strangers are not loaded: each would tell them that it was read."""

_FIRST_MODULE: Final = "app/main.js"

NO_FILE: Final = "the page has no such file; after an upgrade of the gateway, reload it"

_HEADERS: Final = {**PAGE_HEADERS, "Content-Security-Policy": POLICY}

_ONCE: Final = "public, max-age=31536000, immutable"
_CHECKED: Final = "no-cache"

_MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "txt": "text/plain; charset=utf-8",
    "webmanifest": "application/manifest+json",
}
"""Files with other endings are not served."""

_COMPRESSED: Final = frozenset({"png"})
"""Endings of files that are compressed already."""

_PLACEHOLDER: Final = b"{assets}"
_TEMPLATES: Final = ("index.html", "manifest.webmanifest", "worker.js")

_ENOUGH: Final = 0.9
"""Maximum size of a compressed file, as a part of the file, for which browsers are given the trouble to unpack it."""

_CSS_IMPORT: Final = re.compile(rb'^@import "([^"]+)";$', re.MULTILINE)
_CSS_COMMENT: Final = re.compile(rb"^[ \t]*(?:/\*[^*]*\*/)?\n", re.MULTILINE)
"""Lines of comment, and empty ones."""

_QUALITY_0: Final = re.compile(r"[ \t]*q[ \t]*=[ \t]*0(\.0*)?[ \t]*", re.IGNORECASE)


@dataclass(frozen=True)
class Asset:
    """A file, as it is served."""

    name: str
    content: bytes
    caching: str
    """Value of `Cache-Control`."""

    @cached_property
    def etag(self) -> str:
        """The weak validator: both encodings are the same file."""
        return f'W/"{hashlib.sha256(self.content).hexdigest()[:20]}"'

    @cached_property
    def packed(self) -> bytes | None:
        """The content compressed by gzip; None if that is not worth it."""
        if _ending(self.name) in _COMPRESSED:
            return None
        packed = gzip.compress(self.content, mtime=0)
        return packed if len(packed) < _ENOUGH * len(self.content) else None

    def answer(self, headers: Headers) -> Response:
        """Return the response to a request with these headers."""
        fields = {**_HEADERS, "Cache-Control": self.caching}
        if self.caching != PAGE_HEADERS["Cache-Control"]:
            fields["ETag"] = self.etag
        if _ending(self.name) not in _COMPRESSED:
            fields["Vary"] = "Accept-Encoding"
        if "ETag" in fields and _has(headers, self.etag):
            return Response(HTTPStatus.NOT_MODIFIED, headers=fields)
        fields["Content-Type"] = _MEDIA_TYPES[_ending(self.name)]
        if _accepts_gzip(headers) and self.packed is not None:
            return Response(HTTPStatus.OK, self.packed, {**fields, "Content-Encoding": "gzip"})
        return Response(HTTPStatus.OK, self.content, fields)


def serve_page(request: Request) -> Response:
    """Return the file of a path. Raises `OSError` if the files of the program can't be read."""
    asset = load_assets(WEB).get(request.path)
    if asset is None:
        return Response.of_text(HTTPStatus.NOT_FOUND, NO_FILE, PAGE_HEADERS)
    return asset.answer(request.headers)


@cache
def load_assets(folder: Path) -> dict[str, Asset]:
    """Read the files of a folder, and return them by path. They stay the same until the process ends."""
    paths = (path for path in sorted(folder.rglob("*")) if _ending(path.name) in _MEDIA_TYPES)
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    if _FIRST_MODULE in contents:
        modules = {name: content.decode() for name, content in contents.items() if _ending(name) == "js"}
        contents |= {name: text.encode() for name, text in join(modules, _FIRST_MODULE).items()}
    for name in contents:
        if _ending(name) == "css":
            whole = _CSS_IMPORT.sub(lambda match: contents[match[1].decode()], contents[name])
            contents[name] = _CSS_COMMENT.sub(b"", whole)
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    base = f"{FOLDER}{digest.hexdigest()[:20]}"
    # Relative, because a proxy may have the page below a path.
    page, manifest, worker = (contents.pop(name).replace(_PLACEHOLDER, f".{base}".encode()) for name in _TEMPLATES)
    found = {f"{base}/{name}": Asset(name, content, _ONCE) for name, content in contents.items()}
    found[PAGE] = Asset(_TEMPLATES[0], page, PAGE_HEADERS["Cache-Control"])
    found[MANIFEST] = Asset(_TEMPLATES[1], manifest, _CHECKED)
    found[WORKER] = Asset(_TEMPLATES[2], worker, _CHECKED)
    # Asked for by programs that do not look into the page.
    icon = "icons/icon-192.png"
    found[FAVICON] = Asset(icon, contents[icon], _CHECKED)
    return found


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def _accepts_gzip(headers: Headers) -> bool:
    for coding in ",".join(headers.get_all("Accept-Encoding")).split(","):
        name, _, parameters = coding.partition(";")
        if name.strip(" \t").lower() == "gzip":
            return not _QUALITY_0.fullmatch(parameters)
    return False


def _has(headers: Headers, etag: str) -> bool:
    """Return whether a request names an entity tag in `If-None-Match`, compared weakly (RFC 9110, 13.1.2)."""
    tags = [tag.strip(" \t") for tag in ",".join(headers.get_all("If-None-Match")).split(",")]
    return tags == ["*"] or etag.removeprefix("W/") in (tag.removeprefix("W/") for tag in tags)
