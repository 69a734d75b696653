"""Two accounts of this machine as a box and a laptop: each with a home, and sshd, by which one reaches the other."""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.free_ports import free_port

ROOT = Path(__file__).parents[2]

PYTHON = "/usr/bin/python3"
"""An interpreter that every account may run, unlike one in root's home."""

PATH = "/usr/local/bin:/usr/bin:/bin"

TIMEOUT = 240
"""Seconds for each command; installing the program takes longest."""


@dataclass
class Account:
    """A Unix user, who has a home folder and commands to run."""

    name: str
    home: Path
    uid: int
    gid: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a login."""
        path = f"{self.home}/.local/bin:{PATH}"
        return {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "PATH": path, "LANG": "C.UTF-8"}

    def start(
        self,
        command: str,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        stderr: int = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        """Run a line of a shell that is given up to its end, in the home or another folder."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            cwd=folder or self.home,
            env={**self.environment, **(variables or {})},
        )
        self.processes.append(process)
        return process

    def run(self, command: str, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
        """Run a line of a shell to its end; return its output, or fail with it."""
        process = self.start(command, folder, variables)
        said, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, f"{command}:\n{said}"
        return said

    def run_in_terminal(self, command: str, typed: str) -> str:
        """Run a line of a shell in a terminal with input from its keyboard; return what the terminal shows."""
        # It is util-linux's, which gives the command a terminal and reads keys from its own stdin.
        process = self.start(f"script --quiet --return --command {shlex.quote(command)} /dev/null")
        said, _ = process.communicate(typed, timeout=TIMEOUT)
        assert process.returncode == 0, f"{command}:\n{said}"
        return said

    def own(self, path: Path) -> None:
        """Make a file or a folder the account's own."""
        os.chown(path, self.uid, self.gid)

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        """Write a file below the home, with its folders."""
        path = self.home / name
        for folder in reversed([folder for folder in path.parents if folder.is_relative_to(self.home)]):
            if not folder.exists():
                folder.mkdir(0o700)
                self.own(folder)
        path.touch(mode)
        path.write_text(text)
        self.own(path)
        return path

    def stop(self) -> None:
        """End the processes that are left, and what these leave behind."""
        for process in self.processes:
            process.terminate()
            process.communicate(timeout=60)
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == self.uid:
                    os.kill(int(folder.name), signal.SIGKILL)


@dataclass
class Machines:
    """The box, and the laptop, whose ssh knows the box by the name `box`."""

    box: Account
    laptop: Account
    folder: Path


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return what a process prints, up to the line with these words; kill it when it does not say them."""
    assert process.stdout is not None
    watchdog = threading.Timer(TIMEOUT, process.kill)
    watchdog.start()
    said = ""
    try:
        for line in process.stdout:
            said += line
            if words in line:
                return said
    finally:
        watchdog.cancel()
    raise AssertionError(f"no {words!r} in:\n{said}")


@contextmanager
def two_accounts() -> Iterator[Machines]:
    """Make the accounts and start the sshd; remove both in the end. Skips the test where that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("only root may make accounts")
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    missing = [program for program in ("useradd", "userdel", "ssh", "ssh-keygen") if shutil.which(program) is None]
    if sshd is None or missing:
        pytest.skip("sshd is not installed; in Debian: apt-get install openssh-server openssh-client")
    if subprocess.run([PYTHON, "-c", "import ensurepip"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip(f"{PYTHON} can make no virtual environment; in Debian: apt-get install python3-venv")
    # Not pytest's folder, which is root's alone.
    folder = Path(tempfile.mkdtemp(prefix="acp-gateway-", dir="/var/tmp"))
    folder.chmod(0o755)
    accounts: list[Account] = []
    try:
        accounts += [_make_account(kind, folder) for kind in ("box", "laptop")]
        box, laptop = accounts
        with _sshd(sshd, folder) as port:
            _let_in(box, laptop, port)
            yield Machines(box, laptop, folder)
    finally:
        for account in accounts:
            account.stop()
            subprocess.run(["userdel", "--force", account.name], stderr=subprocess.DEVNULL, check=True)
        shutil.rmtree(folder)


def _make_account(kind: str, folder: Path) -> Account:
    name = f"acpgw-{kind}-{secrets.token_hex(3)}"
    home = folder / kind
    # Without files of a skeleton: an account whose shell reads nothing.
    command = ["useradd", "--home-dir", str(home), "--no-user-group", "--shell", "/bin/sh", name]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=True)
    # Without a password an account counts as locked, for ssh keys as well.
    subprocess.run(["usermod", "--password", "*", name], stderr=subprocess.DEVNULL, check=True)
    uid, gid = (int(subprocess.check_output(["id", option, name])) for option in ("-u", "-g"))
    home.mkdir(0o755)
    account = Account(name, home, uid, gid)
    account.own(home)
    return account


@contextmanager
def _sshd(program: str, folder: Path) -> Iterator[int]:
    """Start sshd at a port of loopback, and yield the port."""
    Path("/run/sshd").mkdir(0o755, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")], check=True)
    port = free_port()
    settings = [
        *(f"HostKey={folder}/host_key", "UsePAM=no", "PasswordAuthentication=no", "PidFile=none"),
        f"ListenAddress=127.0.0.1:{port}",
    ]
    options = [part for setting in settings for part in ("-o", setting)]
    process = subprocess.Popen(
        [program, "-D", "-e", "-f", "/dev/null", *options], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "Server listening" in line:
                break
        else:
            raise AssertionError("sshd has not started")
        yield port
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def _let_in(box: Account, laptop: Account, port: int) -> None:
    """Give the laptop a key that the box accepts, and the box's host key: what two people have who use ssh already."""
    (laptop.home / ".ssh").mkdir(0o700)
    laptop.own(laptop.home / ".ssh")
    laptop.run("ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519")
    box.write(".ssh/authorized_keys", (laptop.home / ".ssh" / "id_ed25519.pub").read_text())
    host = f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  StrictHostKeyChecking accept-new\n"
    laptop.write(".ssh/config", host)
    laptop.run(f"ssh {box.name}@box true")


def give_checkout(account: Account) -> Path:
    """Copy the files of this checkout that git knows into an account's home, as a clone has them."""
    checkout = account.home / "acp-gateway"
    listed = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    for path in (checkout, *checkout.rglob("*")):
        account.own(path)
    return checkout


def install_as_pipx(account: Account, folder: Path) -> None:
    """Install a checkout as `pipx install` does: in an environment of its own, with a link to its command."""
    account.run(f"{PYTHON} -m venv environment")
    # Where packages come from is this machine's own affair.
    index = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    account.run(f"{account.home}/environment/bin/pip install --quiet {folder}", variables=index)
    account.write(".local/bin/README", "links to commands\n")
    (account.home / ".local" / "bin" / "acp-gateway").symlink_to(account.home / "environment" / "bin" / "acp-gateway")
