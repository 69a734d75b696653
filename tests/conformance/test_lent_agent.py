"""The program that lends its streams, as a process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from acp_conformance import lent_agent


def test_it_lends_its_streams_writes_noise_and_ends_with_the_code_that_it_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        command = [sys.executable, "-I", "-S", lent_agent.__file__, str(tmp_path / "s")]
        with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            control, _ = listener.accept()
            with control:
                _, (ours, theirs), _, _ = socket.recv_fds(control, 1, 2)
                process.stdin.write(b"to the agent")
                process.stdin.close()
                assert os.read(ours, 100) == b"to the agent"
                os.write(theirs, b"to the client")
                control.sendall(b"stderr 60\n")
                assert control.recv(1) == b"\n"
                control.sendall(b"exit 3\n")
                os.close(ours)
                os.close(theirs)
                assert process.wait(20) == 3
            assert process.stdout.read() == b"to the client"
            assert len(process.stderr.read()) == 60


def test_it_ends_with_the_checker(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        command = [sys.executable, "-I", "-S", lent_agent.__file__, str(tmp_path / "s")]
        with subprocess.Popen(command, stdin=-1, stdout=-1) as process:
            listener.accept()[0].close()
            assert process.wait(20) == lent_agent.CHECKER_GONE
