"""Reads the places of `acp-gateway cp`, and chooses the session that one means. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from acp_gateway.errors import UsageError
from acp_gateway.printable import printable

STDIO: Final = "-"
"""Stands for stdin as a source, and for stdout as a target."""

PREFIX: Final = 4
"""Minimum characters by which a session is named, if they are not its whole id."""

_SHOWN: Final = 8
"""Maximum sessions that an error lists."""

_LOCAL: Final = ("/", "./", "../", "~")
"""Beginnings of paths of this machine, also of those with a colon."""

_PORT: Final = re.compile(r"\d+(/|$)")

_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")


class Remote(NamedTuple):
    """A file or a folder at a gateway."""

    target: str | None
    """The gateway, as for `connect`; None for the one of `sessions` without a target."""
    session: str | None
    """The id of a session, or its beginning; None for the one that is evident."""
    path: str
    """As the gateway has it; from the session's folder on unless it begins with a slash."""

    @property
    def names_folder(self) -> bool:
        """True if the path can only be that of a folder."""
        return self.path == "" or self.path.endswith(("/", "/.", "/..")) or self.path in (".", "..")


def read_place(text: str) -> Remote | None:
    """Read a place; None for one of this machine. Raises `UsageError`.

    `box:PATH` and `box/SESSION:PATH` are at a host of hosts.toml, `:PATH` at the gateway of this machine, `URL:PATH` at
    any one.
    """
    if ":" not in text or text.startswith(_LOCAL) or _DRIVE.match(text):
        return None
    if "://" in text:
        target, _, path = text.rpartition(":")
        if "://" not in target or _PORT.match(path):
            raise UsageError(f"{printable(text)} has no path: write the address, a colon, and the path there")
        return Remote(target, None, path)
    place, _, path = text.partition(":")
    target, _, session = place.partition("/")
    return Remote(target or None, session or None, path)


def choose_session(sessions: Sequence[Mapping[str, Any]], wanted: str | None, place: Remote) -> str:
    """Return the id of the session that a place means. Raises `UsageError` with those that it may mean.

    Args:
        sessions: as `list_sessions` returns them, in any order.
        wanted: the id or its beginning; None for the only live one, for one whose folder has the path, or the only one.
        place: the place.
    """
    newest = sorted(sessions, key=lambda one: one.get("updatedAt") or "", reverse=True)
    if wanted is not None:
        found = [one for one in newest if one["sessionId"] == wanted]
        found = found or [one for one in newest if len(wanted) >= PREFIX and one["sessionId"].startswith(wanted)]
        if not found:
            raise UsageError(f"there is no session {printable(wanted)}{_listed(newest, place)}")
        if len({one["sessionId"] for one in found}) == 1:
            return str(found[0]["sessionId"])
        raise UsageError(f"several sessions begin with {printable(wanted)}{_listed(found, place)}")
    if not newest:
        raise UsageError("there is no session yet, and files are those of sessions: start one by `connect` or `chat`")
    inside = [one for one in newest if place.path.startswith("/") and _is_below(place.path, one.get("cwd"))]
    if inside:
        return str(inside[0]["sessionId"])
    candidates = [one for one in newest if one.get("live") is not False] or newest
    if len(candidates) == 1:
        return str(candidates[0]["sessionId"])
    raise UsageError(f"which session?{_listed(candidates, place)}")


def _is_below(path: str, folder: Any) -> bool:
    return isinstance(folder, str) and path.startswith(folder.rstrip("/") + "/")


def _listed(sessions: Sequence[Mapping[str, Any]], place: Remote) -> str:
    """Return the end of an error that lists sessions as they are written."""
    target = place.target or ""
    lines = []
    for one in sessions[:_SHOWN]:
        about = " ".join(printable(str(one[name]), size=60) for name in ("title", "cwd") if one.get(name))
        name = "--session " if "://" in target else f"{target}/"
        end = "" if "://" in target else f":{printable(place.path)}"
        lines.append(f"{name}{printable(one['sessionId'], size=1024)}{end}  ({about})")
    more = f" … and {len(sessions) - _SHOWN} more" if len(sessions) > _SHOWN else ""
    return f"; one of: {'; '.join(lines)}{more}" if lines else ""
