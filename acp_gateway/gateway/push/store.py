"""Keeps the subscriptions of browsers, and the key that their messages are signed with, in `state_dir/push.json`.

Endpoints are secrets: with one, and the key, anyone can write to that browser.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from acp_gateway.core.sessions.session import SESSION_ID_SIZE
from acp_gateway.gateway.push.deciding import ENDPOINT_SIZE, MAX_SHOWN, TEXT_LENGTH, Done, Quiet
from acp_gateway.security.browser_sessions import LOCK_ATTEMPTS
from acp_gateway.security.private_file import PrivateFile

_VERSION: Final = 1
_KEY_SIZE: Final = 100

MAX_NODES: Final = 256
"""Maximum nodes of one browser whose times are stored, as many as a cluster has; the earliest is forgotten."""

_Key = Annotated[str, msgspec.Meta(max_length=_KEY_SIZE)]
_Times = Annotated[dict[str, Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=MAX_NODES)]
_Tags = Annotated[list[Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH)]], msgspec.Meta(max_length=MAX_SHOWN)]


class Subscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The subscription of one browser at a push service."""

    endpoint: Annotated[str, msgspec.Meta(max_length=ENDPOINT_SIZE)]
    p256dh: _Key
    """The public key of the browser."""
    auth: _Key
    """The secret that it shares with its senders."""
    quiet: Quiet | None = None
    session: Annotated[str, msgspec.Meta(max_length=SESSION_ID_SIZE)] | None = None
    """The one session whose questions are told; None for all."""
    done: Done = Done()
    """The turns whose end is told."""

    def __repr__(self) -> str:
        return "Subscription(…)"


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1] = _VERSION
    key: _Key | None = None
    """The private key; None before the first use."""
    subscriptions: dict[str, Subscription] = {}
    """By the id of the browser: it has one."""
    shown: dict[str, _Tags] = {}
    """Tags of the notifications that it may show, by the id of the browser."""
    heard: dict[str, _Times] = {}
    """Times by the clocks of nodes until which it was told of ends of turns there, by the id of the browser."""


class PushStore:
    """The subscriptions of one gateway.

    Args:
        state_dir: the folder of the file.

    All that reads or writes it raises `ConfigError` if it cannot be read or trusted.
    """

    def __init__(self, state_dir: Path) -> None:
        what = "list of push subscriptions", "turn notifications on again"
        self._file = PrivateFile[_Content](state_dir / "push.json", _VERSION, _decode, _Content(), what)

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """The subscriptions by browser."""
        return self._file.content().subscriptions

    def shown(self, browser: str) -> list[str]:
        """Return the tags of the notifications that a browser may show."""
        return self._file.content().shown.get(browser, [])

    def set_shown(self, browser: str, tags: Iterable[str]) -> None:
        """Store the tags of the notifications that a browser may show."""
        with self._file.writing(LOCK_ATTEMPTS):
            content = self._file.content()
            shown = content.shown | {browser: [*tags]}
            self._file.write(_with(msgspec.structs.replace(content, shown=shown), content.subscriptions))

    def heard(self, browser: str, node: str) -> int | None:
        """Return the time until which a browser was told of ends of turns at a node; None for a new browser or node."""
        return self._file.content().heard.get(browser, {}).get(node)

    def set_heard(self, browsers: Iterable[str], node: str, time: int) -> None:
        """Store the time until which browsers were told of ends of turns at a node, in milliseconds by its clock."""
        with self._file.writing(LOCK_ATTEMPTS):
            content = self._file.content()
            heard = dict(content.heard)
            for browser in content.subscriptions.keys() & set(browsers):
                heard[browser] = _latest(heard.get(browser, {}), node, time)
            self._file.write(msgspec.structs.replace(content, heard=heard))

    def key(self, make: Callable[[], str]) -> str:
        """Return the private key, which `make` makes at the first use."""
        found = self._file.content().key
        if found is None:
            with self._file.writing(LOCK_ATTEMPTS):
                content = self._file.content()
                found = content.key or make()
                self._file.write(msgspec.structs.replace(content, key=found))
        return found

    def set(self, browser: str, subscription: Subscription, keeps: Callable[[str], bool]) -> bool:
        """Store the subscription of a browser; return False if it was there.

        Those of the same endpoint, and of browsers that `keeps` returns False for, are removed.
        """
        if self.subscriptions.get(browser) == subscription:
            return False
        with self._file.writing(LOCK_ATTEMPTS):
            content = self._file.content()
            others = {
                name: other
                for name, other in content.subscriptions.items()
                if name != browser and other.endpoint != subscription.endpoint and keeps(name)
            }
            self._file.write(_with(content, others | {browser: subscription}))
        return True

    def remove(self, browser: str) -> bool:
        """Remove the subscription of a browser; return False if there is none."""
        if browser not in self.subscriptions:
            return False
        with self._file.writing(LOCK_ATTEMPTS):
            content = self._file.content()
            others = {name: other for name, other in content.subscriptions.items() if name != browser}
            self._file.write(_with(content, others))
        return True


def _with(content: _Content, subscriptions: dict[str, Subscription]) -> _Content:
    """Return the content with these subscriptions, and what is known of their browsers alone."""
    shown = {name: tags for name, tags in content.shown.items() if name in subscriptions}
    heard = {name: times for name, times in content.heard.items() if name in subscriptions}
    return msgspec.structs.replace(content, subscriptions=subscriptions, shown=shown, heard=heard)


def _latest(times: Mapping[str, int], node: str, time: int) -> dict[str, int]:
    """Return the times of nodes with that of one which has just told something, the last `MAX_NODES`."""
    found = {name: known for name, known in times.items() if name != node} | {node: time}
    return dict([*found.items()][-MAX_NODES:])


def zone_of(name: str) -> tzinfo | None:
    """Return the time zone of a name, as the system or the package tzdata knows it; None if neither does."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        return None


def _decode(content: bytes) -> _Content:
    return msgspec.json.decode(content, type=_Content)
