"""The modules of the core import each other in one direction, for types as well."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from acp_gateway import core

CORE = Path(core.__path__[0])


def modules() -> dict[str, Path]:
    """Return the files of the core's modules, by name."""
    paths = CORE.rglob("*.py")
    return {".".join(["acp_gateway.core", *path.relative_to(CORE).with_suffix("").parts]): path for path in paths}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the names that a module imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (name for alias in node.names for name in (node.module or "", f"{node.module}.{alias.name}"))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_of_the_core_imports_one_that_imports_it() -> None:
    found = modules()
    graph = {name: {other for other in imports_of(path) if other in found} for name, path in found.items()}
    assert graph["acp_gateway.core.agent_requests"] >= {"acp_gateway.core.sessions.session"}
    TopologicalSorter(graph).prepare()  # Raises `CycleError`, which names the modules.
