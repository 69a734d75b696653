"""Lets Toad run on a Python before 3.14, where annotations are evaluated at once and interpreters have no pool.

It is imported at the start of each Python whose PYTHONPATH names this folder. Nothing else of Toad is changed.
"""

import __future__

import concurrent.futures
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

OWN = "eval(parameter.annotation)"
NAMED = 'eval(parameter.annotation, getattr(callable, "__wrapped__", callable).__globals__)'
"""The way in which toad.jsonrpc evaluates an annotation that is a text, and one that works where all are texts."""


class Later(SourceFileLoader):
    """Loads a module; if a name of its annotations does not exist yet, once more with annotations as texts."""

    def exec_module(self, module: ModuleType) -> None:
        path, names = self.get_filename(module.__name__), dict(vars(module))
        source = self.get_data(path).replace(OWN.encode(), NAMED.encode())
        try:
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))  # noqa: S102 -- it is the code of Toad itself
        except NameError:
            vars(module).clear()
            vars(module).update(names)
            flags = __future__.annotations.compiler_flag
            exec(compile(source, path, "exec", flags, dont_inherit=True), vars(module))  # noqa: S102 -- it is the code of Toad itself


class Finder(PathFinder):
    """Finds the modules of Toad."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "toad":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = Later(spec.name, spec.origin)
        return spec


if sys.version_info < (3, 14):
    sys.meta_path.insert(0, Finder)
    vars(concurrent.futures)["InterpreterPoolExecutor"] = concurrent.futures.ThreadPoolExecutor
