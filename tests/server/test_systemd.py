"""Socket activation and notifications of systemd, and the settings of the units."""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.config.addresses import Address, parse_address
from acp_gateway.config.agent_options import AgentSection
from acp_gateway.errors import ConfigError
from acp_gateway.server import systemd as systemd_module
from acp_gateway.server.systemd import STATUS_INTERVAL, Notifier, describe, fits, take_sockets
from tests.kit.machine import needs_ipv6

FIRST = 500
"""The descriptor that stands for the first that systemd hands over, because those are in use in this process."""


EVERYWHERE = "0.0.0.0"  # noqa: S104 - for a moment, without serving


# Sockets that are handed over


class Handover:
    """The environment and the descriptors of a socket-activated process."""

    def __init__(self) -> None:
        self.environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0", "PATH": "/bin"}
        self._count = 0

    def add(self, file: socket.socket | int) -> None:
        """Hand over another one."""
        descriptor = file if isinstance(file, int) else file.fileno()
        os.dup2(descriptor, FIRST + self._count, inheritable=True)
        self._count += 1
        self.environment["LISTEN_FDS"] = str(self._count)

    def close(self) -> None:
        """Close the sockets that were not taken."""
        for descriptor in range(FIRST, FIRST + self._count):
            try:
                os.close(descriptor)
            except OSError:
                pass  # It was taken, and closed by its taker.


@pytest.fixture
def handover(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handover]:
    monkeypatch.setattr(systemd_module, "FIRST_DESCRIPTOR", FIRST)
    handover = Handover()
    yield handover
    handover.close()


def listening(host: str, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    return socket.create_server((host, 0), family=family)


def test_sockets_are_taken_in_their_order_and_no_child_gets_them_or_hears_of_them(
    handover: Handover, tmp_path: Path
) -> None:
    with listening("127.0.0.1") as first, socket.socket(socket.AF_UNIX) as second:
        second.bind(str(tmp_path / "socket"))
        second.listen()
        handover.add(first)
        handover.add(second)
        handover.environment["LISTEN_FDNAMES"] = "a:b"
        taken = take_sockets(handover.environment)
        assert [sock.getsockname() for sock in taken] == [first.getsockname(), second.getsockname()]
    assert [sock.family for sock in taken] == [socket.AF_INET, socket.AF_UNIX]
    assert not any(sock.get_inheritable() for sock in taken)
    assert handover.environment == {"PATH": "/bin"}
    for sock in taken:
        sock.close()


def test_a_process_that_was_started_otherwise_has_no_sockets() -> None:
    assert take_sockets({}) == []


def test_what_was_meant_for_another_process_is_not_taken(handover: Handover) -> None:
    with listening("127.0.0.1") as sock:
        handover.add(sock)
        handover.environment["LISTEN_PID"] = "1"
        assert take_sockets(handover.environment) == []
    assert handover.environment == {"PATH": "/bin"}


@pytest.mark.parametrize("count", ["", "-1", "x", "1e3", "٣", "100000"])
def test_a_malformed_number_of_sockets_is_an_error(count: str, handover: Handover) -> None:
    handover.environment["LISTEN_FDS"] = count
    with pytest.raises(ConfigError, match="LISTEN_FDS: expected a number of sockets, found"):
        take_sockets(handover.environment)


def test_what_is_not_a_socket_is_an_error_that_names_it(handover: Handover) -> None:
    with open(os.devnull) as file:
        handover.add(file.fileno())
    handover.environment["LISTEN_FDNAMES"] = "web"
    with pytest.raises(ConfigError, match=rf"LISTEN_FDS: descriptor {FIRST} \(web\) is not a socket"):
        take_sockets(handover.environment)


def test_a_descriptor_that_is_not_there_is_an_error(handover: Handover) -> None:
    handover.environment["LISTEN_FDS"] = "1"
    with pytest.raises(ConfigError, match=rf"descriptor {FIRST} \(without a name\) bad file descriptor"):
        take_sockets(handover.environment)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_that_does_not_listen_is_an_error_that_says_what_the_unit_needs(
    kind: socket.SocketKind, handover: Handover
) -> None:
    with socket.socket(socket.AF_INET, kind) as sock:
        handover.add(sock)
        with pytest.raises(ConfigError, match=r"does not listen; .* ListenStream= alone, and Accept=no"):
            take_sockets(handover.environment)


def at(sock: socket.socket, url: str) -> Address:
    """The address of a URL with the port of a socket."""
    return parse_address(url.replace("PORT", str(sock.getsockname()[1])))


@pytest.mark.parametrize(
    ("host", "url", "answer"),
    [
        ("127.0.0.1", "wss://127.0.0.1:PORT", True),
        ("127.0.0.1", "tcp://127.0.0.1:PORT", True),
        ("127.0.0.1", "ws://localhost:PORT", True),
        ("127.0.0.1", "ws://no-such-host.invalid:PORT", False),
        ("127.0.0.1", "ws://127.0.0.2:PORT", False),
        ("127.0.0.1", "ws://127.0.0.1:0", False),
        ("127.0.0.1", "ws://127.0.0.1:1", False),
        ("127.0.0.1", "wss://0.0.0.0:PORT", False),
        ("127.0.0.1", "unix:///run/socket", False),
        (EVERYWHERE, "wss://0.0.0.0:PORT", True),
        (EVERYWHERE, "wss://127.0.0.1:PORT", False),
        (EVERYWHERE, "wss://[::]:PORT", False),
    ],
)
def test_a_socket_fits_the_address_that_it_listens_at(host: str, url: str, answer: bool) -> None:
    with listening(host) as sock:
        assert fits(sock, at(sock, url)) is answer


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "both", "url", "answer"),
    [
        ("::1", False, "wss://[::1]:PORT", True),
        ("::1", False, "wss://[0:0:0:0:0:0:0:1]:PORT", True),
        ("::1", False, "wss://127.0.0.1:PORT", False),
        ("::", False, "wss://[::]:PORT", True),
        ("::", False, "wss://0.0.0.0:PORT", False),
        ("::", True, "wss://[::]:PORT", True),
        ("::", True, "wss://0.0.0.0:PORT", True),
        ("::", True, "wss://[::1]:PORT", False),
        ("::", True, "wss://127.0.0.1:PORT", False),
    ],
)
def test_a_socket_for_both_families_fits_all_addresses_of_either(host: str, both: bool, url: str, answer: bool) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=both) as sock:
        assert fits(sock, at(sock, url)) is answer


