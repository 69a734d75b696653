"""A stand-in for ssh and sshd: a program that is called `ssh`, and runs the command here, as on another machine.

It insists on the options that the real one needs, and gives the command the environment of a login that knows
nothing: a short PATH, a home of its own, and a profile that greets, before and behind the command, with CR LF.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.kit.python_scripts import python_script

GREETING = "printf 'Welcome to box!\\r\\n=== acp-gateway pairing 1 BEGIN ===\\r\\nyou have mail'; "
LOGOUT = "; code=$?; printf 'bye\\r\\n'; exit $code"


@dataclass(frozen=True, slots=True)
class FakeSsh:
    """A folder with an `ssh`, and with what it is told and tells."""

    directory: Path

    @property
    def home(self) -> Path:
        """The home over there."""
        return self.directory / "home"

    @property
    def path(self) -> str:
        """A PATH on which it is found before the real one."""
        return f"{self.directory}{os.pathsep}{os.environ['PATH']}"

    def fail(self, code: int, words: str) -> None:
        """From now on do nothing but say this on stderr, and end with this code."""
        (self.directory / "failure.json").write_text(json.dumps([code, words]))

    def recover(self) -> None:
        """Work again."""
        (self.directory / "failure.json").unlink()

    def cut_after(self, answers: int) -> None:
        """Cut each connection when so many answers of `pair-here` have come, and tell what runs there nothing more."""
        (self.directory / "cut").write_text(str(answers))

    def mend(self) -> None:
        """Cut none any more."""
        (self.directory / "cut").unlink()

    def calls(self) -> list[list[str]]:
        """The arguments of each call so far."""
        try:
            return [json.loads(line) for line in (self.directory / "calls.jsonl").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def environments(self) -> list[dict[str, str]]:
        """The environment of each call so far."""
        return [json.loads(line) for line in (self.directory / "environments.jsonl").read_text().splitlines()]

    def kill(self) -> int:
        """Kill the running ones with their children, so that none can say a word; return how many there were."""
        running = 0
        for path in self.directory.glob("running-*"):
            try:
                os.killpg(int(path.name.partition("-")[2]), signal.SIGKILL)
                running += 1
            except ProcessLookupError:
                pass
            # One that has just ended has removed it.
            path.unlink(missing_ok=True)
        return running


def make_fake_ssh(directory: Path, *, program: bool = True) -> FakeSsh:
    """Make one; `program`: with acp-gateway in `~/.local/bin` over there."""
    fake = FakeSsh(directory)
    fake.home.mkdir(parents=True)
    script = directory / "ssh"
    code = (
        f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        f"from tests.end_to_end import fake_ssh\nsys.exit(fake_ssh.run(Path({str(directory)!r}), sys.argv[1:]))\n"
    )
    script.write_text(python_script(code, "-IS"))
    script.chmod(0o755)
    if program:
        install(fake.home / ".local/bin/acp-gateway")
    return fake


def install(path: Path) -> None:
    """Put an acp-gateway there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).parent.parent.parent
    code = (
        f"import sys\nsys.path.insert(0, {str(root)!r})\n"
        "from acp_gateway.cli.main import main\nmain(prog_name='acp-gateway')\n"
    )
    path.write_text(python_script(code))
    path.chmod(0o755)


def _run_until_cut(shell: list[str], environment: dict[str, str], home: Path, answers: int) -> int:
    """Pass on so many answers, and then nothing more in either direction."""
    process = subprocess.Popen(shell, env=environment, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(answers + 1):
        if number:
            # The machine that is paired says what becomes of the token.
            process.stdin.write(sys.stdin.buffer.readline())
            process.stdin.flush()
        if number == answers:
            break
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if b" pairing 1 END " in line:
                break
    # As a network does that is cut right then: the last line has arrived there, and its answer never does.
    process.stdin.close()
    process.stdout.read()
    process.wait()
    sys.stderr.write("Connection to box closed by remote host.\n")
    return 255


def run(directory: Path, arguments: list[str]) -> int:
    """Be ssh; returns its exit code."""
    with (directory / "calls.jsonl").open("a") as file:
        file.write(json.dumps(arguments) + "\n")
    with (directory / "environments.jsonl").open("a") as file:
        file.write(json.dumps(dict(os.environ)) + "\n")
    asked = arguments[:1] == ["-G"]
    host, *command = arguments[arguments.index("--") + 1 :]
    options = dict(zip(arguments[asked:], arguments[asked + 1 :], strict=False))
    assert "-T" in arguments
    assert not host.startswith("-")
    # Without this, ssh has asked in a terminal, which the caller has stood in for.
    assert "BatchMode=yes" in arguments or os.environ.get("FAKE_SSH_ASKED")
    assert "RemoteCommand=none" in arguments
    assert options.get("-l", "") != "root"
    if asked:
        sys.stdout.write(f"user ann\nhostname {'127.0.0.1' if host == 'box' else host}\nport 22\n")
        return 0
    try:
        code, words = json.loads((directory / "failure.json").read_text())
    except FileNotFoundError:
        pass
    else:
        sys.stderr.write(f"{words}\n")
        return int(code)
    (line,) = command
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory / "home"), "USER": "ann", "SSH_ORIGINAL_COMMAND": ""}
    os.setpgrp()
    pid = directory / f"running-{os.getpid()}"
    pid.touch()
    # As sshd does it: the login shell gets one line and makes of it what it likes.
    shell = ["/bin/sh", "-c", GREETING + line + LOGOUT]
    try:
        answers = int((directory / "cut").read_text())
    except FileNotFoundError:
        code = subprocess.Popen(shell, env=environment, cwd=directory / "home").wait()
    else:
        code = _run_until_cut(shell, environment, directory / "home", answers)
    pid.unlink(missing_ok=True)
    return code
