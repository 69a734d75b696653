"""Programs of another user, which root's tests start: with a Python that this user may run.

Below a home of mode 0700 no other user may, as with pyenv. Then there is a copy of the environment and of the checkout.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

IS_ROOT = os.geteuid() == 0

POWERLESS = 65534
"""The number of a user who owns nothing."""

only_root = pytest.mark.skipif(not IS_ROOT, reason="only root starts programs of another user")

UNUSED = ("test", "site-packages", "dist-packages", "config-*", "idlelib")
"""Parts of an installation of Python that are not copied."""

UNUSED_PACKAGES = ("*mypy*", "ruff*", "pip", "setuptools", "playwright", "numpy*", "matplotlib*")


@dataclass(frozen=True)
class Runnable:
    """A Python with the packages of this environment, and a checkout, which any user may use."""

    python: str
    checkout: Path


def identity(user: int) -> dict[str, Any]:
    """Return the arguments with which `subprocess` starts a program of a user; none for a caller who is not root."""
    return {"user": user, "group": user, "extra_groups": []} if IS_ROOT else {}


def runnable_by_others() -> Runnable:
    """Return what another user may run; skip the test where that can't be."""
    found = _find()
    if found is None:
        pytest.skip("another user can run neither this Python nor a copy of it")
    return found


@functools.cache
def _find() -> Runnable | None:
    """Return the own Python and checkout, or copies of them, or nothing if another user can't run these either."""
    own = Runnable(sys.executable, ROOT)
    if not IS_ROOT or _runs(own):
        return own
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="agp-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = _copy(folder)
    return copy if _runs(copy) else None


def _runs(found: Runnable) -> bool:
    """Return True if a powerless user can import what tests need."""
    modules = "import cryptography, pytest, tests.kit.doubles, acp_gateway; print(acp_gateway.__file__)"
    try:
        told = subprocess.run(
            [found.python, "-c", modules],
            cwd=found.checkout,
            env={},
            capture_output=True,
            text=True,
            check=False,
            **identity(POWERLESS),
        )
    except PermissionError:
        return False
    return str(told.stdout).startswith(str(found.checkout))


def _copy(folder: Path) -> Runnable:
    """Copy Python, this environment and the checkout into a folder."""
    paths = sysconfig.get_paths()
    library = Path(paths["stdlib"])
    program = folder / "base/bin" / Path(sys.executable).resolve().name
    program.parent.mkdir(parents=True)
    text = Path(sys.executable).resolve().read_bytes()
    _copy_tree(library, folder / "base/lib" / library.name, UNUSED)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        # The program has the path of the folder with its library: it becomes one that begins at the program.
        libraries = sysconfig.get_config_var("LIBDIR")
        text = text.replace(os.fsencode(libraries), b"$ORIGIN/../lib".ljust(len(libraries), b"\0"))
        for shared in Path(libraries).glob("libpython3*.so*"):
            shutil.copyfile(shared, folder / "base/lib" / shared.name)
    program.write_bytes(text)
    packages = folder / "env/lib" / library.name / "site-packages"
    for name in {paths["purelib"], paths["platlib"]}:
        _copy_tree(Path(name), packages, UNUSED_PACKAGES)
    (folder / "env/pyvenv.cfg").write_text(f"home = {program.parent}\n")
    (folder / "env/bin").mkdir()
    python = folder / "env/bin/python"
    python.symlink_to(program)
    for name in ("acp_gateway", "tests"):
        _copy_tree(ROOT / name, folder / "checkout" / name, ())
    shutil.copyfile(ROOT / "pyproject.toml", folder / "checkout/pyproject.toml")
    folder.chmod(0o755)
    program.chmod(0o755)
    return Runnable(str(python), folder / "checkout")


def _copy_tree(source: Path, target: Path, unused: Sequence[str]) -> None:
    """Copy files that everyone may read. Of ten thousand, `tar` copies each in a tenth of the time of `shutil`."""
    target.mkdir(parents=True, exist_ok=True)
    exclusions = [f"--exclude={pattern}" for pattern in unused]
    packs = ["tar", "-cf", "-", "--mode=u=rwX,go=rX", *exclusions, "-C", str(source), "."]
    with subprocess.Popen(packs, stdout=subprocess.PIPE) as packing:
        subprocess.run(["tar", "-xf", "-", "--no-same-owner", "-C", str(target)], stdin=packing.stdout, check=True)
    assert packing.returncode == 0
