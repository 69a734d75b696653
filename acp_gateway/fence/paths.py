"""Compares paths, and follows their symbolic links."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

MAX_STEPS: Final = 1000
"""Most steps on the way to a path, those of its links included; the kernel follows 40 links."""


def within(path: str, place: str) -> bool:
    """Return whether a path is a place, or below it."""
    return path == place or path.startswith(place.rstrip("/") + "/")


def within_any(path: str, places: Iterable[str]) -> bool:
    """Return whether a path is one of some places, or below one."""
    return any(within(path, place) for place in places)


def depth_in(path: str, places: Iterable[str]) -> int:
    """Return the length of the innermost place that a path is in; 0 for none."""
    return max((len(place) for place in places if within(path, place)), default=0)


def existing(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist, without links, each once, in their order."""
    return list(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.lexists(path)))


def outermost(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths that are not below another one of them."""
    last = None
    for path in sorted(set(paths), key=lambda path: path.rstrip("/") + "/"):
        if last is None or not within(path, last):
            yield path
            last = path


def trail(path: str) -> tuple[list[str], str | None]:
    """Return the symbolic links on the way to a path, and its end without links; None for links in a circle."""
    links: list[str] = []
    at, rest = "/", path.split("/")
    for _ in range(MAX_STEPS):
        if not rest:
            return links, at
        name, *rest = rest
        if name == "..":
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, name) if name not in ("", ".") else at
        if not os.path.islink(step):
            at = step
            continue
        links.append(step)
        target = os.readlink(step)
        at, rest = "/" if target.startswith("/") else at, [*target.split("/"), *rest]
    return links, None


def follow(path: str, places: Sequence[str]) -> tuple[str, str | None]:
    """Return a path without symbolic links, and the first link on the way that is in one of the places, or None.

    Without such a link, the path is right even if links in these places change later.
    """
    links, end = trail(path)
    link = next((link for link in links if any(within(link, place) and link != place for place in places)), None)
    return (path, link or path) if end is None else (end, link)
