"""Imports in less time: without the garbage collector, and without modules that libraries import and do not use here.

Nearly all of the time in which `connect` starts is spent on imports.
"""

import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

UNUSED: Final = ("importlib.metadata",)
"""A module that websockets imports for unreleased versions of itself."""

PUT_OFF: Final = (*UNUSED, "datetime", "idna", "selectors", "ssl", "subprocess", "tokenize")
"""Modules that `connect` leaves to their first use, such as TLS, processes and host names that are not ASCII."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Import modules with the garbage collector disabled.

    Otherwise it would traverse all imported objects again and again, and free almost none. At the end they are frozen,
    so that no later collection traverses them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def quick_imports(put_off: Sequence[str] = UNUSED) -> Iterator[None]:
    """Import Trio and other modules without the garbage collector, and leave some that they import to their first use.

    A gateway puts off only what it does not use: it runs for months, in which its files may be replaced.
    """
    stand_ins: list[ModuleType] = [_Later(name) for name in put_off]
    if sys.platform == "linux" and "trio" not in sys.modules:
        import ctypes  # noqa: F401 - Trio needs it as well; its part is replaced here.

        stand_ins.append(_ThreadLibrary("ctypes.util"))
    stand_ins = [module for module in stand_ins if module.__name__ not in sys.modules]
    for module in stand_ins:
        sys.modules[module.__name__] = module
        package, _, name = module.__name__.rpartition(".")
        if package in sys.modules:
            vars(sys.modules[package])[name] = module
    try:
        with without_collector():
            yield
    finally:
        for module in stand_ins:
            _remove(module)


def _remove(stand_in: ModuleType) -> None:
    """Let the next import of the module find the original."""
    package, _, name = stand_in.__name__.rpartition(".")
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
    if package in sys.modules and vars(sys.modules[package]).get(name) is stand_in:
        del vars(sys.modules[package])[name]


class _Later(ModuleType):
    """Stands for a module that is imported when one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # The import system looks for some that a module may lack.
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


class _ThreadLibrary(ModuleType):
    """Stands for ctypes.util while Trio is imported, which asks it for the thread library, to name its threads.

    The original runs ldconfig, or where that does not know the library, a compiler and a linker.
    """

    @staticmethod
    def find_library(name: str) -> str | None:
        """Return the name of glibc's thread library; None without glibc, so that Trio tries the only library."""
        return "libpthread.so.0" if name == "pthread" and "CS_GNU_LIBC_VERSION" in os.confstr_names else None
