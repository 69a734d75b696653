"""Rules for the tree as a whole."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = [ROOT / "acp_conformance", ROOT / "acp_gateway"]

MOST_MODULES = 16
"""Modules of a folder, without its `__init__`: a person takes in as many at one look."""


def test_every_module_says_what_it_is_for() -> None:
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            assert path.read_text().lstrip("r").startswith('"""'), path


def test_no_folder_has_more_modules_than_a_person_takes_in() -> None:
    folders = {path.parent for package in PACKAGES for path in package.rglob("*.py")}
    modules = {folder: [path for path in folder.glob("*.py") if path.name != "__init__.py"] for folder in folders}
    assert {str(folder): len(found) for folder, found in modules.items() if len(found) > MOST_MODULES} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    tool = runpy.run_path(str(ROOT / "tools/structure"))
    circles, imports = tool["circles"], tool["imports"]()
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert "acp_gateway.gateway.gateway" in imports["acp_gateway.server.listener"]
    assert circles(imports) == []
