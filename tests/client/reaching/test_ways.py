"""Gateways with several addresses: which are tried when, which one is used, and what is remembered of that."""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
import trio.testing

from acp_gateway.client.dialing import Destination, Dialed
from acp_gateway.client.reaching.ways import (
    ADDRESS_TIMEOUT,
    REMEMBER_TIME,
    TURN_PATIENCE,
    Turn,
    WayMemory,
    combined,
    dial_any,
    order_of,
    own_way_memory,
)
from acp_gateway.config.addresses import Address, parse_target
from acp_gateway.errors import (
    AccessError,
    ConfigError,
    GatewayError,
    LinkGone,
    TrustError,
    Unauthorized,
    UnknownSession,
    Unreachable,
)
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.racing import COSTLY_PATIENCE, STAGGER
from tests.kit.clocks import Clock

pytestmark = pytest.mark.jumps

LAN, VPN, PUBLIC, SSH = map(parse_target, ("192.0.2.7", "box.vpn", "box.example:443", "ssh://ann@box"))


# The order


def test_without_a_memory_the_order_is_that_of_hosts_toml() -> None:
    assert order_of([LAN, VPN, SSH], None) == ([LAN, VPN, SSH], 1)


def test_the_remembered_address_is_first_and_better_ones_are_tried_together_with_it() -> None:
    assert order_of([LAN, VPN, PUBLIC], VPN) == ([VPN, LAN, PUBLIC], 2)
    assert order_of([LAN, VPN, PUBLIC], LAN) == ([LAN, VPN, PUBLIC], 1)


def test_a_remembered_address_that_is_not_in_hosts_toml_any_more_is_not_tried() -> None:
    assert order_of([LAN, VPN], PUBLIC) == ([LAN, VPN], 1)


# The memory


ADDRESSES = (LAN, VPN, SSH)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(1_800_000_000.0)


@pytest.fixture
def memory(tmp_path: Path, clock: Clock) -> WayMemory:
    # The files get the time of this machine.
    clock.now = tmp_path.stat().st_mtime + 1
    return WayMemory(tmp_path / "state" / "reached", clock)


def test_an_address_is_remembered_across_processes_for_an_hour(tmp_path: Path, memory: WayMemory, clock: Clock) -> None:
    memory.record(ADDRESSES, VPN)
    again = WayMemory(tmp_path / "state" / "reached", clock)
    assert again.recall(ADDRESSES) == VPN
    (path,) = (tmp_path / "state" / "reached").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    clock.now = path.stat().st_mtime + REMEMBER_TIME
    assert again.recall(ADDRESSES) is None


def test_using_a_remembered_address_again_does_not_prolong_its_time(tmp_path: Path, memory: WayMemory) -> None:
    memory.record(ADDRESSES, VPN)
    (path,) = (tmp_path / "state" / "reached").iterdir()
    before = path.stat().st_mtime_ns
    memory.record(ADDRESSES, VPN)
    assert path.stat().st_mtime_ns == before


def test_the_best_address_needs_no_memory(tmp_path: Path, memory: WayMemory) -> None:
    memory.record(ADDRESSES, SSH)
    memory.record(ADDRESSES, LAN)
    assert memory.recall(ADDRESSES) is None
    assert list((tmp_path / "state" / "reached").iterdir()) == []


def test_other_addresses_are_another_gateway(memory: WayMemory) -> None:
    memory.record(ADDRESSES, VPN)
    assert memory.recall((LAN, VPN)) is None


@pytest.mark.parametrize("content", [b"", b"\xff", b"wss://elsewhere:7443/acp\n"])
def test_a_file_with_anything_else_counts_as_absent(tmp_path: Path, memory: WayMemory, content: bytes) -> None:
    memory.record(ADDRESSES, VPN)
    (path,) = (tmp_path / "state" / "reached").iterdir()
    path.write_bytes(content)
    assert memory.recall(ADDRESSES) is None


def test_a_folder_that_cannot_be_written_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = WayMemory(tmp_path / "file" / "reached")
    memory.record(ADDRESSES, VPN)
    assert memory.recall(ADDRESSES) is None


def test_the_memory_of_a_user_is_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    own_way_memory().record(ADDRESSES, VPN)
    assert own_way_memory().recall(ADDRESSES) == VPN
    assert len(list((tmp_path / "acp-gateway" / "reached").iterdir())) == 1


# The error


