"""A fork server: a process that has imported the program, and becomes it in a copy of itself where tests start it.

To import the program takes longer than most of what tests do with it. They start it by `subprocess` as always: one
method of `Popen` is replaced. What differs is the command line in `/proc`. As a script this is the server, whose
arguments are a socket, and a script that runs the program in its own way.
"""

import atexit
import ctypes
import importlib
import json
import os
import pkgutil
import platform
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

CLONE: Final = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
"""Number of the system call `clone`; None where each process imports the program."""
CLONE_PARENT: Final = 0x8000
"""Flag by which the new process is a child of the tests' process, as the server is."""
SIGCHLD: Final = 17

SIZE: Final = 150_000
"""Maximum bytes of a command and its environment."""

SCRIPTS: Final = {str(Path(__file__).with_name(name)) for name in ("hurried.py", "unfixed.py")}
"""Scripts that change the program when they are imported, and run it as `__main__`."""

SDK_SERVER: Final = "tests.end_to_end.sdk_http_server"
"""Another program that is copied: it takes half a second to import."""

READ_AT_START: Final = ("LANG", "LC_", "PYTHON")
"""Beginnings of variables that the interpreter reads when it starts."""

PLAIN: Final = (True, None, None, None, -1, False, -1)
"""Arguments that `Popen` passes from `restore_signals` on where nothing is asked for."""

_start_otherwise: Final = vars(subprocess.Popen)["_execute_child"]
_lock: Final = threading.Lock()


def start(
    self: Any, args: Any, executable: Any, before: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any
) -> None:
    """Start the program in a copy of its server, and anything else as `Popen` does."""
    script, words = _split([] if isinstance(args, str | bytes) else list(map(os.fspath, args)))
    environment = dict(os.environ if env is None else env)
    shell, *streams = rest[2:9]
    unusual = executable or before or pass_fds or shell or rest[9:] != PLAIN
    if script is None or unusual or any(name.startswith(READ_AT_START) for name in environment):
        _start_otherwise(self, args, executable, before, close_fds, pass_fds, cwd, env, *rest)
        return
    request = json.dumps([words, os.fspath(cwd or os.getcwd()), environment]).encode()
    assert len(request) < SIZE
    stdin, _, _, stdout, _, stderr = streams
    descriptors = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
    with _lock:
        connection = _server(script)
        socket.send_fds(connection, [request], descriptors)
        self.pid = int(connection.recv(20))
    self._child_created = True
    self._close_pipe_fds(*streams)


def _split(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the script of a command that can be copied, "" for the program itself, and the arguments."""
    if words[:3] == [sys.executable, "-m", "acp_gateway"]:
        return "", words[3:]
    if words[:3] == [sys.executable, "-m", SDK_SERVER]:
        return SDK_SERVER, words[3:]
    if len(words) > 1 and words[0] == sys.executable and words[1] in SCRIPTS:
        return words[1], words[2:]
    return None, []


@cache
def _server(script: str) -> socket.socket:
    """Start the server of a script, which ends with this process, and return a connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), script],
            env={name: os.environ[name] for name in ("PATH", "HOME")},
            # What it takes for its streams are those of its copies, which may not be files.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.communicate()

    atexit.register(end)
    return ours


def serve(connection: socket.socket) -> list[str] | None:
    """Copy this process for each request. Return the arguments in a copy, and None when the connection has ended."""
    clone = ctypes.PyDLL(None).syscall
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, SIZE, 3)
        if not request:
            return None
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = clone(CLONE, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)
        if not pid:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            break
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())
    connection.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words: list[str]
    words, directory, environment = json.loads(request)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    return words


def import_program() -> None:
    """Import all that a gateway and its clients may need."""
    import acp_gateway
    from acp_gateway.cli.quick_imports import quick_imports

    with quick_imports():
        for module in pkgutil.walk_packages(acp_gateway.__path__, "acp_gateway."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def run(script: str, words: list[str]) -> None:
    """Be the program, and end as it does, but do not take its modules apart, which takes as long as many a test."""
    sys.argv = [script, *words]
    code = None
    try:
        if script == SDK_SERVER:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        elif script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module("acp_gateway", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        code = end.code
    # As the interpreter does: one that is left over must not be missed.
    vars(threading)["_shutdown"]()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def main(descriptor: str, script: str) -> None:
    """Be the server, and in a copy the program."""
    if script == SDK_SERVER:
        sys.path.append(str(Path(__file__).parent.parent.parent))
        runpy.run_module(script)
    else:
        if script:
            runpy.run_path(script)
        import_program()
    words = serve(socket.socket(fileno=int(descriptor)))
    if words is not None:
        run(script, words)


if __name__ == "__main__":
    main(*sys.argv[1:])
