"""Modules that are put off while libraries are imported, and found as ever afterwards."""

import gc
import importlib
import subprocess
import sys
from contextlib import suppress
from types import ModuleType

import pytest

from acp_gateway.cli.quick_imports import quick_imports, without_collector

NAME = "colorsys"
"""A small module that nothing here imports."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, NAME, raising=False)


def test_a_module_that_is_put_off_is_imported_when_it_is_used() -> None:
    with quick_imports((NAME,)):
        put_off = importlib.import_module(NAME)
        assert not hasattr(put_off, "__file__")
    assert NAME not in sys.modules
    assert put_off.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert put_off.rgb_to_hsv is importlib.import_module(NAME).rgb_to_hsv


def test_a_module_that_is_put_off_is_imported_for_one_of_its_names() -> None:
    with quick_imports((NAME,)):
        from colorsys import rgb_to_hsv

        assert importlib.import_module(NAME).__file__
    assert rgb_to_hsv is importlib.import_module(NAME).rgb_to_hsv


def test_a_module_that_is_put_off_lacks_what_the_module_lacks() -> None:
    with quick_imports((NAME,)):
        put_off = importlib.import_module(NAME)
    with pytest.raises(AttributeError, match="absent"):
        _ = put_off.absent


def test_a_module_that_is_there_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, there)
    with quick_imports((NAME,)):
        assert sys.modules[NAME] is there
    assert sys.modules[NAME] is there


def test_a_part_of_a_package_is_put_off_as_an_attribute_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("package")
    monkeypatch.setitem(sys.modules, "package", package)
    with quick_imports(("package.part",)):
        assert package.part.__name__ == "package.part"
    assert not hasattr(package, "part")
    assert "package.part" not in sys.modules


def test_the_garbage_collector_is_off_during_imports_and_on_again_after_an_error() -> None:
    enabled = []
    with suppress(ImportError), without_collector():
        enabled.append(gc.isenabled())
        raise ImportError
    enabled.append(gc.isenabled())
    gc.unfreeze()
    assert enabled == [False, True]


IMPORTS = """
import sys
from acp_gateway.cli.quick_imports import PUT_OFF, quick_imports
with quick_imports(PUT_OFF):
    import trio
    import websockets.client
assert not set(PUT_OFF) & sys.modules.keys()
assert "ctypes.util" not in sys.modules
import trio._core._thread_cache as cache
named = cache.set_os_thread_name is not None
import ctypes.util
assert named or ctypes.util.find_library("pthread") is None
assert ctypes.util.find_library.__module__ == "ctypes.util"
print(trio.run(trio.run_process, [sys.executable, "-c", ""]).returncode)
"""


def test_trio_names_its_threads_and_starts_processes_whatever_is_put_off() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


NO_PROCESS = """
import sys
from acp_gateway.cli.quick_imports import quick_imports

def refuse(event, _):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
        sys.exit(event)

sys.addaudithook(refuse)
with quick_imports():
    import trio
"""


@pytest.mark.skipif(sys.platform != "linux", reason="on Linux Trio would run ldconfig")
def test_no_process_is_started_to_import_trio() -> None:
    done = subprocess.run([sys.executable, "-c", NO_PROCESS], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
