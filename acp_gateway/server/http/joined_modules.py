"""Joins the modules of the page into one file: a browser far away asks once instead of fifty times.

The sources stay as they are, and no module is known by name. Each becomes a function that is called once, after those
that it imports: names of one module do not meet those of another one.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Final

_IMPORT: Final = re.compile(r"""^import\s+(?:([^"';]+?)\s+from\s+)?["']([^"']+)["'];?[ \t]*$""", re.MULTILINE)
_DECLARATION: Final = re.compile(
    r"^export (default )?(?=(?:(?:async )?function\*?|class|const) ([\w$]+)\b)", re.MULTILINE
)
_LIST: Final = re.compile(r"(?:(?<=[;}])|^)export\s*\{([^{}]*)\};?[ \t]*$(?!\s*from)", re.MULTILINE)
_COMMENT: Final = re.compile(
    r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n|/\*\* @(?:(?!\*/)[^\n])*\*/ ?", re.MULTILINE | re.DOTALL
)
_UNKNOWN: Final = re.compile(r"^(?:(?:import|export)\b(?!\()|await\b)[^\n]*|\bimport\([^\n]*", re.MULTILINE)
_OWN_ADDRESS: Final = "import.meta.url"
_WHOLE: Final = "* as "


def join(sources: Mapping[str, str], first: str) -> str:
    """Return a module that does what a module and all that it imports do, for a place in the folder of all paths.

    `sources` has the modules by path. Lines of comment are left out. Raises `ValueError` for what it can't join: a
    module or a name that is not there, circles of imports, names that may get another value later, `import()`, `await`
    outside of functions.
    """
    joined = _Joined(sources)
    joined.add(first, ())
    return "".join(joined.functions)


class _Joined:
    """The modules so far."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._exported: dict[str, list[str]] = {}
        """The exports of each module, as members of an object literal."""
        self.functions: list[str] = []

    def add(self, path: str, importers: tuple[str, ...]) -> None:
        """Add a module, after all that it imports."""
        if path in self._exported:
            return
        if path in importers:
            raise ValueError(f"{importers[-1]} imports {path}, which imports it")
        if path not in self._sources:
            raise ValueError(f"{importers[-1] if importers else 'the page'} needs {path}, which is not there")
        code = _COMMENT.sub("", self._sources[path])
        for _, name in _IMPORT.findall(code):
            self.add(_target(path, name), (*importers, path))
        self.functions.append(self._as_function(path, code))

    def _as_function(self, path: str, code: str) -> str:
        exported = self._exported[path] = []

        def declared(match: re.Match[str]) -> str:
            exported.append(f"default: {match[2]}" if match[1] else match[2])
            return ""

        def listed(match: re.Match[str]) -> str:
            exported.extend(": ".join(reversed(pair)) for pair in _pairs(match[1]))
            return ""

        def imported(match: re.Match[str]) -> str:
            return self._taken(path, match[1], _target(path, match[2])) if match[1] else ""

        code = _LIST.sub(listed, _DECLARATION.sub(declared, _IMPORT.sub(imported, code)))
        unknown = _UNKNOWN.search(code)
        if unknown is not None:
            raise ValueError(f"{path} has what can't be joined: {unknown[0][:80]}")
        code = code.replace(_OWN_ADDRESS, f'new URL("./{path}", {_OWN_ADDRESS}).href').strip()
        return f"// {path}\nconst {_variable(path)} = (() => {{\n{code}\nreturn {{ {', '.join(exported)} }};\n}})();\n"

    def _taken(self, path: str, names: str, target: str) -> str:
        """Return the declaration that takes the names of an import from the object of a module."""
        if names.startswith(_WHOLE):
            return f"const {names.removeprefix(_WHOLE)} = {_variable(target)};"
        default, _, rest = names.partition("{")
        pairs = [["default", default.strip(", ")]] if default.strip(", ") else []
        pairs += _pairs(rest.rstrip("} "))
        known = {member.partition(":")[0] for member in self._exported[target]}
        for pair in pairs:
            if pair[0] not in known:
                raise ValueError(f"{path} needs {pair[0]} of {target}, which does not export it")
        return f"const {{ {', '.join(map(': '.join, pairs))} }} = {_variable(target)};"


def _pairs(names: str) -> list[list[str]]:
    """Return the names of a list such as `a, b as c`: those of `a as b` are two."""
    return [part.split(" as ") for part in (" ".join(name.split()) for name in names.split(",")) if part]


def _target(path: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))


def _variable(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path)
