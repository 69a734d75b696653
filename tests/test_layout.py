"""What holds for the tree as a whole."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_module_has_a_test_file_of_its_name() -> None:
    tested = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    modules = {path.stem for path in (ROOT / "acp_gateway").rglob("*.py") if not path.stem.startswith("__")}
    assert {module for module in modules if f"test_{module}.py" not in tested} == set()


def test_every_module_says_what_it_is_for() -> None:
    for path in (ROOT / "acp_gateway").rglob("*.py"):
        assert path.read_text().lstrip("r").startswith('"""'), path
