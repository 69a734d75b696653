"""Signs browsers in by one-use codes, and keeps them signed in by cookies, in `state_dir/browsers.json`.

The file has the SHA-256 of each code and cookie, never the value. A browser is bound to the secret of the token that it
was made from: once that is refused, because the token was revoked, has expired or was rotated, so is the browser. One
that was made on the gateway's machine without a token is the gateway's own user's.

As with tokens, the file is the authority, and any number of processes may share it.
"""

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from acp_gateway.errors import ConfigError, Unauthorized
from acp_gateway.security import token_format
from acp_gateway.security.private_file import PrivateFile
from acp_gateway.security.token_store import Timestamp, Token, TokenStore

_log = logging.getLogger(__name__)

CODE_LIFETIME: Final = 600.0
"""Seconds for which a code is valid: long enough to fetch the phone from another room, too short to be found later."""

MAX_CODES: Final = 16
"""Unused codes of one token; a further one makes the oldest worthless."""

USE_INTERVAL: Final = 3600.0
"""Minimum seconds between two writes of a browser's last use."""

LOCK_ATTEMPTS: Final = 50
"""Attempts to take the lock of the file. The gateway's event loop waits for it: a writer that was stopped in the
middle must not stop it as well."""

DAY: Final = 86400.0

NO_CODE: Final = (
    "this code is not valid: it can be used once, within 10 minutes; `acp-gateway open` on the gateway's machine makes "
    "another"
)
"""Refusal of every code: one that never existed, was used, or has expired."""

NO_BROWSER: Final = "this browser is not signed in, or not any more; sign in with a link from `acp-gateway open`"
"""Refusal of every cookie."""

_VERSION: Final = 1

BrowserRole = Literal["controller", "observer"]
"""The most that a browser may do; a token may allow less."""

Expiry = Literal["expired", "unused"]
"""The reason why a browser has to sign in again: it did so too long ago, or was not used for too long."""

_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sha256: _Digest
    identity: str
    token_id: str | None
    """The id of the token that it is bound to; None for the gateway's own user."""
    token_sha256: _Digest | None
    role: BrowserRole
    """The most that it allows, besides what the token allows."""
    session: str | None
    """The only session of the identity that it opens; None for all that the token opens."""
    label: str
    created: Timestamp
    expires: Timestamp


class Code(_Record, frozen=True):
    """An unused code."""

    def __repr__(self) -> str:
        return f"Code(token={self.token_id!r}, role={self.role!r}, session={self.session!r}, label={self.label!r})"


class Browser(_Record, frozen=True):
    """A browser that is signed in."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]

    def __repr__(self) -> str:
        return f"Browser(id={self.id!r}, token={self.token_id!r}, role={self.role!r}, session={self.session!r})"


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1] = _VERSION
    codes: tuple[Code, ...] = ()
    browsers: tuple[Browser, ...] = ()
    used: dict[str, Timestamp] = {}
    """Time of each browser's last use, to the hour, by its id."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """A browser that has just signed in."""

    browser: Browser
    cookie: str
    """Not stored."""
    replaced: tuple[Browser, ...]
    """Browsers that were ended to make room."""

    def __repr__(self) -> str:
        return f"SignIn({self.browser!r})"


