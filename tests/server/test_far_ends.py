"""Connections to a loopback port by programs, tunnels and containers, as this machine's kernel tells of them."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.doubles import TIMEOUT
from tests.kit.other_user import IS_ROOT, POWERLESS, ROOT, identity, only_root, runnable_by_others

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells who connected")

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

LISTENS = """
import os, socket, sys
from acp_gateway.server.local_peer import Place, identify
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        accepted, _ = listener.accept()
        with accepted:
            if accepted.recv(1):
                ours, peer = (Place(*name) for name in (accepted.getsockname(), accepted.getpeername()))
                print(identify(ours, peer, os.geteuid()).refusal or "let in", flush=True)
"""
"""A gateway, as far as it looks at connections that have sent something."""

CONNECTS = """
import os, socket, sys
port, *users = map(int, sys.argv[1:])
for user in users:
    os.setuid(user)
with socket.create_connection(("127.0.0.1", port)) as connection:
    connection.sendall(b"x")
    connection.recv(1)
"""
"""A program that connects, as another user if it is told one."""

FROM_OUTSIDE = """
import ctypes, fcntl, os, socket, struct, subprocess, sys
near, far = socket.socketpair()
if os.fork() == 0:
    port = far.recv(2)
    with socket.socket(fileno=socket.recv_fds(far, 1, 1)[1][0]) as connection:
        connection.connect(("127.0.0.1", int.from_bytes(port, "big")))
        connection.sendall(b"x")
        connection.recv(1)
    os._exit(0)
users, networks = 0x10000000, 0x40000000
if ctypes.CDLL(None).unshare(networks if os.geteuid() == 0 else users | networks):
    sys.exit("no namespace")
with socket.socket() as inside:
    up = struct.pack("16sH14x", b"lo", 1)
    fcntl.ioctl(inside, 0x8914, up)
    with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE) as gateway:
        near.send(int(gateway.stdout.readline()).to_bytes(2, "big"))
        socket.send_fds(near, [b"x"], [inside.fileno()])
        print(gateway.stdout.readline().decode(), end="")
        gateway.kill()
