"""Directories that have another name on the other machine, and which of them a path or a `file:` URI is in.

One look for each size of directory finds it, however many there are, and of a path only the beginning is taken apart:
a peer decides how long it is.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

# What may stand unescaped in the path of a URI (RFC 3986, pchar), beside letters, digits and `-._~`.
_SAFE_IN_URI: Final = "!$&'()*+,;=:@"

# Characters of a URI for one of a directory's name, at most: four bytes, each with a percent sign and two digits.
_SPELLED: Final = 12


class Root(NamedTuple):
    """A mapped directory on one of the machines."""

    components: list[str]
    """`/srv/proj`: "", srv, proj. `C:\\src`: C:, src. UNC: "", "", server, share. The root itself: ""."""
    windows: bool

    @classmethod
    def parse(cls, directory: str) -> "Root":
        if directory.startswith("/"):
            return cls(re.sub("/+", "/", directory).removesuffix("/").split("/"), windows=False)
        return cls(directory.rstrip("\\/").replace("\\", "/").split("/"), windows=True)

    def fold(self, name: str) -> str:
        """Return a name as this machine compares it."""
        return name.lower() if self.windows else name

    def path(self, tail: str | None = None) -> str:
        """The path of what is below this directory, by its components with `/` between them; None for itself."""
        separator = "\\" if self.windows else "/"
        if tail is None:
            return separator.join(self.components) if len(self.components) > 1 else self.components[0] + separator
        return separator.join((*self.components, tail.replace("/", separator)))

    def uri(self, head: str, tail: str | None) -> str:
        """The URI of what is below this directory: `head` is the scheme and an authority that means this machine."""
        encoded = [_quoted(name) for name in self.components] + ([] if tail is None else [tail])
        path = "/".join(encoded) if len(encoded) > 1 else encoded[0] + "/"
        if self.windows and path.startswith("//"):
            return f"file:{path}"
        return head + path if path.startswith("/") else f"{head}/{path}"


class DirectoryMap:
    """Directories of one kind of machine, each with the one that replaces it. The largest that matches decides."""

    def __init__(self, roots: Iterable[tuple[Root, Root]]) -> None:
        self._by_size: dict[int, dict[str, Root]] = {}
        self._longest_name = 0
        self._fold: Callable[[str], str] = str
        for source, target in sorted(roots, key=lambda pair: len(pair[0].components), reverse=True):
            self._fold = source.fold
            names = list(map(self._fold, source.components))
            self._longest_name = max(self._longest_name, *map(len, names))
            # Of equal directories the first counts.
            self._by_size.setdefault(len(names), {}).setdefault("/".join(names), target)
        self._most = max(self._by_size, default=0)

    def of_path(self, path: str) -> tuple[Root, str | None] | None:
        """Return the directory that replaces the one that a path with `/` is in, and what is below it; else None.

        What is below it is None for the directory itself.
        """
        return self._find(path, self._fold)

    def of_uri(self, path: str) -> tuple[Root, str | None] | None:
        """Return the same for the path of a URI; what is below the directory stays encoded."""
        return self._find(path, lambda name: self._fold(unquote(name)))

    def _find(self, path: str, fold: Callable[[str], str]) -> tuple[Root, str | None] | None:
        if not path or not self._by_size:
            return None
        # The last part is what is below the largest directory.
        parts = path.split("/", self._most)
        longest = _SPELLED * self._longest_name + 1
        names = [fold(name[:longest]) for name in parts[: self._most]]
        for size, targets in self._by_size.items():
            target = targets.get("/".join(names[:size])) if len(names) >= size else None
            if target is not None:
                return target, "/".join(parts[size:]) if len(parts) > size else None
        return None


@cache
def _quoted(name: str) -> str:
    """Return a component of a mapped directory as it is written in a URI."""
    return quote(name, safe=_SAFE_IN_URI, errors="surrogatepass")
