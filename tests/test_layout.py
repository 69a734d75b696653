"""Rules for the tree as a whole."""

from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "acp_gateway"


def test_every_module_says_what_it_is_for() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert path.read_text().lstrip("r").startswith('"""'), path
