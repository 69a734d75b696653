"""Tests that several processes share."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
from tests import processes

pytest_addoption = processes.add_options
pytest_configure = processes.configure
"""

FILES = {
    "test_long.py": """
import pytest

@pytest.mark.parametrize("number", range(30))
def test_number(number): assert number != 7, "seven"
def test_skipped(): pytest.skip("not here")
""",
    "folder/test_short.py": "def test_passes(): pass\ndef test_other(): pass",
    "folder/test_unreadable.py": "import nothing_of_this_name",
    "test_ends.py": "import os\ndef test_before(): pass\ndef test_end(): os._exit(3)\ndef test_lost(): pass",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder in two processes."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "--processes", "2", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_each_test_runs_once_and_each_failure_and_each_end_of_a_process_is_told(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "FAILED test_long.py::test_number[7] - AssertionError: seven" in done.stdout
    assert "SKIPPED [1] test_long.py:6: not here" in done.stdout
    assert "ERROR folder/test_unreadable.py" in done.stdout
    assert "No module named 'nothing_of_this_name'" in done.stdout
    assert "test_ends.py::test_end" in done.stdout
    assert "The process of these tests ended with status 3." in done.stdout
    assert "1 failed, 32 passed, 1 skipped, 2 errors" in done.stdout


def test_arguments_choose_tests_as_they_do_for_one_process(tmp_path: Path) -> None:
    done = run(tmp_path, "folder/test_short.py", "test_long.py::test_number", "-k", "passes or 29")
    assert done.returncode == 0
    assert "2 passed" in done.stdout
