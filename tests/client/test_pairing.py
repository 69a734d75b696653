"""Pairing: the gateway's offer, and its use by the paired machine."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from acp_gateway.client import pairing
from acp_gateway.client.pairing import (
    LENT_CERTIFICATE,
    MAX_CANDIDATES,
    Candidate,
    Installed,
    ListenerPin,
    Offer,
    behind_door,
    candidates,
    find_lent,
    find_listeners,
    install,
    is_relayed,
    kept,
    label_of,
    may_replace,
    open_pairing,
    parse_offer,
)
from acp_gateway.client.ssh import SshTarget
from acp_gateway.config.addresses import parse_address, parse_target
from acp_gateway.config.load import AgentSection, Config, GatewaySection, ListenSection
from acp_gateway.config.nodes import DoorSection
from acp_gateway.config.reached import MAX_ADDRESSES
from acp_gateway.errors import ConfigError, ProtocolError, Unreachable, UsageError
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import TIMEOUT

TOKEN = mint()
PIN = "sha256:" + "0a" * 32


def config(*listen: ListenSection) -> Config:
    return Config(gateway=GatewaySection(), listen=listen, agents={"demo": AgentSection(command=("x",))})


def offer(*urls: str, relayed: bool = True, **changes: Any) -> Offer:
    listeners = tuple(ListenerPin(parse_address(url), PIN) for url in urls)
    values: dict[str, Any] = {"command": "/opt/acp-gateway", "token": TOKEN, "token_id": "1a2b3c4d"} | changes
    return Offer(listeners, relayed, **values)


def urls_of(found: list[Candidate]) -> list[str]:
    return [str(place.address) for place in found]


# On the gateway's machine


def test_each_tls_listener_that_serves_acp_is_found_with_the_pin_of_its_certificate(tmp_path: Path) -> None:
    made = create_certificate(["box"], tmp_path)
    chain = tmp_path / "chain.pem"
    chain.write_text("a comment\n" + made.cert_path.read_text() + create_other(tmp_path))
    wss = ListenSection(url="wss://0.0.0.0:7443", cert=chain, key=made.key_path)
    tcp = ListenSection(url="tcp://127.0.0.1:7080")
    any_port = ListenSection(url="tcp+tls://0.0.0.0:0", cert=chain, key=made.key_path)
    metrics = ListenSection(url="wss://0.0.0.0:9464", serves=("metrics",), cert=chain, key=made.key_path)
    assert find_listeners(config(tcp, any_port, metrics, wss)) == (ListenerPin(wss.address, made.pin),)


def test_a_gateway_that_lends_connections_offers_the_certificate_of_these(tmp_path: Path) -> None:
    socket = config(ListenSection(url="unix:///run/socket"))
    door = DoorSection(url=parse_target("door.example"), token_file=tmp_path / "t")
    lending = replace(socket, gateway=replace(socket.gateway, state_dir=tmp_path), doors={"home": door})
    assert find_lent(lending) == ()
    made = create_certificate(["localhost"], (tmp_path / LENT_CERTIFICATE).parent)
    (listener,) = find_lent(lending)
    assert listener.pin == made.pin
    assert find_lent(replace(lending, doors={})) == ()
    # It is for clients behind the door alone.
    made_offer = replace(offer(), listeners=(listener,))
    target = SshTarget(parse_target("ssh://box"))
    assert [each.address.scheme for each in candidates(made_offer, target, "box")] == ["ssh"]
    (candidate,) = behind_door(made_offer, "box")
    assert (str(candidate.address), candidate.pin) == ("wss://box:7443/acp", made.pin)


def create_other(tmp_path: Path) -> str:
    return create_certificate(["other"], tmp_path / "other").cert_path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("x", "holds no certificate"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----", "damaged"),
    ],
)
def test_a_malformed_certificate_is_an_error_with_its_name(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "cert.pem").write_text(text)
    section = ListenSection(url="wss://0.0.0.0:7443", cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    with pytest.raises(ConfigError, match=rf"cert\.pem: .*{message}"):
        find_listeners(config(section))


def test_a_gateway_without_any_way_in_makes_no_offer() -> None:
    with pytest.raises(ConfigError, match=r"add one of them: \[\[listen\]\] url = .unix:///"):
        find_listeners(config(ListenSection(url="tcp://127.0.0.1:7080")))
    socket = config(ListenSection(url="unix:///run/socket"))
    assert find_listeners(socket) == ()
    assert is_relayed(socket)
    assert not is_relayed(config(ListenSection(url="unix:///run/metrics", serves=("metrics",))))


@pytest.mark.parametrize("label", ["laptop", "Ann's".replace("'", "") + " (work), büro +1 @home: a-b_c.d", "x" * 64])
def test_a_label_is_marked_as_made_by_pairing(label: str) -> None:
    assert label_of(label) == f"{label} (paired)"


@pytest.mark.parametrize("label", ["", " ", "a!b", "it's", "a\\b", "a\nb", "$x", "`x`", "x" * 65])
def test_a_label_has_nothing_in_it_that_a_shell_would_read(label: str) -> None:
    with pytest.raises(UsageError, match="give another --label"):
        label_of(label)


def test_only_a_token_that_pairing_made_for_the_same_machine_is_replaced(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    first, _ = store.create(label_of("laptop"), "ann", None)
    again, _ = store.create(label_of("laptop"), "ann", ["demo"])
    assert may_replace(first, again)
    assert not may_replace(again, again)
    assert not may_replace(store.create("laptop", "ann", None)[0], again)
    assert not may_replace(store.create(label_of("laptop"), "bob", None)[0], again)
    assert not may_replace(store.create(label_of("phone"), "ann", None)[0], again)


# On the machine that is paired


def test_an_offer_is_one_line_of_ascii_and_is_read_as_it_was() -> None:
    made = offer("wss://0.0.0.0:7443", "tcp+tls://bücher.example:7444", command="/opt/ü/acp-gateway")
    text = made.encode()
    assert text.isascii()
    assert "\n" not in text
    assert parse_offer(f"\r\n{text}\r\n".encode()) == made
    assert TOKEN not in repr(made)


def test_an_offer_of_an_earlier_version_tells_no_addresses() -> None:
    said = json.loads(replace(offer(), hosts=("10.0.0.5",)).encode())
    assert parse_offer(json.dumps(said).encode()).hosts == ("10.0.0.5",)
    del said["hosts"]
    assert parse_offer(json.dumps(said).encode()).hosts == ()


def test_of_an_offer_with_very_many_addresses_the_first_are_read() -> None:
    # Each pair of a listener and a host is a candidate.
    said = json.loads(offer("wss://0.0.0.0:7443").encode())
    said |= {"listeners": 5000 * said["listeners"], "hosts": 50_000 * ["127.0.0.1"]}
    read = parse_offer(json.dumps(said).encode())
    assert len(read.listeners) == len(read.hosts) == MAX_CANDIDATES


@pytest.mark.parametrize(
    "changes",
    [
        {"token": TOKEN[:-1]},
        {"token": None},
        {"tokenId": "1A2B3C4D"},
        {"tokenId": "--help"},
        {"tokenId": 1},
        {"command": "acp-gateway"},
        {"command": "/a\nb"},
        {"command": "/" + "a" * 4096},
        {"command": 1},
        {"listeners": [{"url": "wss://a", "pin": "sha256:0"}]},
        {"listeners": [{"url": "ws://a", "pin": PIN}]},
        {"listeners": [{"url": "ssh://a", "pin": PIN}]},
        {"listeners": [{"url": 1, "pin": PIN}]},
        {"listeners": ["wss://a"]},
        {"listeners": None},
        {"hosts": None},
        {"hosts": ["box"]},
        {"hosts": [1]},
    ],
)
def test_an_answer_that_is_not_an_offer_is_refused_and_not_quoted(changes: dict[str, Any]) -> None:
    said = json.dumps(json.loads(offer().encode()) | changes)
    with pytest.raises(ProtocolError, match="--version") as caught:
        parse_offer(said.encode())
    assert TOKEN[:-1] not in str(caught.value)


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_anything_else_is_refused_as_well(said: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_offer(said)


BOX = SshTarget(parse_target("ssh://ann@Box:2222"))


def test_a_listener_for_all_addresses_is_tried_at_the_real_name_and_ssh_comes_last() -> None:
    found = candidates(offer("tcp+tls://[::]:7444", "wss://0.0.0.0:7443", "wss://10.0.0.5:7443"), BOX, "Box.Example")
    assert urls_of(found) == [
        "wss://box.example:7443/acp",
        "wss://10.0.0.5:7443/acp",
        "tcp+tls://box.example:7444",
        "ssh://ann@Box:2222",
    ]
    assert [place.pin for place in found] == [PIN, PIN, PIN, None]


def test_a_listener_for_all_addresses_is_tried_at_those_that_its_machine_tells_as_well() -> None:
    made = replace(offer("wss://0.0.0.0:7443", "wss://10.0.0.9:7444"), hosts=("192.0.2.1", "10.0.0.5", "fd00::5"))
    found = candidates(made, BOX, "192.0.2.1")
    assert urls_of(found) == [
        "wss://192.0.2.1:7443/acp",
        "wss://10.0.0.5:7443/acp",
        "wss://10.0.0.9:7444/acp",
        "ssh://ann@Box:2222",
    ]
    assert [place.told for place in found] == [False, True, False, False]
    of_ipv6 = candidates(replace(made, listeners=offer("wss://[::]:7443").listeners), BOX, "box")
    assert urls_of(of_ipv6)[:2] == ["wss://box:7443/acp", "wss://[fd00::5]:7443/acp"]


def test_what_is_kept_begins_with_the_address_that_works_and_has_its_transport_and_pin() -> None:
    found = candidates(offer("wss://a:1", "wss://b:2", "tcp+tls://c:3"), BOX, "box")
    other = replace(found[0], pin="sha256:" + 64 * "0")
    assert urls_of(kept([other, *found], found[1])) == ["wss://b:2/acp", "wss://a:1/acp"]
    assert urls_of(kept(found, found[-1])) == ["ssh://ann@Box:2222"]
    many = candidates(offer(*(f"wss://10.0.0.{number}:1" for number in range(12))), BOX, "box")
    assert len(kept(many, many[0])) == MAX_ADDRESSES - 1


def test_a_listener_on_loopback_is_for_who_is_there() -> None:
    made = offer("wss://127.0.0.1:7443", "wss://localhost:7444", relayed=False)
    assert candidates(made, BOX, "192.0.2.1") == []
    assert urls_of(candidates(made, BOX, "localhost")) == ["wss://127.0.0.1:7443/acp", "wss://localhost:7444/acp"]
    assert urls_of(candidates(offer("wss://0.0.0.0:7443", relayed=False), BOX, "::1")) == ["wss://[::1]:7443/acp"]


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f.1", "2130706433", "0", "localhost.", "a.localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_no_listener_of_another_machine_leads_to_this_one_in_any_spelling(host: str) -> None:
    assert candidates(offer(f"wss://{host}:22", relayed=False), BOX, "192.0.2.1") == []


def test_a_gateway_without_tls_is_reached_through_ssh() -> None:
    assert urls_of(candidates(offer(), BOX, "192.0.2.1")) == ["ssh://ann@Box:2222"]


class Far:
    """The other end of a pairing."""

    def __init__(self, *answers: str) -> None:
        self.started: list[tuple[SshTarget, str, list[str]]] = []
        self.asked: list[str] = []
        self.closed = False
        self._answers = [*answers]

    @asynccontextmanager
    async def open(self, way: SshTarget, what: str, arguments: list[str]) -> AsyncIterator["Far"]:
        self.started.append((way, what, arguments))
        try:
            yield self
        finally:
            self.closed = True

    async def read_answer(self) -> bytes:
        if not self._answers:
            await trio.sleep_forever()
        return self._answers.pop(0).encode()

    async def ask(self, line: str) -> bytes:
        self.asked.append(line)
        return await self.read_answer()


async def test_a_pairing_is_asked_for_with_its_options_and_told_what_becomes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = Far(offer().encode(), '{"done":true}', '\r\n{"done":false}\r\n', '{"done":true}')
    monkeypatch.setattr("acp_gateway.client.pairing.open_command", far.open)
    async with open_pairing(BOX, label="laptop", agents=("a", "b"), time_limit=1) as pairing:
        assert pairing.offer == offer()
        await pairing.keep()
        assert not await pairing.replace("1a2b3c4d")
        await pairing.withdraw()
        assert not far.closed
    assert far.closed
    assert far.started == [(BOX, "pairing", ["pair-here", "--label", "laptop", "--agent", "a", "--agent", "b"])]
    assert far.asked == ["keep", "replace 1a2b3c4d", "withdraw"]


async def test_a_machine_that_makes_no_offer_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    far = Far()
    monkeypatch.setattr("acp_gateway.client.pairing.open_command", far.open)
    with pytest.raises(Unreachable, match=r"no answer within 30 s; does a profile there .* ssh ann@Box acp-gateway"):
        async with open_pairing(BOX, label="laptop", agents=(), time_limit=30):
            raise AssertionError
    assert far.closed


@pytest.mark.parametrize("answer", ["", "x", "[]", "{}", '{"done":1}', "[" * 100_000])
async def test_a_malformed_answer_is_an_error(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("acp_gateway.client.pairing.open_command", Far(offer().encode(), answer).open)
    async with open_pairing(BOX, label="laptop", agents=(), time_limit=1) as pairing:
        with pytest.raises(ProtocolError, match="does `acp-gateway --version` print the same"):
            await pairing.keep()


@pytest.mark.parametrize("url", ["wss://box.example:0", "wss://0.0.0.0:7443"])
def test_what_hosts_toml_could_not_say_is_not_a_place(url: str) -> None:
    assert urls_of(candidates(offer(url), BOX, 'a" b')) == ["ssh://ann@Box:2222"]


def test_an_offer_of_very_many_addresses_is_not_tried_to_its_end() -> None:
    found = urls_of(candidates(offer(*[f"wss://10.0.0.{number}:7443" for number in range(100)]), BOX, "box"))
    assert len(found) == MAX_CANDIDATES + 1
    assert found[-1] == "ssh://ann@Box:2222"


# The installation


PLAIN_BOX = SshTarget(parse_target("ssh://ann@box"))
INSTALLER = '#!/bin/sh\necho "$0 $*" >>"$HOME/log"; for last; do :; done; cat "$last" >"$HOME/got"; echo chatter\n'


class Box:
    """A machine with a home, reached by a program that is called ssh."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "home/.local/bin"
        self.bin.mkdir(parents=True)
        self.home = folder / "home"
        self.ssh = folder / "ssh"
        self.does('exec sh -c "$last"')

    def does(self, line: str) -> None:
        self.ssh.write_text(f"#!/bin/sh\nexport HOME='{self.home}'\nfor last; do :; done\n{line}\n")
        self.ssh.chmod(0o755)

    def has(self, program: str, script: str = INSTALLER) -> None:
        (self.bin / program).write_text(script)
        (self.bin / program).chmod(0o755)

    async def install(self) -> Installed:
        with trio.fail_after(TIMEOUT):
            return await install(PLAIN_BOX, "x-1.0-py3-none-any.whl", b"wheel" * 20_000, "1.0")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    # No uv or pipx of this machine.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "mktemp", "rm"):
        (tools / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", f"{tmp_path}:{tools}")
    return Box(tmp_path)


@pytest.mark.parametrize(
    ("programs", "by", "words"),
    [(("uv", "pipx"), "uv", "tool install --force"), (("pipx",), "pipx", "install --force")],
)
async def test_the_wheel_is_handed_to_uv_or_pipx(box: Box, programs: tuple[str, ...], by: str, words: str) -> None:
    for program in programs:
        box.has(program)
    assert await box.install() == Installed(by)
    assert (box.home / "got").read_bytes() == b"wheel" * 20_000
    log = (box.home / "log").read_text()
    assert f"{by} {words} " in log
    assert log.endswith("/x-1.0-py3-none-any.whl\n")
    # The folder of the wheel is gone.
    assert not await trio.Path(log.partition(f"{words} ")[2].rstrip()).exists()


async def test_the_same_version_is_left_alone_and_another_replaced(box: Box) -> None:
    box.has("uv")
    box.has("acp-gateway", '#!/bin/sh\necho "acp-gateway, version 1.0"\n')
    assert await box.install() == Installed(None)
    assert not (box.home / "log").exists()
    box.has("acp-gateway", '#!/bin/sh\necho "acp-gateway, version 0.9"\n')
    assert await box.install() == Installed("uv")


async def test_without_an_installer_it_says_which_to_install(box: Box) -> None:
    with pytest.raises(ConfigError, match="neither uv nor pipx: install one of them there"):
        await box.install()


async def test_an_installer_that_fails_is_quoted(box: Box) -> None:
    box.has("pipx", "#!/bin/sh\necho Requires Python 3.11 >&2; exit 1\n")
    with pytest.raises(ConfigError, match=r"Requires Python 3.11; the installation there failed"):
        await box.install()


async def test_a_login_that_fails_is_an_error_of_ssh(box: Box) -> None:
    box.does("echo no route >&2; exit 255")
    with pytest.raises(Unreachable, match="no route"):
        await box.install()


async def test_an_end_that_is_not_understood_is_an_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "_INSTALL", "cat >/dev/null; echo what")
    with pytest.raises(ProtocolError, match="not understood: 'what'"):
        await box.install()


def test_the_script_has_nothing_in_it_that_shells_read_differently() -> None:
    assert not set("'\\!\n") & set(pairing._INSTALL)
