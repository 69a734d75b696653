"""The judgements of `doctor` on the gateway's machine: for each fault, its line with the remedy and the exit code."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from acp_gateway.diagnosis.checks import Line, exit_code_of, fault, format_seconds, ok, report_of, warning
from acp_gateway.diagnosis.gateway_checks import (
    DISK_FAULT,
    DISK_WARNING,
    SHOWN,
    SYSTEMD,
    AgentFacts,
    CertificateFacts,
    ConfigFacts,
    ListenerFacts,
    MachineFacts,
    StateFacts,
    TokenFacts,
    UnitFacts,
    check_machine,
)

NOW = datetime(2026, 11, 23, tzinfo=UTC)
LISTENER = ListenerFacts("wss://0.0.0.0:7443/acp", accepting=True, holder="process 7 (acp-gateway)", own=True)
CERTIFICATE = CertificateFacts("cert.pem", NOW + timedelta(days=400), self_signed=True)
TOKEN = TokenFacts("0a0a0a0a", "laptop", "2027-01-01T00:00:00Z", expired=False)
AGENT = AgentFacts("opencode", "opencode", "/bin/opencode", "/bin/opencode", ())
STATE = StateFacts("/state", None, 10 * DISK_WARNING, 5_000_000)
UNIT = UnitFacts("acp-gateway.service", user=True, enabled=True, active=True)

WELL = MachineFacts(
    NOW,
    False,
    ConfigFacts("config.toml", ()),
    7,
    True,
    (LISTENER,),
    (CERTIFICATE,),
    (TOKEN,),
    (AGENT,),
    STATE,
    (),
    True,
    (UNIT,),
)


def found(**changes: Any) -> list[Line]:
    """The lines that are not "ok" for a machine on which all is well, but for these facts."""
    return [line for line in check_machine(replace(WELL, **changes)) if line.status != "ok"]


def test_where_all_is_well_each_subject_has_a_line() -> None:
    lines = check_machine(WELL)
    assert {line.status for line in lines} == {"ok"}
    assert [line.name for line in lines] == [
        *("config", "gateway", "listener", "TLS", "tokens", "agent", "disk", "systemd")
    ]
    assert "10.7 GB free for /state, which has 5.0 MB" in lines[6].text


STOPPED: dict[str, Any] = {"gateway": None, "environment_known": False}
FREE = replace(LISTENER, accepting=False, holder=None, own=False)
UNSERVED = replace(AGENT, in_service=None)


@pytest.mark.parametrize(
    ("changes", "code", "finding", "remedy"),
    [
        ({"config": ConfigFacts("c", (("error", "c:3: wrong"),))}, 3, "c:3: wrong", "check-config"),
        (
            STOPPED | {"listeners": (FREE,), "units": (), "has_systemd": False},
            6,
            "it does not run",
            "acp-gateway serve",
        ),
        (STOPPED | {"listeners": (FREE,)}, 6, "acp-gateway.service is meant to start it", "journalctl --user -u"),
        (
            STOPPED | {"listeners": (FREE,), "units": (replace(UNIT, user=False),)},
            *(6, "is meant to start it", "systemctl start acp-gateway.service"),
        ),
        (
            {"listeners": (replace(LISTENER, accepting=False, holder=None),)},
            *(9, "does not listen at wss://0.0.0.0:7443/acp", "restart"),
        ),
        (
            {"listeners": (replace(LISTENER, holder="process 9 (nginx)", own=False),)},
            *(9, "leads to process 9 (nginx)", "another port"),
        ),
        (
            {"certificates": (replace(CERTIFICATE, end=NOW - timedelta(days=1)),)},
            *(5, "cert.pem ended on 2026-11-22", "certs renew"),
        ),
        ({"agents": (replace(AGENT, here=None, in_service=None),)}, 8, "neither by the running gateway", "install it"),
        ({"agents": (UNSERVED,)}, 8, "not with the PATH of the running gateway", 'command = ["/bin/opencode", …]'),
        (
            {"agents": (replace(UNSERVED, here=None),), "environment_known": False},
            *(8, "opencode: opencode is not found", "absolute path"),
        ),
        (
            {"state": replace(STATE, problem="others may replace what is in /state")},
            3,
            "others may",
            "chmod 700 /state",
        ),
        ({"state": replace(STATE, free=DISK_FAULT - 1)}, 3, "52.4 MB free", "make room"),
    ],
)
def test_a_fault_is_named_with_its_remedy(changes: dict[str, Any], code: int, finding: str, remedy: str) -> None:
    (line,) = found(**changes)
    assert (line.status, line.exit_code) == ("fault", code)
    assert finding in line.text
    assert remedy in line.remedy


@pytest.mark.parametrize(
    ("changes", "finding", "remedy"),
    [
        ({"is_root": True}, "this is root", "service install --system --user NAME"),
        (
            {"certificates": (replace(CERTIFICATE, end=NOW + timedelta(days=3, hours=1)),)},
            *("ends on 2026-11-26, in 3 days", "certs renew"),
        ),
        (
            {"certificates": (replace(CERTIFICATE, end=NOW + timedelta(days=3), self_signed=False),)},
            *("in 3 days", "where it was signed"),
        ),
        ({"tokens": ()}, "there are none", "acp-gateway pair"),
        ({"tokens": (replace(TOKEN, expires=None),)}, "1 of 1 never expire: 0a0a0a0a (laptop)", "token rotate"),
        ({"tokens": (replace(TOKEN, expired=True),)}, "1 expired: 0a0a0a0a (laptop)", "token revoke"),
        (
            {"agents": (replace(AGENT, in_service="/usr/bin/opencode"),)},
            *("is /usr/bin/opencode for the gateway, but /bin/opencode in this shell", "absolute path"),
        ),
        (
            {"agents": (replace(AGENT, withheld=("OPENAI_API_KEY",)),)},
            *("opencode does not get OPENAI_API_KEY", 'pass_env = ["OPENAI_API_KEY"]'),
        ),
        (
            {"agents": (replace(AGENT, withheld=("OPENAI_API_KEY",), promised=("OPENAI_API_KEY",)),)},
            *("is to get OPENAI_API_KEY, which the running gateway has not got", "env_file under [agents.opencode]"),
        ),
        ({"state": replace(STATE, free=DISK_WARNING - 1)}, "1.1 GB free", "history_limit"),
        ({"others": ((9, "acp-gateway serve"),)}, "another one runs here, as process 9", "stop it"),
        ({"units": ()}, "ends with the terminal", "acp-gateway service install"),
        ({"units": (replace(UNIT, enabled=False),)}, "does not start with the machine", "systemctl --user enable"),
        (
            {"units": (replace(UNIT, active=False, enabled=False, user=False),)},
            *("is installed and does not run", "systemctl enable --now"),
        ),
        ({"lingers": False}, "end when you log out", "loginctl enable-linger"),
    ],
)
def test_what_may_fail_is_a_warning(changes: dict[str, Any], finding: str, remedy: str) -> None:
    (line,) = found(**changes)
    assert line.status == "warning"
    assert finding in line.text
    assert remedy in line.remedy


def test_a_warning_of_the_configuration_is_passed_on() -> None:
    (line,) = found(config=ConfigFacts("c", (("warning", "/srv is not a folder"),)))
    assert (line.status, line.text) == ("warning", "/srv is not a folder")


@pytest.mark.parametrize("holder", ["process 9 (nginx)", None])
def test_a_port_that_another_program_has_is_named_before_the_gateway_starts(holder: str | None) -> None:
    taken = replace(LISTENER, holder=holder, own=False)
    line = next(line for line in found(gateway=None, listeners=(taken,)) if line.name == "listener")
    assert line.exit_code == 9
    assert f"is taken by {holder or 'another program'}" in line.text


def test_a_configuration_that_is_wrong_is_the_reason_that_the_gateway_does_not_run() -> None:
    lines = found(config=ConfigFacts("c", (("error", "c:3: wrong"),)), gateway=None, listeners=(), units=())
    assert [(line.name, line.exit_code) for line in lines if line.status == "fault"] == [("config", 3), ("gateway", 6)]
    assert "correct the configuration first" in lines[1].remedy


def test_a_socket_of_systemd_is_the_gateways() -> None:
    assert found(listeners=(replace(LISTENER, holder="process 1 (systemd)"),)) == []


def test_a_gateway_that_systemd_starts_when_needed_is_well() -> None:
    socket, idle = replace(UNIT, name="acp-gateway.socket"), replace(UNIT, active=False, enabled=False)
    held = replace(LISTENER, holder=SYSTEMD)
    lines = check_machine(replace(WELL, **STOPPED, listeners=(held,), units=(idle, socket)))
    assert {line.status for line in lines} == {"ok"}
    assert "systemd starts it at the first connection" in lines[1].text
    assert "systemd listens at wss://0.0.0.0:7443/acp" in lines[2].text


def test_long_lists_are_cut() -> None:
    (line,) = found(tokens=(replace(TOKEN, expires=None),) * (SHOWN + 1))
    assert line.text.count("laptop") == SHOWN
    assert line.text.endswith(", …")


def test_small_sizes_are_in_kilobytes() -> None:
    lines = check_machine(replace(WELL, state=replace(STATE, size=1500), has_systemd=False))
    assert lines[-1].text.endswith("2 kB")


def test_a_line_has_its_time_or_its_remedy() -> None:
    assert str(ok("port", "it is open", 0.012)) == "ok      port      it is open (12 ms)"
    assert str(fault("port", "it is closed", "open it", 6)) == (
        "fault   port      it is closed\n                  -> open it"
    )


def test_a_line_escapes_what_a_terminal_would_obey() -> None:
    assert "\x1b" not in str(warning("token", "\x1b[2J", "\x1b[3J"))


def test_the_exit_code_is_that_of_the_first_fault() -> None:
    lines = [ok("a", "x"), warning("b", "x", "y"), fault("c", "x", "y", 5), fault("d", "x", "y", 8)]
    assert exit_code_of(lines) == 5
    assert exit_code_of(lines[:2]) == 0


def test_the_report_has_all_lines_and_leaves_out_what_has_no_value() -> None:
    assert report_of([ok("a", "x", 0.00123456), fault("b", "x", "y", 6)], host="box") == {
        "host": "box",
        "ok": False,
        "exitCode": 6,
        "checks": [
            {"name": "a", "status": "ok", "text": "x", "seconds": 0.0012},
            {"name": "b", "status": "fault", "text": "x", "remedy": "y"},
        ],
    }


@pytest.mark.parametrize(("seconds", "shown"), [(0.0004, "0.4 ms"), (0.02, "20 ms"), (1.26, "1.3 s"), (61, "61.0 s")])
def test_a_duration_is_shown_with_two_or_three_digits(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown
