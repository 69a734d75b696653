"""Parts that not every machine has. Tests that need one are skipped without it."""

import functools
import os
import resource
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

MANY = 4096
"""Descriptors for a thousand connections, both ends of them, and more."""


@functools.cache
def has_ipv6() -> bool:
    """Return True if the loopback interface has an address of IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def _has_entry() -> bool:
    """Return True if the user database knows the user of this process."""
    try:
        import pwd

        pwd.getpwuid(os.geteuid())
    except (ImportError, KeyError):
        return False
    return True


needs_entry = pytest.mark.skipif(not _has_entry(), reason="the user database does not know this user")

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Make room for a thousand sockets and more; skip the test where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MANY:
        pytest.skip(f"fewer than {MANY} descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
