"""A hostile agent tries to get out of its fence, by each means that the machine has, and without a fence."""

import ctypes
import json
import os
import platform
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.fence.plan import Fence, FenceOptions, Network, Wanted, plan
from acp_gateway.fence.start import Start, fenced
from tests.kit.free_ports import free_port
from tests.kit.other_user import POWERLESS, ROOT, identity, only_root, runnable_by_others

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="fences are Linux's, and the system calls here have the numbers of x86-64",
)

MEMORY = Path("/dev/shm")

HOSTILE = Path(__file__).parent.parent / "agents" / "hostile_agent.py"

VICTIM = """
import ctypes, json, os, socket, sys
folder, abstract, secret = sys.argv[1:]
file = open(folder + "/secret")
with open(os.environ["TMPDIR"] + "/secret", "w") as temporary:
    temporary.write("the secret")
memory = ctypes.create_string_buffer(b"the secret")
os.chdir(folder)
streams = [socket.socket(socket.AF_UNIX) for _ in range(2)]
for stream, address in zip(streams, ("socket", chr(0) + abstract)):
    stream.bind(address)
    stream.listen(100)
named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
named.bind(chr(0) + abstract + "-datagrams")
server = socket.create_server(("127.0.0.1", 0))
received = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
received.bind(("127.0.0.1", 0))
print(json.dumps({
    "descriptor": file.fileno(),
    "address": ctypes.addressof(memory),
    "port": server.getsockname()[1],
    "datagrams": received.getsockname()[1],
}), flush=True)
sys.stdin.read()
"""
"""A process with a file, memory, sockets and ports, which ends with its stdin."""

OF_NETWORKS = {
    "connect to it by multipath tcp",
    "connect to it with the first bytes",
    "send a datagram to it",
    "listen without naming a port",
}
"""The ways that a list of ports leaves open, with either mechanism, and with Landlock also `network = "off"`."""

NAMED = {
    "landlock": {
        *OF_NETWORKS,
        "change the mode of a file of the gateway",
        "change the times of a file of the gateway",
        "limit another process",
        "read the command of another process",
        "type in the terminal of the user",
        "read a key that the kernel keeps",
        "connect to the socket of the gateway",
        "connect to a socket of docker",
        "connect to a socket of ssh agent",
        "connect to a socket of d bus",
        "share memory with others",
        "slow another process",
    },
    # Root has no user namespace of its own, to which the keys belong.
    "bubblewrap": {*OF_NETWORKS, "read a key that the kernel keeps"} if os.geteuid() == 0 else OF_NETWORKS,
}
"""The ways that a mechanism leaves open with a list of ports, as `docs/fence.md` says."""

IMPOSSIBLE = {
    "enter the mounts of another process",
    "gain privileges by a program",
    "leave the control group",
    "change where core dumps go",
    "change the environment of the gateway",
    "make a device of the memory",
    "mount a folder",
    "mount in namespaces of ones own",
    "unmount what hides",
    "change the root",
    "open by a handle",
    "open by io uring",
    "use a descriptor that was inherited",
    "read the passwords of the machine",
    "change a program of the machine",
    "trace another process",
    "seize another process",
    "read the memory of another process",
    "copy from the memory of another process",
    "take a descriptor of another process",
    "connect to it by multipath tcp",
    "sample another process",
    "read the log of the kernel",
    "go by the root of the first process",
    *([] if os.access(MEMORY, os.W_OK) else ["use shared memory of others"]),
}
"""The ways that may be closed without a fence too, by the kernel or the rights of the user who runs the test."""