def test_a_unix_socket_fits_its_path_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "real" / "socket"))
        assert fits(sock, parse_address(f"unix://{tmp_path}/real/socket"))
        assert fits(sock, parse_address(f"unix://{tmp_path}/link/socket"))
        assert not fits(sock, parse_address(f"unix://{tmp_path}/real/other"))
        assert not fits(sock, parse_address("tcp://127.0.0.1:7443"))
        assert describe(sock) == f"unix://{tmp_path}/real/socket"


def test_a_unix_socket_without_a_file_fits_nothing() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("\0acp-gateway-test")
        assert not fits(sock, parse_address("unix:///acp-gateway-test"))
        assert describe(sock) == "the abstract unix socket b'\\x00acp-gateway-test'"


def test_a_socket_is_described_by_its_address() -> None:
    with listening("127.0.0.1") as sock:
        assert describe(sock) == f"127.0.0.1:{sock.getsockname()[1]}"


# How the gateway is doing


class Manager:
    """A service manager that reads what it is told."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + place[1:] if place.startswith("@") else place)
        self._socket.setblocking(False)

    def told(self) -> list[str]:
        """Return the notifications since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    yield manager
    manager.close()


@contextmanager
def notifying(**environment: str) -> Iterator[Notifier]:
    notifier = Notifier(environment)
    yield notifier
    notifier.close()


def test_a_manager_is_told_of_the_beginning_of_a_reload_and_of_the_end(manager: Manager) -> None:
    before = time.monotonic_ns() // 1000
    with notifying(NOTIFY_SOCKET=manager.place) as notifier:
        notifier.ready()
        notifier.reloading()
        notifier.ready()
        notifier.stopping()
    ready, reloading, again, stopping = manager.told()
    assert (ready, again, stopping) == ("READY=1", "READY=1", "STOPPING=1\nSTATUS=stopping")
    event, microseconds = reloading.split("\nMONOTONIC_USEC=")
    assert event == "RELOADING=1"
    assert before <= int(microseconds) <= time.monotonic_ns() // 1000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these")
def test_the_socket_of_a_manager_may_be_an_abstract_one() -> None:
    manager = Manager(f"@acp-gateway-test-{os.getpid()}")
    with notifying(NOTIFY_SOCKET=manager.place) as notifier:
        notifier.ready()
    assert manager.told() == ["READY=1"]
    manager.close()


def test_no_child_hears_of_the_manager(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.place, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "PATH": "/bin"}
    Notifier(environment).close()
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("place", ["", "vsock:2:9999", "relative"])
async def test_where_no_manager_wants_to_know_nothing_is_said(place: str, caplog: pytest.LogCaptureFixture) -> None:
    with notifying(NOTIFY_SOCKET=place, WATCHDOG_USEC="1000000") as notifier:
        notifier.ready()
        await notifier.run(lambda: "fine")
        notifier.stopping()
    assert caplog.records == []


