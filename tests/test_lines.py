"""The limits of lines that `tools/lines` holds, on a small tree."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parent.parent / "tools" / "lines"


def check(folder: Path, *arguments: str, **limits: int) -> tuple[int, str]:
    """Run the tool on a tree with a package of two lines and a test of one; return the exit status and the output."""
    core, tests = folder / "acp_gateway" / "core", folder / "tests"
    for path in (core / "vendor", tests, folder / "acp_conformance"):
        path.mkdir(parents=True)
    (folder / "acp_gateway" / "__init__.py").write_text("")
    (core / "turns.py").write_text("a = 1\nb = 2\n")
    (core / "vendor" / "large.js").write_text("let a;\n" * 100)
    (tests / "test_turns.py").write_text("pass\n")
    table = "".join(f"{name} = {limit}\n" for name, limit in limits.items())
    (folder / "pyproject.toml").write_text(f"[tool.lines]\n{table}")
    result = subprocess.run([sys.executable, TOOL, *arguments], cwd=folder, capture_output=True, text=True)
    assert result.stderr == ""
    return result.returncode, result.stdout


def test_a_tree_within_its_limits_passes_without_output(tmp_path: Path) -> None:
    assert check(tmp_path, "--check", acp_gateway=0, core=2, acp_conformance=0, tests=1) == (0, "")


def test_a_part_over_its_limit_is_named_with_what_it_has_too_many(tmp_path: Path) -> None:
    status, output = check(tmp_path, "--check", acp_gateway=0, core=1, acp_conformance=0, tests=1)
    assert status == 1
    assert output == (
        "core has 2 lines, 1 more than its limit. Take something out, or raise the limit as CONTRIBUTING.md says.\n"
    )


def test_a_part_without_a_limit_and_a_limit_without_a_part_are_named(tmp_path: Path) -> None:
    status, output = check(tmp_path, "--check", acp_gateway=0, acp_conformance=0, tests=1, gone=7)
    assert status == 1
    assert output.splitlines() == [
        "[tool.lines] limits gone, which is not there",
        "core has 2 lines and no limit in [tool.lines] of pyproject.toml",
    ]


def test_the_table_has_each_part_with_its_limit(tmp_path: Path) -> None:
    status, output = check(tmp_path, acp_gateway=0, core=1, acp_conformance=0, tests=1)
    assert status == 0
    assert "| core | 2 | 1 |" in output.splitlines()
