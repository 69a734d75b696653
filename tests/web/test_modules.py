"""The modules of the page, in one process of Node.js. `make test-js` has one for each file, and tries more examples."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parent / "unit"
IMPORT_ALL = "for (const file of process.argv.slice(1)) await import(file);"


def test_the_modules_of_the_page_pass_their_tests() -> None:
    node = shutil.which("node")
    if node is None or version(node) < 18:
        pytest.skip("needs Node.js 18 or newer; `make test-js` runs the same tests")
    files = sorted(map(str, UNIT.glob("*.test.mjs")))
    assert files
    command = [node, "--input-type=module", "--eval", IMPORT_ALL, *files]
    environment = os.environ | {"SHARE_OF_SEEDS": "0.3"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def version(node: str) -> int:
    """Return the major version of Node.js."""
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)", said)
    return int(found[1]) if found else 0