def test_the_error_has_a_line_for_each_address_with_its_reason() -> None:
    error = combined([(LAN, Unreachable("connection refused")), (SSH, ConfigError(f"{SSH}: there is no ssh"))])
    assert str(error) == (
        "none of the 2 addresses works:\nwss://192.0.2.7:7443/acp: connection refused;\nssh://ann@box: there is no ssh"
    )


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([TrustError("pin"), Unreachable("later")], Unreachable),
        ([Unreachable("later"), Unauthorized("token")], Unauthorized),
        ([Unreachable("later"), AccessError("ssh could not log in")], Unreachable),
        ([TrustError("pin"), ConfigError("no ssh")], TrustError),
    ],
)
def test_all_fail_for_good_only_if_the_gateway_refuses_or_no_address_may_work_later(
    errors: list[GatewayError], kind: type[GatewayError]
) -> None:
    assert type(combined(list(zip((LAN, SSH), errors, strict=True)))) is kind


# Dialing


@dataclass
class Network:
    """Addresses in memory: how long each takes to connect and to be answered, and with what."""

    connects: dict[Address, float] = field(default_factory=dict)
    """Seconds until each is connected to; those that are missing never are."""
    answers: dict[Address, float] = field(default_factory=dict)
    """Seconds from then until the answer; 0.1 by default."""
    errors: dict[Address, GatewayError] = field(default_factory=dict)
    """Answers that are errors."""
    log: list[tuple[str, Address, float]] = field(default_factory=list)
    """Events, with the seconds since the beginning."""
    began: float = 0.0

    def note(self, what: str, address: Address) -> None:
        self.log.append((what, address, round(trio.current_time() - self.began, 6)))

    def times(self, what: str) -> dict[Address, float]:
        return {address: seconds for it, address, seconds in self.log if it == what}

    async def dial(self, way: Destination, turn: Turn) -> Dialed:
        address = way.address
        assert way.others == ()
        self.note("start", address)
        await trio.sleep(self.connects.get(address, math.inf))
        async with turn():
            self.note("ask", address)
            try:
                await trio.sleep(self.answers.get(address, 0.1))
            except trio.Cancelled:
                self.note("given up", address)
                raise
            if address in self.errors:
                raise self.errors[address]
            return Dialed(memory_message_stream_pair()[0], "c1", 0, address=address)

    async def run(self, destination: Destination) -> Address | None:
        """Dial a gateway; return the address that was used."""
        self.began = trio.current_time()
        dialed = await dial_any(destination, self.dial)
        self.note("use", dialed.address or LAN)
        return dialed.address


@pytest.fixture
def network() -> Network:
    return Network()


def gateway(*addresses: Address, memory: WayMemory | None = None) -> Destination:
    return Destination(addresses[0], None, "token", None, None, 1024, others=addresses[1:], memory=memory)


async def test_addresses_are_tried_in_order_250_ms_apart_and_the_first_that_is_accepted_is_used(
    network: Network,
) -> None:
    network.connects = {LAN: math.inf, VPN: 1.0, PUBLIC: 0.6}
    assert await network.run(gateway(LAN, VPN, PUBLIC)) == PUBLIC
    assert network.times("start") == {LAN: 0.0, VPN: STAGGER, PUBLIC: 2 * STAGGER}
    assert network.times("use") == {PUBLIC: 1.2}


async def test_a_wrong_token_or_pin_at_one_address_does_not_stop_the_others(network: Network) -> None:
    network.connects = {LAN: 0.0, VPN: 0.0, PUBLIC: 0.0}
    network.errors = {LAN: Unauthorized("token"), VPN: TrustError("pin")}
    assert await network.run(gateway(LAN, VPN, PUBLIC)) == PUBLIC


async def test_if_all_addresses_fail_the_error_names_each(network: Network) -> None:
    network.connects = {LAN: 0.0}
    network.errors = {LAN: TrustError("another key")}
    with pytest.raises(Unreachable) as caught:
        await network.run(gateway(LAN, VPN))
    assert str(caught.value).split("\n")[1:] == [
        f"{LAN}: another key;",
        f"{VPN}: no answer within {ADDRESS_TIMEOUT:g} s",
    ]


@pytest.mark.parametrize("error", [LinkGone("gone"), UnknownSession("unknown")])
async def test_a_refusal_of_the_link_does_not_wait_for_the_other_addresses(
    network: Network, error: GatewayError
) -> None:
    network.connects, network.errors = {LAN: 0.0}, {LAN: error}
    with pytest.raises(type(error)):
        await network.run(gateway(LAN, VPN))
    assert trio.current_time() - network.began < 1


async def test_only_one_address_at_a_time_asks_the_gateway(network: Network) -> None:
    network.connects, network.answers = {LAN: 0.4, VPN: 0.2}, {LAN: 0.9}
    assert await network.run(gateway(LAN, VPN)) == LAN
    assert network.times("ask") == {LAN: 0.4}