"""
"""A container with a gateway, and a process that stays outside and connects by a socket made inside, as tools for
containers do for a published port."""


class Gateway:
    """A process that tells of each connection who is at its other end."""

    def __init__(self, stack: ExitStack, user: int) -> None:
        self.user = user
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="agf-")))
        if IS_ROOT:
            os.chown(self.folder, user, user)
        self._programs = runnable_by_others()
        self._process = stack.enter_context(self.start([self._programs.python, "-c", LISTENS]))
        stack.callback(self._process.kill)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def connecting(self, *users: int) -> list[str]:
        """Return the command of a program that connects, after it has become each of these users."""
        return [self._programs.python, "-c", CONNECTS, *map(str, (self.port, *users))]

    def start(self, command: list[str], user: int | None = None) -> subprocess.Popen[str]:
        """Start a program, as the gateway's user or another one."""
        return subprocess.Popen(
            command,
            cwd=self._programs.checkout,
            env={"PATH": PATH, "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **identity(self.user if user is None else user),
        )

    def run(self, command: list[str], user: int | None = None) -> None:
        """Run a program to its end."""
        with self.start(command, user) as process:
            output, _ = process.communicate()
        if "Permission denied (publickey" in output:
            pytest.skip("sshd that is not root's lets this account not log in")
        assert process.returncode == 0, output

    def connected(self, connect: Callable[[], None]) -> str:
        """Return the judgement of a connection that `connect` makes."""
        connect()
        # Where the tunnel has made none, this one is judged, and the test fails instead of waiting.
        with socket.create_connection(("127.0.0.1", self.port)) as direct:
            direct.sendall(b"x")
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def send_by(path: str, message: bytes = b"x") -> None:
    """Send something by the socket of a tunnel, and wait until that answers or closes."""
    with socket.socket(socket.AF_UNIX) as near:
        near.settimeout(TIMEOUT)
        near.connect(path)
        near.sendall(message)
        near.recv(1)


@pytest.fixture(params=[os.geteuid(), POWERLESS] if IS_ROOT else [os.geteuid()], ids=str)
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with ExitStack() as stack:
        yield Gateway(stack, request.param)


def needed(*programs: str) -> list[str]:
    """Return the paths of programs; skip the test without one."""
    found = [shutil.which(program, path=PATH) for program in programs]
    if None in found:
        pytest.skip(f"{' or '.join(programs)} is not installed")
    return [path for path in found if path is not None]


def test_a_program_of_the_gateways_user_is_let_in(gateway: Gateway) -> None:
    assert gateway.connected(lambda: gateway.run(gateway.connecting())) == "let in"


@only_root
def test_a_program_of_another_user_is_not_let_in(gateway: Gateway) -> None:
    other = POWERLESS - gateway.user
    assert gateway.connected(lambda: gateway.run(gateway.connecting(), other)) == "it belongs to another user"


@only_root
def test_a_program_that_became_the_gateways_user_is_not_let_in() -> None:
    with ExitStack() as stack:
        gateway = Gateway(stack, POWERLESS)
        program = gateway.connecting(POWERLESS)
        assert gateway.connected(lambda: gateway.run(program, 0)) == "its process can't be found"


@pytest.fixture
def ssh(gateway: Gateway) -> Iterator[list[str]]:
    """A command that logs in as the gateway's user by a real sshd, which it starts itself."""
    keygen, sshd, program = needed("ssh-keygen", "sshd", "ssh")
    try:
        user = pwd.getpwuid(gateway.user).pw_name
    except KeyError:
        pytest.skip(f"ssh refuses a user without an entry in the password database: {gateway.user}")
    if IS_ROOT:
        Path("/run/sshd").mkdir(0o755, exist_ok=True)
    for name in ("host", "own"):
        gateway.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", f"{gateway.folder}/{name}"])
    settings = ("UsePAM no", "StrictModes no", "PermitRootLogin yes", f"HostKey {gateway.folder}/host")
    (gateway.folder / "sshd").write_text("\n".join((*settings, f"AuthorizedKeysFile {gateway.folder}/own.pub\n")))
    options = [
        *("BatchMode=yes", "StrictHostKeyChecking=no", f"UserKnownHostsFile={gateway.folder}/known"),
        *(f"ProxyCommand={sshd} -i -f {gateway.folder}/sshd", "ExitOnForwardFailure=yes"),
        f"ControlPath={gateway.folder}/control",
    ]
    command = [program, "-F", "none", "-i", f"{gateway.folder}/own", "-l", user]
    command += [part for option in options for part in ("-o", option)]
    yield command
    if (gateway.folder / "control").exists():
        gateway.run([*command, "-O", "exit", "box"], os.geteuid())


@pytest.mark.parametrize("sshd_is", ["of root", "of the user"])
def test_a_port_that_sshd_forwards_is_not_let_in(sshd_is: str, gateway: Gateway, ssh: list[str]) -> None:
    if sshd_is == "of root" and not IS_ROOT:
        pytest.skip("only root starts it as root")
    path = f"{gateway.folder}/socket"
    user = 0 if sshd_is == "of root" else gateway.user
    gateway.run([*ssh, "-M", "-f", "-N", "-L", f"{path}:127.0.0.1:{gateway.port}", "box"], user)
    refusal = gateway.connected(lambda: send_by(path))
    if user == gateway.user:
        assert refusal in ("sshd passes connections on for others", "sshd-session passes connections on for others")
    else:
        assert refusal == "its process can't be found"


def test_a_port_that_ssh_forwards_is_not_let_in(gateway: Gateway, ssh: list[str]) -> None:
    path = f"{gateway.folder}/socket"
    gateway.run([*ssh, "-M", "-f", "-N", "-R", f"{path}:127.0.0.1:{gateway.port}", "box"])
    assert gateway.connected(lambda: send_by(path)) == "ssh passes connections on for others"


def test_what_socat_passes_on_is_not_let_in(gateway: Gateway) -> None:
    (socat,) = needed("socat")
    path = f"{gateway.folder}/socket"
    with gateway.start([socat, "-d", "-d", f"UNIX-LISTEN:{path}", f"TCP:127.0.0.1:{gateway.port}"]) as process:
        assert process.stdout is not None
        while "listening" not in process.stdout.readline():
            pass
        refusal = gateway.connected(lambda: send_by(path))
    assert refusal in ("socat passes connections on for others", "socat1 passes connections on for others")


OF_HAPROXY = """
listen gateway
    mode tcp
    timeout connect 9s
    timeout client 9s
    timeout server 9s
    bind unix@{folder}/socket
    server gateway 127.0.0.1:{port}
"""

OF_NGINX = """
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/1;
    proxy_temp_path {folder}/2;
    fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4;
    scgi_temp_path {folder}/5;
    server {{
        listen unix:{folder}/socket;
        location / {{
            proxy_pass http://127.0.0.1:{port};
        }}
    }}
}}
"""


@pytest.mark.parametrize("program", ["haproxy", "nginx"])
def test_a_proxy_is_not_let_in(program: str, gateway: Gateway) -> None:
    (path,) = needed(program)
    folder = gateway.folder
    text = {"haproxy": OF_HAPROXY, "nginx": OF_NGINX}[program].format(folder=folder, port=gateway.port)
    if program == "nginx" and gateway.user == 0:
        # Its workers are of another user otherwise.
        text = "user root;" + text
    (folder / "settings").write_text(text)
    # Both return when they listen.
    gateway.run(
        {
            "haproxy": [path, "-q", "-D", "-f", f"{folder}/settings", "-p", f"{folder}/pid"],
            "nginx": [path, "-q", "-e", f"{folder}/log", "-c", f"{folder}/settings"],
        }[program]
    )
    try:
        refusal = gateway.connected(lambda: send_by(f"{folder}/socket", b"GET / HTTP/1.0\r\n\r\n"))
    finally:
        os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    assert refusal == f"{program} passes connections on for others"


def test_a_program_in_a_container_with_the_gateways_network_is_not_let_in(gateway: Gateway) -> None:
    (unshare,) = needed("unshare")
    spaces = [unshare, "--pid", "--fork", *(() if gateway.user == 0 else ("--user",))]
    if subprocess.run([*spaces, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user can make no namespace")
    program = [*spaces, *gateway.connecting()]
    assert gateway.connected(lambda: gateway.run(program)) == "its process is in a container"


def test_a_program_outside_of_the_gateways_network_is_not_let_in() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FROM_OUTSIDE, LISTENS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "no namespace" in done.stderr:
        pytest.skip("this user can make no namespace")
    # Root looks into all processes; a user in a namespace only into those in it.
    reason = "is in a container" if IS_ROOT else "can't be found"
    assert (done.stdout, done.stderr) == (f"its process {reason}\n", "")
