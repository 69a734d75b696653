"""The judgements of `ping`: for each fault, the line that names it, the remedy and the exit code."""

import errno
import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from acp_gateway import __version__
from acp_gateway.config.addresses import parse_target
from acp_gateway.diagnosis.checks import Line
from acp_gateway.diagnosis.ping_checks import (
    Refused,
    Silent,
    TlsFacts,
    judge_agent,
    judge_name,
    judge_port,
    judge_session,
    judge_settings,
    judge_ssh,
    judge_tls,
    judge_token,
    skip_session,
)
from acp_gateway.errors import (
    AccessError,
    AgentError,
    ConfigError,
    Forbidden,
    ProtocolError,
    TrustError,
    Unauthorized,
    UnknownAgent,
    Unreachable,
)
from tests.kit.fake_gateway import DESTINATION

BOX = parse_target("box")
HERE = parse_target("127.0.0.1:7443")
SOCKET = parse_target("unix:///run/acp")
SSH = parse_target("ssh://ann@box")
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def of_several(number: int) -> OSError:
    """The error of a name with several addresses, as Trio raises it."""
    error = OSError("all attempts to connect failed")
    error.__cause__ = ExceptionGroup("attempts", [system_error(number)])
    return error


def token(outcome: Any) -> Line:
    return judge_token(outcome, 0.1, NOW)[-1]


def access(**changes: Any) -> dict[str, Any]:
    told = {"credential": "token 0a0a0a0a", "identity": "ann", "role": "controller", "agents": {"demo": "identity"}}
    return told | {"version": __version__} | changes


def no_folder(**data: str) -> Refused:
    return Refused(-32602, "there is no directory /a on box", {"reason": "no_such_directory"} | data)


def outside(**data: Any) -> Refused:
    message = "/a is in no workspace; if it is the path on the client's machine, start the client with --map /a=/srv/p"
    return Refused(-32602, message, {"reason": "outside_workspaces"} | data)


