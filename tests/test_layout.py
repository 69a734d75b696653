"""Rules for the tree as a whole."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "acp_gateway"
MODULES = [path for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__") and "share" not in path.parts]


def test_every_module_has_its_tests_at_the_same_path() -> None:
    tests = {path.relative_to(PACKAGE).with_name(f"test_{path.name}") for path in MODULES}
    assert {str(path) for path in tests if not (ROOT / "tests" / path).is_file()} == set()


def test_every_module_says_what_it_is_for() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert path.read_text().lstrip("r").startswith('"""'), path
