"""The libraries of the page: what `tools/vendor_web` compares, and that all of them come with their license."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.python_scripts import python_script

ROOT = Path(__file__).parent.parent.parent
VENDOR = ROOT / "acp_gateway" / "web" / "vendor"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the tool and the libraries to where a test may change them."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "vendor_web", tmp_path / "tools")
    shutil.copytree(VENDOR, tmp_path / "acp_gateway" / "web" / "vendor")
    return tmp_path


def check(tree: Path) -> tuple[int, list[str]]:
    """Compare the files of a tree with its manifest; return the exit status and the lines of complaint."""
    command = [sys.executable, str(tree / "tools" / "vendor_web"), "--check", "--offline"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == ""
    return result.returncode, result.stderr.splitlines()


def manifest() -> list[dict[str, Any]]:
    """Return the packages of the manifest."""
    packages: list[dict[str, Any]] = json.loads((VENDOR / "MANIFEST.json").read_text())["packages"]
    return packages


def test_the_libraries_are_those_of_the_manifest(tree: Path) -> None:
    assert check(tree) == (0, [])


def test_a_changed_a_missing_and_an_unknown_file_are_reported(tree: Path) -> None:
    vendor = tree / "acp_gateway" / "web" / "vendor"
    with (vendor / "marked.esm.js").open("a") as file:
        file.write("\n")
    (vendor / "diff" / "base.js").unlink()
    (vendor / "extra.js").touch()
    assert check(tree) == (
        1,
        [
            "vendor_web: extra.js: not in the manifest",
            "vendor_web: diff/base.js: missing",
            "vendor_web: marked.esm.js: differs from the manifest",
        ],
    )


def test_what_npm_has_is_refused_if_its_hash_differs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tree / "bin"
    programs.mkdir()
    npm = programs / "npm"
    # An npm that packs one file of each package, with a content of its own.
    npm.write_text(
        python_script(
            "import io, sys, tarfile\n"
            "folder = sys.argv[sys.argv.index('--pack-destination') + 1]\n"
            "with tarfile.open(folder + '/x.tgz', 'w:gz') as package:\n"
            "    entry = tarfile.TarInfo('package/LICENSE')\n"
            "    entry.size = 4\n"
            "    package.addfile(entry, io.BytesIO(b'evil'))\n"
        )
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    before = (tree / "acp_gateway/web/vendor/licenses/htm.txt").read_bytes()
    result = subprocess.run([sys.executable, tree / "tools" / "vendor_web"], capture_output=True, text=True)
    assert result.returncode == 1
    assert "vendor_web: htm@3.1.1: LICENSE differs from the manifest" in result.stderr.splitlines()
    assert (tree / "acp_gateway/web/vendor/licenses/htm.txt").read_bytes() == before


def test_every_library_comes_with_its_license_and_an_exact_version() -> None:
    for package in manifest():
        name = package["name"].removeprefix("@").replace("/", "-")
        assert f"licenses/{name}.txt" in {file["to"] for file in package["files"]}
        assert all(part.isdecimal() for part in package["version"].split("."))


def test_types_are_checked_with_the_versions_that_are_here() -> None:
    checked = json.loads((ROOT / "tools" / "check_js" / "package.json").read_text())["devDependencies"]
    here = {package["name"]: package["version"] for package in manifest()}
    del checked["typescript"]
    assert {name: here[name] for name in checked} == checked


def test_the_hashes_are_those_of_the_files() -> None:
    for package in manifest():
        for file in package["files"]:
            assert hashlib.sha256((VENDOR / file["to"]).read_bytes()).hexdigest() == file["sha256"], file["to"]
