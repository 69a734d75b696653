"""Downloads registries and agents: from https alone, bounded in bytes and time."""

import hashlib
import http.client
import ipaddress
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from acp_gateway.errors import ConfigError, Unreachable

DOCUMENT_SIZE: Final = 16 * 1024 * 1024
"""Maximum bytes of a registry or an entry of one. The public one has some hundred entries of one kilobyte."""

SILENCE: Final = 30.0
"""Seconds without a byte after which a download is given up."""

LONGEST: Final = 1800.0
"""Seconds after which a download is given up: half a gigabyte on a slow line."""

_PIECE: Final = 256 * 1024
_MOST_REDIRECTS: Final = 5

Report = Callable[[int, int | None], None]
"""Called with the bytes that have come and those of the whole, if that is known."""


def is_allowed(url: str) -> bool:
    """Return True for https, and for http to a loopback address, where there is no network to listen in."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "https":
            return bool(parts.hostname)
        return parts.scheme == "http" and _is_loopback(parts.hostname or "")
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to allowed addresses, and never from https to http."""

    max_redirections = _MOST_REDIRECTS

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not is_allowed(newurl) or (req.full_url.startswith("https:") and not newurl.startswith("https:")):
            raise ConfigError(f"{req.full_url} leads to {newurl[:200]!r}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _open(url: str) -> Iterator[Any]:
    if not is_allowed(url):
        raise ConfigError(f"{url[:200]!r} is not an https URL")
    # No file: and ftp: handlers.
    opener = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ]
    for handler in handlers:
        opener.add_handler(handler)
    request = urllib.request.Request(url, headers={"User-Agent": "acp-gateway"})  # noqa: S310 - checked above.
    with _errors_of(url):
        response = opener.open(request, timeout=SILENCE)
    with response:
        yield response


@contextmanager
def _errors_of(url: str) -> Iterator[None]:
    """Raise `Unreachable` in place of errors of the connection."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise Unreachable(f"{url}: the server answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = error.reason.strerror if isinstance(error.reason, OSError) else None
        raise Unreachable(f"{url}: {reason or error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url}: {str(error) or type(error).__name__}") from None


def read_document(source: str) -> bytes:
    """Return the content of a file or of a URL. Raises `ConfigError` and `Unreachable`."""
    if "://" in source:
        with _open(source) as response, _errors_of(source):
            content: bytes = response.read(DOCUMENT_SIZE + 1)
    else:
        try:
            with open(source, "rb") as file:
                content = file.read(DOCUMENT_SIZE + 1)
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=source) from None
    if len(content) > DOCUMENT_SIZE:
        raise ConfigError(f"has more than {DOCUMENT_SIZE} bytes, so it is not a registry", file=source)
    return content


def download(url: str, path: Path, most: int, report: Report) -> str:
    """Write what is at a URL to a new file, readable by its owner alone, and return its SHA-256 in hexadecimal.

    Raises `ConfigError` for more than `most` bytes or another scheme than https, `Unreachable`, and `OSError` for the
    file. What has been written until then stays, for the caller to remove.
    """
    digest = hashlib.sha256()
    come = 0
    end = time.monotonic() + LONGEST
    with _open(url) as response, open(path, "xb") as file:
        path.chmod(0o600)
        length = response.headers.get("Content-Length", "")
        whole = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
        if whole is not None and whole > most:
            raise _too_large(url, most)
        while piece := _read(response, url):
            come += len(piece)
            if come > most:
                raise _too_large(url, most)
            if time.monotonic() > end:
                raise Unreachable(f"{url}: not finished after {LONGEST:.0f} s")
            digest.update(piece)
            file.write(piece)
            report(come, whole)
    if whole is not None and come != whole:
        raise Unreachable(f"{url}: the connection was lost after {come} of {whole} bytes")
    return digest.hexdigest()


def _read(response: Any, url: str) -> bytes:
    with _errors_of(url):
        piece: bytes = response.read(_PIECE)
    return piece


def _too_large(url: str, most: int) -> ConfigError:
    return ConfigError(f"{url} has more than {most} bytes: --max-download allows more")