FAULTS: list[tuple[Line, int, str, str]] = [
    # settings
    (judge_settings(ConfigError("it is wrong", file="hosts.toml", line=3), None, 0), 3, "hosts.toml:3", "it is wrong"),
    (judge_settings(Unauthorized("no token: make one with token create"), "box", 0), 4, "no token", "token create"),
    # name
    (judge_name("bxo", socket.gaierror(socket.EAI_NONAME, ""), 0), 6, "no address is known for bxo", "VPN"),
    (judge_name("box", socket.gaierror(socket.EAI_AGAIN, ""), 0), 6, "can't answer for box now", "online"),
    (judge_name("b\udc80", UnicodeError(), 0), 6, "no host can have the name", "hosts.toml"),
    (judge_name("box", Silent(5.0), 0), 6, "no name server answered within 5 s", "online"),
    # port
    (judge_port(BOX, system_error(errno.ECONNREFUSED), 0), 6, "box port 7443 refuses", "ssh box acp-gateway doctor"),
    (judge_port(HERE, system_error(errno.ECONNREFUSED), 0), 6, "refuses", "does not run: acp-gateway doctor"),
    (judge_port(BOX, of_several(errno.ECONNREFUSED), 0), 6, "no program listens there", "start the gateway"),
    (judge_port(BOX, Silent(5.0), 0), 6, "no answer from box port 7443 within 5 s", "firewall"),
    (judge_port(BOX, system_error(errno.ENETUNREACH), 0), 6, "no route to box", "VPN"),
    (judge_port(BOX, system_error(errno.EPERM), 0), 6, "Operation not permitted", "address"),
    (judge_port(SOCKET, system_error(errno.ENOENT), 0), 6, "no such socket", "[[listen]] url"),
    (judge_port(SOCKET, system_error(errno.ECONNREFUSED), 0), 6, "listens there any more", "acp-gateway serve"),
    (judge_port(SOCKET, system_error(errno.EACCES), 0), 6, "another user", "gateway's user"),
    (judge_port(SOCKET, system_error(errno.EIO), 0), 6, "Input/output", "path"),
    # ssh
    (judge_ssh(SSH, AccessError("Permission denied"), 0), 4, "Permission denied", "ssh-copy-id ann@box"),
    (judge_ssh(SSH, ConfigError("not found there"), 0), 3, "not found there", "pair ann@box --install"),
    (judge_ssh(SSH, TrustError("the host key has changed"), 0), 5, "host key", "ssh ann@box"),
    (judge_ssh(SSH, Unreachable("no route"), 0), 6, "no route", "doctor"),
    (judge_ssh(SSH, Unreachable("ssh: connect to host box"), 0), 6, "connect to host", "work first: ssh ann@box"),
    # TLS
    (judge_tls(HERE, TrustError("the key has another pin"), 0, NOW), 5, "another pin", "pin acp-gateway certs show"),
    (judge_tls(BOX, TrustError("the key has another pin"), 0, NOW), 5, "another pin", "certs show"),
    (judge_tls(BOX, ProtocolError("box port 22 does not speak TLS"), 0, NOW), 7, "port 22", "[[listen]]"),
    (judge_tls(BOX, Silent(5.0), 0, NOW), 6, "no TLS handshake with box", "7443"),
    (judge_tls(BOX, Unreachable("connection reset"), 0, NOW), 6, "connection reset", "another program"),
    (judge_tls(BOX, Forbidden("a tunnel to gpu9 needs a token"), 0, NOW), 4, "a tunnel to gpu9", "--role tunnel"),
    # token
    (token(Unauthorized("no valid token")), 4, "no valid token", "acp-gateway pair"),
    (token(Forbidden("the token does not allow demo")), 4, "does not allow", "token show"),
    (token(UnknownAgent("no agent 'dmo'; there are: demo")), 4, "there are: demo", "name another agent, by --agent"),
    (token(Unreachable("the gateway behind it does not answer (502)")), 6, "502", "doctor"),
    (token(ProtocolError("the server there is not an acp-gateway")), 7, "not an acp-gateway", "wss://HOST:7443"),
    (token(Silent(10.0)), 6, "within 10 s", "log"),
    # agent
    (judge_agent("demo", UnknownAgent("no agent 'dmo'"), 0), 4, "no agent 'dmo'", "--agent"),
    (judge_agent("demo", Refused(-32603, "exit code 127", {}), 0), 8, "demo does not start: exit code 127", "doctor"),
    (judge_agent(None, Silent(60.0), 0), 8, "the default agent has not answered initialize for 60.0 s", "check-agent"),
    (judge_agent("demo", AgentError("the agent has ended"), 0), 8, "has ended", "check-agent"),
    (judge_agent("demo", Unreachable("the connection was closed"), 0), 6, "was closed", "doctor"),
    # session
    (judge_session("/a", "/a", no_folder(map="/a=/b"), 0), 3, "no directory /a", 'maps = { "/a" = "/b" }'),
    (judge_session("/a", "/a", no_folder(), 0), 3, "no directory /a", "--map LOCAL=REMOTE"),
    (
        judge_session("/l", "/a", no_folder(map="/a=/b"), 0),
        3,
        "is not a directory there",
        "create /a there, or correct the map",
    ),
    (
        judge_session("/l", "/a", outside(map="/a=/srv/p"), 0),
        4,
        "/l is mapped to /a, which is in no workspace there",
        "correct the map (--map, or maps in hosts.toml), such as to /srv/p",
    ),
    (
        judge_session("/l", "/a", outside(), 0),
        4,
        "/l is mapped to /a",
        "correct the map (--map, or maps in hosts.toml)",
    ),
    (
        judge_session("/srv/p/x", "/l", outside(map="/l=/srv/p", allowed=["/srv/p"]), 0),
        *(4, "/srv/p/x is mapped to /l", "turn the map round: --map /l=/srv/p/x"),
    ),
    (
        judge_session("/a", "/a", outside(map="/a=/srv/p", allowed=["/srv/p"]), 0, here=True),
        *(4, "in no workspace", "use another folder: --cwd /srv/p, or cd to one; `acp-gateway up --add`"),
    ),
    (
        judge_session("/a", "/a", Refused(-32602, "in no workspace", {"reason": "outside_workspaces"}), 0),
        *(4, "in no workspace", "--map"),
    ),
    (
        judge_session("/a", "/a", Refused(-32600, "are open already", {"reason": "too_many_sessions"}), 0),
        *(4, "are open already", "acp-gateway sessions"),
    ),
    (judge_session("/a", "/a", Refused(-32000, "log in", {}), 0), 8, "log in", "log the agent in"),
    (judge_session("/a", "/a", Refused(-32603, "oh", {}), 0), 8, "oh", "log of serve"),
    (judge_session("/a", "/a", Silent(60.0), 0), 8, "has not opened a session for 60.0 s", "login"),
    (judge_session("/a", "/a", Unreachable("cut"), 0), 6, "cut", "doctor"),
    (judge_session("/a", "/a", OSError("cut"), 0), 6, "cut", "doctor"),
]


def test_a_folder_of_a_hostile_gateway_is_one_word_of_a_command_line_and_never_an_escape_sequence() -> None:
    escape = "/srv\x1b]52;c;aGk=\x07"
    refused = outside(map=f"/a={escape}", allowed=[escape, "/srv/p; reboot"])
    assert judge_session("/l", "/a", refused, 0).folder == ""
    assert "--cwd '/srv/p; reboot', or" in judge_session("/a", "/a", refused, 0, here=True).remedy