class BrowserStore:
    """The browsers of one gateway. Any number of these, in any number of processes, may share one `state_dir`.

    Args:
        state_dir: the folder of the file.
        tokens: the tokens that browsers are bound to.
        days: days after which a browser has to sign in again.
        idle_days: days without use after which it has to.
        most: maximum browsers of one token.
        now: returns the time, in seconds since 1970.
    """

    def __init__(
        self,
        state_dir: Path,
        tokens: TokenStore,
        *,
        days: int = 30,
        idle_days: int = 7,
        most: int = 16,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tokens
        self._lifetime = days * DAY
        self._idle = idle_days * DAY
        self._most = most
        self._now = now
        what = "list of browsers", "sign in again"
        self._file = PrivateFile[_Content](state_dir / "browsers.json", _VERSION, _decode, _Content(), what)
        # The reason why no browser is accepted, as last logged; None while the file is good.
        self._complaint: str | None = None
        # Time of each browser's last use, as last written or tried to.
        self._noted: dict[str, float] = {}

    @property
    def lifetime(self) -> float:
        """Seconds for which a browser stays signed in at most."""
        return self._lifetime

    # Codes

    def make_code(
        self,
        token: Token | None,
        identity: str,
        *,
        role: BrowserRole = "controller",
        session: str | None = None,
        label: str,
    ) -> tuple[Code, str]:
        """Add a code, bound to a token or to the gateway's own user; return its entry and its text.

        Raises ConfigError if the file cannot be read or written.
        """
        secret = token_format.mint("code")
        now = self._now()
        code = Code(
            sha256=token_format.digest(secret),
            identity=identity,
            token_id=None if token is None else token.id,
            token_sha256=None if token is None else token.sha256,
            role=role,
            session=session,
            label=label,
            created=_timestamp(now),
            expires=_timestamp(now + CODE_LIFETIME),
        )
        with self._file.writing(LOCK_ATTEMPTS):
            content = self._content()
            others = [other for other in content.codes if _owner(other) == _owner(code)]
            dropped = others[: max(0, len(others) - MAX_CODES + 1)]
            kept = [other for other in content.codes if other not in dropped]
            self._write(content, codes=[*kept, code])
        return code, secret

    def sign_in(self, secret: str, replacing: Browser | None = None) -> SignIn:
        """Exchange a code for a browser, once; `replacing` is the one that the same browser was before.

        Raises Unauthorized, with one text for every reason, and ConfigError if the file cannot be written.
        """
        presented = token_format.digest(secret) if token_format.is_well_formed(secret, "code") else ""
        # A wrong code costs no lock and no write.
        if self._valid_code(presented) is None:
            raise Unauthorized(NO_CODE)
        with self._file.writing(LOCK_ATTEMPTS):
            code = self._valid_code(presented)
            if code is None:
                raise Unauthorized(NO_CODE)
            content = self._content()
            cookie = token_format.mint("browser")
            now = self._now()
            members = msgspec.structs.asdict(code) | {
                "sha256": token_format.digest(cookie),
                "created": _timestamp(now),
                "expires": _timestamp(now + self._lifetime),
            }
            browser = Browser(**members, id=self._draw(content))
            present = [other for other in content.browsers if self._is_live(other, content)]
            replaced = [other for other in present if other == replacing]
            rivals = [other for other in present if _owner(other) == _owner(browser) and other != replacing]
            rivals.sort(key=lambda other: content.used.get(other.id, other.created))
            replaced += rivals[: max(0, len(rivals) - self._most + 1)]
            self._write(
                content,
                codes=[other for other in content.codes if other != code],
                browsers=[*(other for other in content.browsers if other not in replaced), browser],
                used=content.used | {browser.id: browser.created},
            )
        return SignIn(browser, cookie, tuple(replaced))

    # Browsers

    def browsers(self) -> list[tuple[Browser, str]]:
        """Return the browsers that are signed in, in the order in which they did, and the time of their last use.

        Raises ConfigError if the file cannot be read or trusted.
        """
        content = self._content()
        current = (browser for browser in content.browsers if self.is_current(browser))
        return [(browser, content.used.get(browser.id, browser.created)) for browser in current]

    def identify(self, cookie: str) -> Browser | None:
        """Return the browser with this cookie, if it is signed in."""
        presented = token_format.digest(cookie) if token_format.is_well_formed(cookie, "browser") else ""
        found = None
        for browser in self._trusted().browsers:
            # No early exit: the time taken must not tell which entries exist.
            if hmac.compare_digest(browser.sha256, presented):
                found = browser
        return found if found is not None and self.is_current(found) else None

    def find(self, browser_id: str) -> tuple[Browser, Token | None] | None:
        """Return the browser of an id and the entry of its token, if it is signed in."""
        for browser in self._trusted().browsers:
            if browser.id == browser_id and self.is_current(browser):
                return browser, self._token_of(browser)
        return None

    def is_known(self, browser_id: str) -> bool:
        """Return whether there is a browser of this id, though its token may not be valid at present.

        Raises ConfigError if the file cannot be read or trusted.
        """
        return any(browser.id == browser_id for browser in self._content().browsers)

    def authenticate(self, cookie: str) -> tuple[Browser, Token | None]:
        """Return the browser with this cookie, and the entry of its token; notes the use.

        Raises Unauthorized, with one text for every reason.
        """
        browser = self.identify(cookie)
        if browser is None:
            raise Unauthorized(NO_BROWSER)
        self.note_use(browser)
        return browser, self._token_of(browser)

    def is_current(self, browser: Browser) -> bool:
        """Return whether a browser is still signed in, and its token valid."""
        content = self._trusted()
        is_known = browser in content.browsers and self._is_live(browser, content)
        return is_known and (browser.token_id is None or self._token_of(browser) is not None)

    def check(self) -> None:
        """Raise ConfigError if the file cannot be read or trusted, so that no browser is accepted."""
        self._content()

    def take_expired(self) -> list[tuple[Browser, Expiry]]:
        """Remove the browsers that were signed in or unused for too long; return each once, with the reason.

        Of several processes that share the file, one gets it. Raises ConfigError if the file cannot be written.
        """
        content = self._trusted()
        if all(self._is_live(browser, content) for browser in content.browsers):
            return []
        with self._file.writing(LOCK_ATTEMPTS):
            content = self._content()
            expired = [browser for browser in content.browsers if not self._is_live(browser, content)]
            self._write(content, browsers=[browser for browser in content.browsers if browser not in expired])
        return [(browser, "expired" if self._has_expired(browser) else "unused") for browser in expired]

    def note_use(self, browser: Browser) -> None:
        """Remember that a browser is in use, now; it is written once in `USE_INTERVAL`."""
        now = self._now()
        if now - self._noted.get(browser.id, 0.0) < USE_INTERVAL:
            return
        self._noted = {known: at for known, at in self._noted.items() if now - at < USE_INTERVAL} | {browser.id: now}
        try:
            written = self._content().used.get(browser.id, browser.created)
            if _timestamp(now - USE_INTERVAL) < written:
                return
            with self._file.writing(LOCK_ATTEMPTS):
                content = self._content()
                if browser in content.browsers:
                    self._write(content, used=content.used | {browser.id: _timestamp(now)})
        except ConfigError as error:
            _log.warning("the use of browser %s is not noted: %s", browser.id, error)

    def end(self, browser_id: str) -> Browser | None:
        """Sign a browser out; return its former entry, or None if there is none of that id.

        Raises ConfigError if the file cannot be read or written.
        """
        ended = self._end(lambda record: isinstance(record, Browser) and record.id == browser_id)
        return ended[0] if ended else None

    def end_all_of(self, token_id: str) -> list[Browser]:
        """Sign out the browsers that are bound to a token, and drop its codes; return their former entries.

        Raises ConfigError if the file cannot be read or written.
        """
        return self._end(lambda record: record.token_id == token_id)

    def _end(self, chosen: Callable[[_Record], bool]) -> list[Browser]:
        content = self._content()
        if not any(chosen(record) for record in (*content.browsers, *content.codes)):
            return []
        with self._file.writing(LOCK_ATTEMPTS):
            content = self._content()
            ended = [browser for browser in content.browsers if chosen(browser)]
            browsers = [browser for browser in content.browsers if not chosen(browser)]
            self._write(content, browsers=browsers, codes=[code for code in content.codes if not chosen(code)])
        return ended

    # The file

    def _content(self) -> _Content:
        return self._file.content()

    def _trusted(self) -> _Content:
        try:
            content = self._content()
        except ConfigError as error:
            if str(error) != self._complaint:
                _log.error("no browser is accepted: %s", error)
                self._complaint = str(error)
            return _Content()
        self._complaint = None
        return content

    def _write(
        self,
        content: _Content,
        *,
        codes: Sequence[Code] | None = None,
        browsers: Sequence[Browser] | None = None,
        used: dict[str, str] | None = None,
    ) -> None:
        """Replace the file, without expired codes. Expired browsers stay until `take_expired` has reported them."""
        browsers = content.browsers if browsers is None else browsers
        codes = [code for code in (content.codes if codes is None else codes) if not self._has_expired(code)]
        ids = {browser.id for browser in browsers}
        used = {known: at for known, at in (content.used if used is None else used).items() if known in ids}
        self._file.write(_Content(codes=tuple(codes), browsers=tuple(browsers), used=used))

    def _valid_code(self, presented: str) -> Code | None:
        found = None
        for code in self._trusted().codes:
            # As above: no early exit.
            if hmac.compare_digest(code.sha256, presented):
                found = code
        if found is None or self._has_expired(found):
            return None
        return found if found.token_id is None or self._token_of(found) is not None else None

    def _token_of(self, record: _Record) -> Token | None:
        if record.token_id is None or record.token_sha256 is None:
            return None
        return self._tokens.find_current(record.token_id, record.token_sha256)

    def _is_live(self, browser: Browser, content: _Content) -> bool:
        used = content.used.get(browser.id, browser.created)
        return not self._has_expired(browser) and used > _timestamp(self._now() - self._idle)

    def _has_expired(self, record: _Record) -> bool:
        return record.expires <= _timestamp(self._now())

    def _draw(self, content: _Content) -> str:
        """Return an id that no browser and no token has: `token revoke` takes either."""
        taken = {browser.id for browser in content.browsers} | {token.id for token in self._tokens.tokens()}
        while (new := secrets.token_hex(4)) in taken:
            pass
        return new


def _owner(record: _Record) -> tuple[str | None, str]:
    """Return what a number of browsers is counted by."""
    return record.token_id, record.identity


def _decode(content: bytes) -> _Content:
    return msgspec.json.decode(content, type=_Content)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
