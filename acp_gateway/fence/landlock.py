"""Landlock, the kernel's access control that a process applies to itself: linux/landlock.h by ctypes.

A ruleset handles kinds of access and allows them below certain paths or for certain ports; what it handles and does not
allow is refused. The kernel's version of it (`abi`) tells the kinds that exist. The launcher of an agent executes
the module by itself, so it imports nothing but the standard library.
"""

import ctypes
import errno
import os
import stat
from typing import Final

# The numbers are the same on all architectures that Linux has added these calls to.
_OPENAT2: Final = 437
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_CREATE_RULESET_VERSION: Final = 1
_AT_FDCWD: Final = -100
_RESOLVE_NO_SYMLINKS: Final = 4
_RULE_PATH_BENEATH: Final = 1
_RULE_NET_PORT: Final = 2
_PR_SET_NO_NEW_PRIVS: Final = 38

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15
_VERSION_1: Final = (1 << 13) - 1
_DEVICES: Final = 1 << 6 | 1 << 11
"""Making devices, by which root would reach disks and memory."""

READ: Final = EXECUTE | READ_FILE | READ_DIR
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
"""The kinds that a rule for something else than a directory may have."""

_BIND_TCP: Final = 1 << 0
_CONNECT_TCP: Final = 1 << 1
_SCOPES: Final = 0b11
"""Abstract unix sockets, and signals, to processes outside of the fence."""

NETWORK_ABI: Final = 4
"""First version that knows ports of TCP."""
SCOPE_ABI: Final = 6
"""First version that keeps a process from signalling others and from their abstract sockets."""


KEPT_CAPABILITIES: Final = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_NET_BIND_SERVICE": 10,
}
"""Capabilities that an agent of root keeps: those for files and accounts, which end at the fence as well. By others,
such as CAP_PERFMON, a process reads what belongs to others in spite of Landlock."""

_PR_CAPBSET_DROP: Final = 24
_CAPABILITY_VERSION: Final = 0x20080522


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


class _PortRule(ctypes.Structure):
    _fields_ = [("access", ctypes.c_uint64), ("port", ctypes.c_uint64)]


def abi() -> int:
    """Return the version of Landlock of this kernel; 0 where there is none."""
    if os.uname().sysname != "Linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)))


def restrict(
    *, files: bool, read: list[str], write: list[str], look: list[str], ports: list[int] | None, scoped: bool
) -> None:
    """Restrict this process and all that it starts, for ever.

    Args:
        files: restrict files, to the next three; False leaves files to other means.
        read: paths to read and execute, with everything below them.
        write: paths to read, execute, change and use as devices, with everything below them.
        look: directories whose own names may be listed, and nothing else.
        ports: the TCP ports to connect to, and none to listen at; None for all.
        scoped: keep from signalling processes outside, and from their abstract sockets, where the kernel can.

    A path that does not exist (any more), or has a symbolic link in it, is left out. Raises `OSError`, also where the
    kernel cannot do it.
    """
    version = abi()
    if not version or (ports is not None and version < NETWORK_ABI):
        raise OSError(errno.EOPNOTSUPP, "this kernel's Landlock cannot do that")
    everything = _VERSION_1
    everything |= _REFER if version >= 2 else 0
    everything |= _TRUNCATE if version >= 3 else 0
    everything |= _IOCTL_DEV if version >= 5 else 0
    attributes = _Ruleset(
        everything if files else 0,
        0 if ports is None else _BIND_TCP | _CONNECT_TCP,
        _SCOPES if scoped and version >= SCOPE_ABI else 0,
    )
    if not (attributes.fs or attributes.net or attributes.scoped):
        return
    size = 8 if version < NETWORK_ABI else 16 if version < SCOPE_ABI else 24
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    try:
        if files:
            for paths, access in ((read, READ), (write, everything & ~_DEVICES), (look, READ_DIR)):
                for path in paths:
                    _allow(ruleset, path, access)
        for port in ports or ():
            rule = _PortRule(_CONNECT_TCP, port)
            _call(_ADD_RULE, ruleset, _RULE_NET_PORT, ctypes.byref(rule), 0)
        if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def drop_capabilities() -> None:
    """Drop all capabilities of this process but `KEPT_CAPABILITIES`, for ever once it has no new privileges.

    Raises `OSError`.
    """
    kept = sum(1 << number for number in KEPT_CAPABILITIES.values())
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if _libc().capget(header, sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for number in range(64):
        if number not in KEPT_CAPABILITIES.values():
            # Beyond the last one of the kernel, and without CAP_SETPCAP, nothing is dropped; nothing is there then.
            _libc().prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    for index in range(6):
        sets[index] &= kept if index < 3 else 0
    if _libc().capset(header, sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def open_place(path: str) -> int | None:
    """Return a descriptor that stands for a path (O_PATH); None if it does not exist, or has a symbolic link in it.

    Another agent may just have exchanged a folder on the way for a link. Raises `OSError`.
    """
    how = _How(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
    try:
        return _call(_OPENAT2, _AT_FDCWD, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
            return None
        raise


def _allow(ruleset: int, path: str, access: int) -> None:
    parent = open_place(path)
    if parent is None:
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            access &= _OF_FILES
        rule = _PathRule(access, parent)
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(parent)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    # Each argument of `syscall` is a long: ctypes would pass an int with an undefined upper half.
    widened = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_libc().syscall(ctypes.c_long(number), *widened))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