class Scene:
    """Places, sockets and a process that a fenced agent must not reach.

    The process is the user's, with the files of the gateway, or another agent, in a fence of its own, with the files
    of its workspace.
    """

    def __init__(self, root: Path, stack: ExitStack, victim: str = "off") -> None:
        self.root = root
        folders = ("work", "state", "other", "readonly", "home/.ssh", "homes/bob", "sockets", "tmp", "state/scratch")
        for folder in folders:
            (root / folder).mkdir(parents=True)
        attacked = "state" if victim == "off" else "other"
        for name in ("secret", "overwritten", "truncated", "removed", "moved", "exchanged"):
            (root / attacked / name).write_text("the secret")
        for place in ("other/secret", "homes/bob/secret", "config.toml", "home/.ssh/id_ed25519", "tmp/mine"):
            (root / place).write_text("the secret")
        for name in ("removed", "shown"):
            (root / "readonly" / name).write_text("")
        self.shm = MEMORY / f"acp-gateway-test-{os.getpid()}"
        if os.access(MEMORY, os.W_OK):
            self.shm.write_text("the secret")
            stack.callback(self.shm.unlink)
        abstract = f"acp-gateway-test-{os.getpid()}"
        # A path of a socket is short; the root of a test is not.
        os.symlink(root, short := Path(f"/tmp/agt-{os.getpid()}"))
        stack.callback(short.unlink)
        for path in ("sockets/docker.sock", "sockets/agent.1", "sockets/bus"):
            self._listen(stack, str(short / path))
        for descriptor in (terminal := os.openpty()):
            stack.callback(os.close, descriptor)
        libc = ctypes.CDLL(None, use_errno=True)
        queue = f"acp-gateway-test-{os.getpid()}"
        os.close(libc.syscall(240, queue.encode(), os.O_CREAT | os.O_RDWR, 0o600, None))
        stack.callback(libc.syscall, 241, queue.encode())
        key = libc.syscall(248, b"user", queue.encode(), b"the secret", 10, -4)
        stack.callback(libc.syscall, 250, 9, key, -4)
        shm_key = 0x41430000 + os.getpid() % 65536
        segment = libc.shmget(shm_key, 4, 0o1600)
        stack.callback(libc.shmctl, segment, 0, None)
        self.order = {
            "work": str(root / "work"),
            "state": str(root / attacked),
            "other": str(root / "other"),
            "readonly": str(root / "readonly"),
            "home": str(root / "home"),
            "other_home": str(root / "homes/bob"),
            "config": str(root / "config.toml"),
            "sockets": str(root / "sockets"),
            "tmp": str(root / "tmp"),
            "in_tmp": "mine",
            "system": "/usr/lib",
            "python": sysconfig.get_path("purelib"),
            "abstract": abstract,
            "network": os.readlink("/proc/self/ns/net"),
            "free": free_port(),
            "terminal": os.ttyname(terminal[1]),
            "queue": queue,
            "shm": shm_key,
            "in_shm": self.shm.name,
            **self._start_victim(stack, victim, [str(root / attacked), abstract]),
        }
        (self.temporary,) = (root / "state/scratch").iterdir()
        self.order["temporary"] = str(self.temporary)

    def _start_victim(self, stack: ExitStack, fence: str, arguments: Sequence[str]) -> dict[str, int]:
        """Start the process, and return what is to be reached of it."""
        command = [sys.executable, "-c", VICTIM, *arguments, "the secret"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), "KEY": "the secret"}
        if fence == "off":
            (temporary := self.root / "state/scratch/victim").mkdir()
            start = Start(sys.executable, command, environment | {"TMPDIR": str(temporary)})
        else:
            options = self._options(fence, {"other": True}, ("config.toml", "homes"), "on")
            start = fenced("victim", sys.executable, command, environment, str(self.root / "other"), options)
        with start.order(os.getpid(), {}) as order:
            launch, variables = start.launched_by(order)
            victim = stack.enter_context(
                subprocess.Popen(
                    launch,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=variables,
                    pass_fds=[order.fileno()],
                    start_new_session=True,
                )
            )
        assert victim.stdout is not None
        told: dict[str, int] = json.loads(victim.stdout.readline())
        # Bubblewrap is the parent of the first process in its namespace, and that of the program.
        pid, children = victim.pid, [victim.pid]
        while children:
            pid = children[0]
            children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return told | {"victim": pid}

    def _options(
        self, value: str, workspaces: Mapping[str, bool], private: Sequence[str], network: Network
    ) -> FenceOptions:
        return FenceOptions(
            value=value,
            workspaces=[(str(self.root / name), writing) for name, writing in workspaces.items()],
            private=[str(self.root / name) for name in private],
            user_home=str(self.root / "home"),
            scratch=str(self.root / "state/scratch"),
            network=network,
        )

    @staticmethod
    def _listen(stack: ExitStack, address: str) -> None:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        listener.listen(100)

    def start(self, value: str, network: Network) -> Start:
        """Return how the hostile agent is started, `value` as `fence` has it, or "off"."""
        command = [sys.executable, str(HOSTILE), json.dumps(self.order)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home")}
        if value == "off":
            return Start(sys.executable, command, environment)
        private = ("state", "config.toml", "homes")
        options = self._options(value, {"work": True, "readonly": False}, private, network)
        return fenced("hostile", sys.executable, command, environment, str(self.root / "work"), options)

    def run(self, value: str, network: Network = "on") -> dict[str, Any]:
        """Run the hostile agent, and return what came of each way."""
        start = self.start(value, network)
        with ExitStack() as stack:
            ends = [*os.pipe(), *os.pipe()]
            for end in ends:
                stack.callback(os.close, end)
            killer = (ends[0], ends[3]) if start.has_killer else None
            order = stack.enter_context(start.order(os.getpid(), {}, killer))
            command, environment = start.launched_by(order)
            done = subprocess.run(
                command,
                pass_fds=[order.fileno(), *(killer or ())],
                env=environment,
                cwd=self.root / "work",
                capture_output=True,
                text=True,
                check=False,
            )
        start.clean_up()
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def reached(found: dict[str, Any]) -> set[str]:
    return {name for name, result in found.items() if result is not None}


def skip_without(*mechanisms: str) -> None:
    if "landlock" in mechanisms and landlock.abi() < landlock.SCOPE_ABI:
        pytest.skip("this kernel's Landlock has no scopes")
    if "bubblewrap" in mechanisms and bubblewrap.find() is None:
        pytest.skip("bubblewrap is not installed, or not allowed")


@pytest.mark.parametrize("network", [(1,), "off"], ids=["ports", "off"])
@pytest.mark.parametrize("by", ["landlock", "bubblewrap"])
def test_no_way_leads_out_of_a_fence_but_those_that_the_docs_name(by: str, network: Network, scene: Scene) -> None:
    skip_without(by)
    found = scene.run(by, network)
    assert len(found) >= 60
    named = NAMED[by] - OF_NETWORKS if (by, network) == ("bubblewrap", "off") else NAMED[by]
    assert reached(found) <= named
    assert list((scene.root / "state/scratch").iterdir()) == [scene.temporary]


@pytest.mark.parametrize("victim", ["landlock", "bubblewrap"])
@pytest.mark.parametrize("by", ["landlock", "bubblewrap"])
def test_no_other_way_leads_to_another_agent_in_a_fence(by: str, victim: str, tmp_path: Path) -> None:
    skip_without(by, victim)
    with ExitStack() as stack:
        assert reached(Scene(tmp_path, stack, victim).run(by, (1,))) <= NAMED[by]


def launched(start: Start, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a program as the launcher starts it."""
    with start.order(os.getpid(), {}) as order:
        command, environment = start.launched_by(order)
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, pass_fds=[order.fileno()], check=False
        )


@pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not installed, or not allowed")
def test_a_workspace_to_read_in_one_to_write_is_not_moved_from_its_fence(scene: Scene) -> None:
    handbook = scene.root / "work/docs/handbook"
    handbook.mkdir(parents=True)
    options = FenceOptions(
        value="bubblewrap",
        workspaces=[(str(scene.root / "work"), True), (str(handbook), False)],
        scratch=str(scene.root / "state/scratch"),
    )
    command = ["mv", str(scene.root / "work/docs"), str(scene.root / "work/moved")]
    start = fenced("mover", "/bin/mv", command, {}, str(scene.root / "work"), options)
    done = launched(start, scene.root / "work")
    start.clean_up()
    assert b"Device or resource busy" in done.stderr
    assert handbook.is_dir()


@pytest.mark.parametrize("moment", ["while it is planned", "before it starts"])
@pytest.mark.parametrize("writing", [True, False], ids=["to write", "to read"])
@pytest.mark.parametrize("by", ["landlock", "bubblewrap"])
def test_a_folder_that_is_exchanged_for_a_link_while_an_agent_starts_opens_nothing(
    by: Literal["landlock", "bubblewrap"], writing: bool, moment: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (landlock.abi() if by == "landlock" else bubblewrap.takes_descriptors(bubblewrap.find() or "false")):
        pytest.skip(f"this machine has no {by} that can")
    shared = scene.root / "work/shared"
    shared.mkdir()

    def exchange() -> None:
        shared.rmdir()
        shared.symlink_to(scene.root / "other")

    def plan_and_exchange(mechanism: Literal["landlock", "bubblewrap"], wanted: Wanted) -> Fence:
        made = plan(mechanism, wanted)
        exchange()
        return made

    if moment == "while it is planned":
        monkeypatch.setattr("acp_gateway.fence.start.plan", plan_and_exchange)
    options = FenceOptions(
        value=by,
        workspaces=[(str(shared), writing), (str(scene.root / "readonly"), False)],
        scratch=str(scene.root / "scratch"),
    )
    command = ["cat", "../work/shared/secret"]
    start = fenced("reader", "/bin/cat", command, {}, str(scene.root / "readonly"), options)
    if moment == "before it starts":
        exchange()
    done = launched(start, scene.root / "readonly")
    start.clean_up()
    assert (done.stdout, done.returncode) == (b"", 1)
    assert (b"Permission denied" if by == "landlock" else b"No such file") in done.stderr


@pytest.mark.parametrize("victim", ["off", "landlock", "bubblewrap"])
def test_without_a_fence_the_same_ways_lead_out(victim: str, tmp_path: Path) -> None:
    skip_without(victim)
    with ExitStack() as stack:
        found = Scene(tmp_path, stack, victim).run("off")
    assert {name for name, result in found.items() if result is None} <= IMPOSSIBLE


@pytest.mark.slow
@only_root
def test_no_other_way_leads_out_for_a_user_who_is_not_root() -> None:
    programs = runnable_by_others()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="agu-") as folder:
        os.chown(folder, POWERLESS, POWERLESS)
        this = programs.checkout / Path(__file__).relative_to(ROOT)
        only = ("-k", "not user_who_is_not_root", "-p", "no:cacheprovider", "--basetemp", f"{folder}/t")
        done = subprocess.run(
            [programs.python, "-m", "pytest", "-q", "-rs", *only, str(this)],
            cwd=programs.checkout,
            env={"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder},
            capture_output=True,
            text=True,
            check=False,
            **identity(POWERLESS),
        )
    assert done.returncode == 0, done.stdout
    if "skipped" in done.stdout:
        pytest.skip(done.stdout)
