"""Rules for the tree as a whole."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "acp_gateway"
MODULES = [path for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__") and "share" not in path.parts]

MOST_LINES = 450
"""Lines of one module at most: a longer one has two subjects, which are easier to find apart."""

FEWEST_LINES = 40
"""Lines of one module at least: a shorter one is a part of its neighbour."""

SEAMS = {
    "config/directories.py": "where the gateway and its client look for files; each has readers of its own",
    "config/durations.py": "one spelling for the command line and both kinds of configuration file",
    "gateway/hub_needs.py": "the interface between a hub and the gateway around it, which do not import each other",
    "protocol/gaps.py": "texts that users read, which the gateway and the client both write",
}
"""Shorter modules that several packages share, and why each of them is not part of another."""


def test_every_module_has_its_tests_at_the_same_path() -> None:
    tests = {path.relative_to(PACKAGE).with_name(f"test_{path.name}") for path in MODULES}
    assert {str(path) for path in tests if not (ROOT / "tests" / path).is_file()} == set()


def test_every_module_says_what_it_is_for() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert path.read_text().lstrip("r").startswith('"""'), path


def test_no_module_has_more_than_450_lines() -> None:
    assert {str(path.relative_to(PACKAGE)): count for path in MODULES if (count := lines(path)) > MOST_LINES} == {}


def test_no_module_but_a_seam_has_fewer_than_40_lines() -> None:
    short = {path.relative_to(PACKAGE).as_posix() for path in MODULES if lines(path) < FEWEST_LINES}
    assert short == SEAMS.keys()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())