async def test_the_watchdog_gets_a_sign_of_life_twice_in_its_time(manager: Manager, autojump_clock: MockClock) -> None:
    with notifying(NOTIFY_SOCKET=manager.place, WATCHDOG_USEC="4000000", WATCHDOG_PID=str(os.getpid())) as notifier:
        with trio.move_on_after(9):
            await notifier.run(lambda: "fine")
    assert manager.told().count("WATCHDOG=1") == 5


@pytest.mark.parametrize(
    "watchdog", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}]
)
async def test_a_watchdog_without_an_interval_or_of_another_process_gets_no_notifications(
    watchdog: dict[str, str], manager: Manager, autojump_clock: MockClock
) -> None:
    with notifying(NOTIFY_SOCKET=manager.place, **watchdog) as notifier, trio.move_on_after(9):
        await notifier.run(lambda: "fine")
    assert manager.told() == ["STATUS=fine"]


async def test_the_state_is_shown_when_it_has_changed_and_not_too_often(
    manager: Manager, autojump_clock: MockClock
) -> None:
    states = iter(["one", "one", "two", "three"])
    times = []

    def state() -> str:
        times.append(trio.current_time())
        return next(states)

    with notifying(NOTIFY_SOCKET=manager.place) as notifier, trio.move_on_after(3.5 * STATUS_INTERVAL):
        await notifier.run(state)
    assert manager.told() == ["STATUS=one", "STATUS=two", "STATUS=three"]
    assert {round(later - earlier, 6) for earlier, later in pairwise(times)} == {STATUS_INTERVAL}


def test_a_manager_that_is_gone_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with notifying(NOTIFY_SOCKET=str(tmp_path / "none")) as notifier:
        notifier.ready()
        notifier.stopping()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "cannot tell the service manager READY=1: No such file or directory"
    ]


async def test_a_manager_that_reads_nothing_does_not_hold_the_gateway_up(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(systemd_module, "TIMEOUT", 0.01)
    with notifying(NOTIFY_SOCKET=manager.place) as notifier:
        for _ in range(10_000):
            notifier.ready()
            if caplog.records:
                break
        notifier.stopping()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot tell the service manager READY=1: it takes too long"
    ]


# The units


UNITS = Path(__file__).parents[2] / "systemd"

USER_UNIT = "acp-gateway.service"
SYSTEM_UNIT = "acp-gateway@.service"
USER_SOCKET = "acp-gateway.socket"
SYSTEM_SOCKET = "acp-gateway@.socket"

BREAKS_AGENTS = [
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHome",
    "ProtectSystem",
    "PrivateTmp",
    "PrivateNetwork",
    "RestrictNamespaces",
    "SystemCallFilter",
    "ProtectKernelTunables",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectControlGroups",
    "ProtectHostname",
]

every_unit = pytest.mark.parametrize("unit", [USER_UNIT, SYSTEM_UNIT])
every_socket = pytest.mark.parametrize("unit", [USER_SOCKET, SYSTEM_SOCKET])


def settings(unit: str) -> dict[str, str]:
    """The settings of a unit, by name; none is set twice in ours."""
    found: dict[str, str] = {}
    for line in (UNITS / unit).read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            name, equals, value = line.partition("=")
            assert equals, line
            assert name not in found, line
            found[name] = value
    return found


def comments(unit: str) -> str:
    lines = (UNITS / unit).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("#"))