async def test_an_address_asks_in_its_turn_when_another_one_has_failed(network: Network) -> None:
    network.connects, network.answers = {LAN: 0.4, VPN: 0.2}, {LAN: 0.5}
    network.errors = {LAN: Unreachable("not now")}
    assert await network.run(gateway(LAN, VPN)) == VPN
    assert network.times("ask") == {LAN: 0.4, VPN: 0.9}


async def test_an_address_that_never_answers_delays_the_others_for_a_second_and_is_given_up_before_they_ask(
    network: Network,
) -> None:
    network.connects, network.answers = {LAN: 0.0, VPN: 0.0, PUBLIC: 0.0}, {LAN: math.inf, VPN: math.inf}
    assert await network.run(gateway(LAN, VPN, PUBLIC)) == PUBLIC
    asked = {LAN: 0.0, VPN: TURN_PATIENCE, PUBLIC: 2 * TURN_PATIENCE}
    assert network.log[4:] == [
        ("given up", LAN, asked[VPN]),
        ("ask", VPN, asked[VPN]),
        ("given up", VPN, asked[PUBLIC]),
        ("ask", PUBLIC, asked[PUBLIC]),
        ("use", PUBLIC, asked[PUBLIC] + 0.1),
    ]


async def test_an_address_that_takes_long_to_connect_may_take_as_long_to_be_answered(network: Network) -> None:
    network.connects, network.answers = {LAN: 3.0, VPN: 3.0}, {LAN: 2.9}
    assert await network.run(gateway(LAN, VPN)) == LAN
    assert network.times("ask") == {LAN: 3.0}


async def test_the_answer_that_comes_when_another_address_is_about_to_ask_is_used(network: Network) -> None:
    network.connects, network.answers = {LAN: 0.0, VPN: 0.0}, {LAN: TURN_PATIENCE}
    used = await network.run(gateway(LAN, VPN))
    assert [address for address in network.times("ask") if address not in network.times("given up")] == [used]


async def test_ssh_is_not_started_while_another_address_is_about_to_work(network: Network) -> None:
    network.connects = {LAN: 0.8, SSH: 0.0}
    assert await network.run(gateway(LAN, SSH)) == LAN
    assert SSH not in network.times("start")


async def test_ssh_is_started_once_the_other_addresses_have_failed_or_had_time(network: Network) -> None:
    network.connects = {SSH: 0.5}
    assert await network.run(gateway(LAN, SSH, VPN)) == SSH
    assert network.times("start") == {LAN: 0.0, VPN: STAGGER, SSH: STAGGER + COSTLY_PATIENCE}
    failing = Network(connects={LAN: 0.0, SSH: 0.5}, errors={LAN: Unreachable("refused")})
    assert await failing.run(gateway(LAN, SSH)) == SSH
    assert failing.times("start") == {LAN: 0.0, SSH: 0.1}


async def test_the_address_that_was_used_is_the_first_of_the_next_connection(
    network: Network, memory: WayMemory
) -> None:
    network.connects = {SSH: 0.5}
    await network.run(gateway(LAN, VPN, SSH, memory=memory))
    network.log.clear()
    assert await network.run(gateway(LAN, VPN, SSH, memory=memory)) == SSH
    assert network.times("start") == {SSH: 0.0, LAN: 0.0, VPN: 0.0}


async def test_a_better_address_that_is_back_is_used_by_the_next_connection(
    network: Network, memory: WayMemory
) -> None:
    network.connects = {VPN: 0.06}
    await network.run(gateway(LAN, VPN, PUBLIC, memory=memory))
    network.connects = {VPN: 0.06, LAN: 0.004}
    assert await network.run(gateway(LAN, VPN, PUBLIC, memory=memory)) == LAN
    assert memory.recall((LAN, VPN, PUBLIC)) is None


async def test_nothing_is_remembered_if_no_address_works(network: Network, memory: WayMemory) -> None:
    with suppress(Unreachable):
        await network.run(gateway(LAN, VPN, memory=memory))
    assert memory.recall((LAN, VPN)) is None


def test_an_address_without_tls_gets_no_pin_authority_or_certificate() -> None:
    whole = replace(
        gateway(LAN, SSH), pin="sha256:x", ca=Path("ca"), cert=Path("cert"), key=Path("key"), command="/x/acp-gateway"
    )
    tls, ssh = whole.at(LAN), whole.at(SSH)
    assert (tls.pin, tls.ca, tls.cert, tls.key, tls.token) == (whole.pin, whole.ca, whole.cert, whole.key, "token")
    assert (ssh.pin, ssh.ca, ssh.cert, ssh.key, ssh.command) == (None, None, None, None, "/x/acp-gateway")