@pytest.mark.parametrize(("line", "code", "finding", "remedy"), FAULTS, ids=lambda value: str(value)[:40])
def test_a_fault_is_named_with_its_remedy(line: Line, code: int, finding: str, remedy: str) -> None:
    assert (line.status, line.exit_code) == ("fault", code)
    assert finding in line.text
    assert remedy in f"{line.text} {line.remedy}"


@pytest.mark.parametrize(
    ("line", "finding", "remedy"),
    [
        (
            judge_tls(BOX, TlsFacts("TLSv1.3", pinned=False, end=datetime(2026, 12, 1, tzinfo=UTC)), 0, NOW),
            *("ends on 2026-12-01, in 8 days", "certs renew"),
        ),
        (token(access(expires="2026-11-24T00:00:00Z")), "the token ends on 2026-11-24", "token rotate 0a0a0a0a"),
        (
            token(access(expires="2026-11-24T00:00:00Z", credential="certificate ann")),
            *("the token ends on", "make another"),
        ),
        (token(access(version="0.0.1")), "the gateway is acp-gateway 0.0.1", "same version"),
    ],
)
def test_what_will_fail_soon_is_a_warning(line: Line, finding: str, remedy: str) -> None:
    assert line.status == "warning"
    assert finding in line.text
    assert remedy in line.remedy


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (judge_name("box", ["10.0.0.1", "10.0.0.2"], 0.1), "box is 10.0.0.1, 10.0.0.2"),
        (judge_port(BOX, "10.0.0.1 port 7443", 0.1), "10.0.0.1 port 7443 accepts connections"),
        (judge_port(SOCKET, "/run/acp", 0.1), "/run/acp accepts connections"),
        (judge_ssh(SSH, None, 0.1), "ssh logs in at box"),
        (judge_tls(BOX, TlsFacts("TLSv1.3", pinned=True, end=None), 0.1, NOW), "TLS 1.3, the key has the pin"),
        (judge_tls(BOX, TlsFacts("TLSv1.3", pinned=False, end=None), 0.1, NOW), "the certificate is trusted"),
        (
            judge_tls(BOX, TlsFacts("TLSv1.2", pinned=False, end=datetime(2027, 1, 1, tzinfo=UTC)), 0.1, NOW),
            "until 2027-01-01",
        ),
        (token(access()), "token 0a0a0a0a of ann: controller, agents demo, until it is revoked"),
        (token(access(agents={})), "no agent"),
        (token(access(workspaces=["proj"])), "workspaces proj"),
        (token(access(session="s1", agents={})), "session s1 only"),
        (token(access(expires="2027-01-01T00:00:00Z")), "until 2027-01-01 00:00 UTC"),
        (token(access(expires="soon")), "until it is revoked"),
        (token(access(expires="0001-01-01T00:00:00+23:59")), "until it is revoked"),
        (token(Refused(-32601, "", {})), "too old to tell"),
        (judge_agent("demo", {"agentInfo": {"name": "Demo", "version": "1"}}, 0.1), "demo (Demo 1) starts"),
        (judge_agent("demo", {"agentInfo": {"name": "Demo"}}, 0.1), "demo (Demo) starts"),
        (judge_agent(None, {}, 0.1), "the default agent starts"),
        (judge_session("/a", "/b", "closed again", 0.1), "opens in /a, there /b; closed again"),
    ],
)
def test_what_works_is_told_with_its_time(line: Line, text: str) -> None:
    assert (line.status, line.seconds, line.remedy) == ("ok", 0.1, "")
    assert text in line.text


def test_the_settings_are_told_without_their_secrets() -> None:
    line = judge_settings(replace(DESTINATION, token="acpgw_secret", pin="sha256:0a"), "box", 2)
    assert line.text == "tcp://box.example:7443, [hosts.box] of hosts.toml, a pin, a token, 2 path maps"
    bare = judge_settings(replace(DESTINATION, ca=Path("x"), cert=Path("y")), None, 1)
    assert bare.text == "tcp://box.example:7443, its own authority, a client certificate, 1 path map"


def test_a_guest_and_an_observer_open_no_session() -> None:
    guest, observer = skip_session({"session": "s1"}), skip_session({"role": "observer"})
    assert guest is not None
    assert "for session s1" in guest.text
    assert observer is not None
    assert "only watches" in observer.text
    assert skip_session({"role": "controller"}) is None


def test_an_error_response_is_read_whatever_it_holds() -> None:
    assert Refused.of({"code": 1, "message": None, "data": 3}) == Refused(1, "", {})