def verify(unit: str, text: str, directory: Path) -> str:
    """Return the messages of systemd about a unit with this text, without the gateway installed."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    # A socket's unit is nothing without the service's.
    for name, content in ((unit.replace(".socket", ".service"), ""), (unit, text)):
        content = content or (UNITS / name).read_text(encoding="utf-8")
        runnable = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", content, flags=re.MULTILINE)
        (directory / name).write_text(runnable, encoding="utf-8")
    copy = directory / unit
    scope = "--user" if unit in (USER_UNIT, USER_SOCKET) else "--system"
    ended = subprocess.run(
        [analyze, scope, "verify", "--man=no", "--recursive-errors=no", str(copy)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(directory), "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stderr + ended.stdout + (f"exit {ended.returncode}" if ended.returncode else "")


@every_unit
def test_systemd_finds_nothing_wrong(unit: str, tmp_path: Path) -> None:
    assert verify(unit, (UNITS / unit).read_text(encoding="utf-8"), tmp_path) == ""


@every_socket
def test_systemd_finds_nothing_wrong_with_a_socket(unit: str, tmp_path: Path) -> None:
    assert verify(unit, (UNITS / unit).read_text(encoding="utf-8"), tmp_path) == ""


@every_unit
def test_systemd_would_find_a_misspelt_setting(unit: str, tmp_path: Path) -> None:
    text = (UNITS / unit).read_text(encoding="utf-8").replace("KillMode=", "KilMode=")

    assert "KilMode" in verify(unit, text, tmp_path)


@every_unit
def test_systemd_accepts_the_settings_that_the_readme_suggests_for_sudo(unit: str, tmp_path: Path) -> None:
    suggestion = re.search(r"```ini\n(.*?)```", (UNITS / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert suggestion is not None

    assert verify(unit, (UNITS / unit).read_text(encoding="utf-8") + suggestion[1], tmp_path) == ""


@every_unit
def test_what_breaks_agents_is_not_set_and_the_reason_is_given(unit: str) -> None:
    assert not set(BREAKS_AGENTS) & set(settings(unit))
    assert not [name for name in BREAKS_AGENTS if name not in comments(unit)]


@every_unit
@pytest.mark.parametrize("name", ["NoNewPrivileges", "RestrictSUIDSGID", "RestrictRealtime", "LockPersonality"])
def test_what_agents_bear_is_set(unit: str, name: str) -> None:
    assert settings(unit)[name] == "yes"


def test_the_system_unit_leaves_no_capability() -> None:
    assert settings(SYSTEM_UNIT)["CapabilityBoundingSet"] == ""
    assert settings(SYSTEM_UNIT)["AmbientCapabilities"] == ""


@every_unit
def test_files_are_for_the_user_alone(unit: str) -> None:
    assert settings(unit)["UMask"] == "0077"


@every_unit
def test_the_gateway_ends_its_agents_before_systemd_kills_them(unit: str) -> None:
    agent = AgentSection(command=("x",))
    assert settings(unit)["KillMode"] == "mixed"
    assert float(settings(unit)["TimeoutStopSec"]) >= 2 * (agent.eof_grace + agent.term_grace)


@every_unit
def test_a_configuration_error_is_not_tried_again(unit: str) -> None:
    assert settings(unit)["Restart"] == "on-failure"
    assert settings(unit)["RestartPreventExitStatus"] == "2 3"


@every_unit
def test_restarts_stay_below_the_start_limit(unit: str) -> None:
    default_interval, default_burst = 10, 5

    assert float(settings(unit)["RestartSec"]) > default_interval / default_burst


@every_unit
def test_a_compiler_killed_for_its_memory_does_not_stop_the_gateway(unit: str) -> None:
    assert settings(unit)["OOMPolicy"] == "continue"


def test_the_user_unit_starts_what_pipx_and_uv_install() -> None:
    assert settings(USER_UNIT)["ExecStart"] == "%h/.local/bin/acp-gateway serve"
    assert settings(USER_UNIT)["Environment"].startswith("PATH=%h/.local/bin:")


def test_the_system_unit_runs_as_the_user_it_is_named_after() -> None:
    assert settings(SYSTEM_UNIT)["User"] == "%i"
    assert settings(SYSTEM_UNIT)["ExecStart"] == "/usr/local/bin/acp-gateway serve"


@pytest.mark.parametrize("credential", ["agent.env", "key.pem"])
def test_the_system_unit_shows_how_to_hand_over_secrets(credential: str) -> None:
    assert f"#LoadCredential={credential}:/etc/acp-gateway/%i/{credential}" in comments(SYSTEM_UNIT)
    assert f'"credential:{credential}"' in comments(SYSTEM_UNIT)


@every_unit
def test_the_gateway_itself_says_when_it_is_ready_and_that_it_lives(unit: str) -> None:
    assert settings(unit)["Type"] == "notify"
    assert settings(unit)["NotifyAccess"] == "main"
    assert float(settings(unit)["WatchdogSec"]) > 0


@every_unit
def test_a_reload_is_a_hangup(unit: str) -> None:
    assert settings(unit)["ExecReload"] == "/bin/kill -HUP $MAINPID"


@every_unit
def test_the_unit_limits_descriptors_of_agents_and_forbids_core_dumps(unit: str) -> None:
    soft, hard = settings(unit)["LimitNOFILE"].split(":")
    assert int(soft) == 1024
    assert int(hard) > 4096, "the gateway has room for max_connections"
    assert settings(unit)["LimitCORE"] == "0"


@every_socket
def test_a_socket_that_is_a_file_is_for_the_user_alone(unit: str) -> None:
    assert settings(unit)["SocketMode"] == "0600"
    assert settings(unit).get("SocketUser") == ("%i" if unit == SYSTEM_SOCKET else None)
    assert "Accept" not in settings(unit)


@pytest.mark.parametrize("unit", [USER_UNIT, SYSTEM_UNIT, USER_SOCKET, SYSTEM_SOCKET])
def test_the_readme_tells_how_to_install_the_unit(unit: str) -> None:
    assert re.search(
        rf"acp-gateway files {re.escape(unit)} --to \S+", (UNITS / "README.md").read_text(encoding="utf-8")
    )
