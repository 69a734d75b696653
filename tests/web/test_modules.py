"""The modules of the page, by `node --test`."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parent / "unit"


def test_the_modules_of_the_page_pass_their_tests() -> None:
    node = shutil.which("node")
    if node is None or version(node) < 18:
        pytest.skip("needs Node.js 18 or newer; `make test-js` runs the same tests")
    files = sorted(map(str, UNIT.glob("*.test.mjs")))
    assert files
    result = subprocess.run([node, "--test", *files], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def version(node: str) -> int:
    """Return the major version of Node.js."""
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)", said)
    return int(found[1]) if found else 0
