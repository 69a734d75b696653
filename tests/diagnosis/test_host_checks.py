"""The brief check of the gateways in hosts.toml."""

from pathlib import Path

import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.hosts import Host
from acp_gateway.diagnosis.checks import Line, fault, ok, warning
from acp_gateway.diagnosis.host_checks import check_hosts, check_maps, ping_briefly, read_hosts

BOX = Host("box", parse_target("tcp://127.0.0.1:1"), None, None, None, None, (("/absent", "/srv"), ("/", "/x")))


async def check(*lines: Line) -> list[Line]:
    """The lines about a host whose ping has these."""
    reported: list[Line] = []

    async def ping(host: Host) -> list[Line]:
        return list(lines)

    await check_hosts({"box": BOX}, reported.append, ping)
    return [line for line in reported if line.name == "host"]


async def test_a_host_that_answers_has_a_line_with_what_its_token_allows() -> None:
    lines = await check(ok("port", "open", 0.25), ok("token", "token 1 of ann", 0.5))
    assert lines == [ok("host", "box: token 1 of ann", 0.75)]


async def test_a_server_without_tokens_answers() -> None:
    (line,) = await check(ok("port", "open", 0.1))
    assert line.text == "box: tcp://127.0.0.1:1 answers"


async def test_a_fault_of_a_host_has_its_remedy_and_leads_to_ping() -> None:
    (line,) = await check(ok("name", "x"), fault("port", "closed", "open it", 6))
    assert (line.status, line.text, line.exit_code) == ("fault", "box: closed", 6)
    assert line.remedy == "open it; acp-gateway ping box"
    (line,) = await check(fault("settings", "wrong", "", 3))
    assert line.remedy == "acp-gateway ping box"


async def test_a_warning_of_a_host_is_passed_on() -> None:
    first, second = await check(ok("token", "fine", 0.1), warning("token", "it ends", "rotate it"))
    assert (first.status, first.text, first.remedy) == ("warning", "box: it ends", "rotate it")
    assert second.status == "ok"


def test_a_folder_of_a_path_map_that_is_not_here_is_a_warning() -> None:
    (line,) = check_maps(BOX)
    assert "no folder /absent here" in line.text
    assert "[hosts.box]" in line.remedy


def test_hosts_are_read_and_told(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    assert read_hosts(path)[1].status == "warning"
    path.write_text('[hosts.box]\nurl = "box"\n')
    hosts, line = read_hosts(path)
    assert (list(hosts), line.status, line.text) == (["box"], "ok", f"{path} has box")
    path.write_text("[hosts.box]\n")
    hosts, line = read_hosts(path)
    assert (hosts, line.status, line.exit_code) == ({}, "fault", 3)


async def test_a_brief_ping_stops_before_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway/hosts.toml").write_text('[hosts.box]\nurl = "unix:///absent/socket"\n')
    host = Host("box", parse_target("unix:///absent/socket"), None, None, None, None, ())
    (line,) = await ping_briefly(host)
    assert (line.name, line.status) == ("port", "fault")
    (tmp_path / "acp-gateway/hosts.toml").write_text('[hosts.box]\nurl = "box"\n')
    (line,) = await ping_briefly(host)
    assert (line.name, line.exit_code) == ("settings", 4)
