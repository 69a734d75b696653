"""Joins the modules of the page into one file: a browser far away asks once instead of fifty times.

The sources stay as they are, and no module is known by name. Each becomes a function that is called once, after those
that it imports: names of one module do not meet those of another one. Modules that are imported when they are needed,
by `import("…")`, are joined into a second file.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Final

JOINED: Final = "page.js"
LATER: Final = "later.js"
"""The file that is made of the first module and what it imports, and that of the modules that are imported later."""

_IMPORT: Final = re.compile(r"""^import\s+(?:([^"';]+?)\s+from\s+)?["']([^"']+)["'];?[ \t]*$""", re.MULTILINE)
_DECLARATION: Final = re.compile(
    r"^export (default )?(?=(?:(?:async )?function\*?|class|const) ([\w$]+)\b)", re.MULTILINE
)
_LIST: Final = re.compile(r"(?:(?<=[;}])|^)export\s*\{([^{}]*)\};?[ \t]*$(?!\s*from)", re.MULTILINE)
_COMMENT: Final = re.compile(
    r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n|/\*\* @(?:(?!\*/)[^\n])*\*/ ?", re.MULTILINE | re.DOTALL
)
_SPACE: Final = re.compile(r"^\s+|[ \t]+//[ ][^\n\"'`]*$", re.MULTILINE)
"""Indentation, empty lines, and comments behind code."""
_LINE_END: Final = re.compile(r"(?<=[;{])\n")
_IMPORT_LATER: Final = re.compile(r"""\bimport\("(\.[^"]+)"\)""")
_UNKNOWN: Final = re.compile(
    r"""^(?:(?:import|export)\b(?!\()|await\b)[^\n]*|\bimport\((?!"\.[^"]+"\))[^\n]*""", re.MULTILINE
)
_VARIABLE: Final = re.compile(r"\$[0-9]+")
_OWN_ADDRESS: Final = "import.meta.url"
_WHOLE: Final = "* as "


def join(sources: Mapping[str, str], first: str) -> dict[str, str]:
    """Return two modules that do what a module and all that it imports do, by their names in the folder of all paths.

    The second one, which the first one imports, has what the sources import by `import("…")`. `sources` has the modules
    by path. Lines of comment are left out, and in the folder of the module, with those below it, also other
    comments, indentation, empty lines and ends of lines: markup does not depend on them, and a test compares all else.

    Raises `ValueError` for what it can't join: a module or a name that is not there, circles of imports, names that may
    get another value later, `import()` of a computed path, `await` outside of functions.
    """
    joined = _Joined(sources, posixpath.dirname(first))
    joined.add(first, ())
    now, at_once = "".join(joined.functions), len(joined.functions)
    # More may be found on the way.
    for path in joined.later:
        joined.add(path, ())
    wanted = ", ".join(f"{joined.variables[path]} as later{at}" for at, path in enumerate(joined.later))
    later = "".join((*joined.functions[at_once:], f"export {{ {wanted} }};\n"))
    used = set(_VARIABLE.findall(later)).intersection(f"${number}" for number in range(at_once))
    shared = f"{{ {', '.join(sorted(used))} }}"
    return {JOINED: f"{now}export {shared};\n", LATER: f'import {shared} from "./{JOINED}";\n{later}'}


class _Joined:
    """The modules so far."""

    def __init__(self, sources: Mapping[str, str], folder: str) -> None:
        self._sources = sources
        self._folder = folder
        self._exported: dict[str, list[str]] = {}
        """The exports of each module, as members of an object literal."""
        self.later: list[str] = []
        """The modules that are imported when they are needed."""
        self.variables: dict[str, str] = {}
        """Short names of the objects of the modules."""
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
        variable = self.variables[path] = f"${len(self.variables)}"

        def declared(match: re.Match[str]) -> str:
            exported.append(f"default: {match[2]}" if match[1] else match[2])
            return ""

        def listed(match: re.Match[str]) -> str:
            exported.extend(": ".join(reversed(pair)) for pair in _pairs(match[1]))
            return ""

        def imported(match: re.Match[str]) -> str:
            return self._taken(path, match[1], _target(path, match[2])) if match[1] else ""

        def fetched(match: re.Match[str]) -> str:
            target = _target(path, match[1])
            if target not in self.later:
                self.later.append(target)
            return f'import("./{LATER}").then((all) => all.later{self.later.index(target)})'

        code = _LIST.sub(listed, _DECLARATION.sub(declared, _IMPORT.sub(imported, code)))
        unknown = _UNKNOWN.search(code)
        if unknown is not None:
            raise ValueError(f"{path} has what can't be joined: {unknown[0][:80]}")
        code = _IMPORT_LATER.sub(fetched, code)
        code = code.replace(_OWN_ADDRESS, f'new URL("./{path}", {_OWN_ADDRESS}).href').strip()
        if path.startswith(f"{self._folder}/"):
            code = _LINE_END.sub("", _SPACE.sub("", code))
        return f"const {variable} = (() => {{\n{code}\nreturn {{ {', '.join(exported)} }};\n}})();\n"

    def _taken(self, path: str, names: str, target: str) -> str:
        """Return the declaration that takes the names of an import from the object of a module."""
        if names.startswith(_WHOLE):
            return f"const {names.removeprefix(_WHOLE)} = {self.variables[target]};"
        default, _, rest = names.partition("{")
        pairs = [["default", default.strip(", ")]] if default.strip(", ") else []
        pairs += _pairs(rest.rstrip("} "))
        known = {member.partition(":")[0] for member in self._exported[target]}
        for pair in pairs:
            if pair[0] not in known:
                raise ValueError(f"{path} needs {pair[0]} of {target}, which does not export it")
        return f"const {{ {', '.join(map(': '.join, pairs))} }} = {self.variables[target]};"


def _pairs(names: str) -> list[list[str]]:
    """Return the names of a list such as `a, b as c`: those of `a as b` are two."""
    return [part.split(" as ") for part in (" ".join(name.split()) for name in names.split(",")) if part]


def _target(path: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
