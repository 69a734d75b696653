"""Ports of agents, by tables of sockets, families of processes and command lines as text."""

import struct

import pytest

from acp_gateway.made.ports import (
    Listener,
    Owned,
    inode_of,
    is_in,
    nearest,
    owned,
    program_name,
    queries,
    read_answers,
    read_listeners,
)

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"


def row(local: str, state: str = "0A", uid: int = 1000, inode: int = 7) -> str:
    return f"   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0"


@pytest.mark.parametrize(
    ("local", "found"),
    [
        ("0100007F:1776", (6006, "127.0.0.1")),
        ("0200007F:1776", (6006, "127.0.0.2")),
        ("00000000:1F40", (8000, "127.0.0.1")),
        ("0100A8C0:1F40", None),
        ("00000000000000000000000001000000:1F40", (8000, "::1")),
        ("00000000000000000000000000000000:1F40", (8000, "::1")),
        ("0000000000000000FFFF00000100007F:1F40", (8000, "127.0.0.1")),
        ("0000000000000000FFFF00000100A8C0:1F40", None),
        ("000080FE000000000000000001000000:1F40", None),
    ],
)
def test_a_listener_counts_if_loopback_reaches_it(local: str, found: tuple[int, str] | None) -> None:
    told = [(each.port, each.host) for each in read_listeners(f"{HEAD}\n{row(local)}\n", "little")]
    assert told == ([] if found is None else [found])


def test_addresses_are_read_in_the_byte_order_of_the_machine() -> None:
    (listener,) = read_listeners(f"{HEAD}\n{row('7F000001:1776')}\n", "big")
    assert listener == Listener(6006, "127.0.0.1", 1000, 7)


@pytest.mark.parametrize("line", [row("0100007F:1776", state="01"), "", "0: x", row("0100007F:XY"), row("01:1776")])
def test_connections_and_lines_that_are_not_understood_are_left_out(line: str) -> None:
    assert list(read_listeners(f"{HEAD}\n{line}\n")) == []


@pytest.mark.parametrize(("link", "inode"), [("socket:[123]", 123), ("pipe:[123]", None), ("/tmp/socket:[1]", None)])
def test_the_link_of_a_descriptor_names_a_socket(link: str, inode: int | None) -> None:
    assert inode_of(link) == inode


def listener(port: int = 8000, host: str = "127.0.0.1", uid: int = 1000, inode: int = 7) -> Listener:
    return Listener(port, host, uid, inode)


def found(
    *listeners: Listener,
    holders: dict[int, list[int]],
    trees: dict[str, set[int]] | None = None,
    configured: dict[str, list[tuple[int, int]]] | None = None,
) -> list[tuple[str, int]]:
    told = owned(listeners, holders, trees or {}, configured or {}, uid=1000, gateway=1)
    return [(each.owner, each.listener.port) for each in told]


def test_a_port_is_that_of_the_agent_whose_process_holds_its_socket() -> None:
    trees = {"a": {10, 11}, "b": {20}}
    assert owned([listener()], {7: [12, 11, 10]}, {"a": {10, 11, 12}}, {}, uid=1000, gateway=1) == [
        Owned("a", listener(), 10, frozenset({7}))
    ]
    assert found(listener(), holders={7: [20]}, trees=trees) == [("b", 8000)]
    assert found(listener(), holders={7: [30]}, trees=trees) == []
    assert found(listener(), holders={}, trees=trees) == []


@pytest.mark.parametrize("pids", [[10, 20], [10, 30], [1], [10, 1]])
def test_a_socket_that_another_process_holds_as_well_is_left_out(pids: list[int]) -> None:
    assert found(listener(), holders={7: pids}, trees={"a": {10}, "b": {20}}) == []


def test_a_port_that_another_process_shares_is_left_out() -> None:
    trees, holders = {"a": {10}, "b": {20}}, {7: [10], 8: [20]}
    assert found(listener(), listener(inode=8), holders=holders, trees=trees) == []
    # At another address no connection gets lost there.
    assert found(listener(), listener(host="127.0.0.2", inode=8), holders=holders, trees=trees) == [
        ("a", 8000),
        ("b", 8000),
    ]


def test_what_another_user_listens_on_is_left_out_even_if_the_configuration_names_it() -> None:
    everything = {"a": [(1, 65535)]}
    assert found(listener(uid=1001), holders={7: [10]}, trees={"a": {10}}, configured=everything) == []


def test_a_port_of_the_configuration_is_the_agents_unless_another_agent_or_the_gateway_holds_it() -> None:
    configured = {"a": [(8000, 8010)]}
    assert found(listener(), holders={7: [30]}, configured=configured) == [("a", 8000)]
    assert found(listener(8011), holders={7: [30]}, configured=configured) == []
    assert found(listener(), holders={7: [20]}, trees={"b": {20}}, configured=configured) == [("b", 8000)]
    assert found(listener(), holders={7: [1]}, configured=configured) == []


def test_a_port_of_the_agent_itself_is_left_out_unless_the_configuration_names_it() -> None:
    trees = {"a": {10, 11}}
    for holders in [10], [10, 11]:
        assert owned([listener()], {7: holders}, trees, {}, uid=1000, gateway=1, own={10}) == []
        (told,) = owned([listener()], {7: holders}, trees, {"a": [(8000, 8000)]}, uid=1000, gateway=1, own={10})
        assert (told.owner, told.pid) == ("a", 10)


def test_a_port_of_the_configuration_may_be_held_by_a_process_of_the_same_agent() -> None:
    trees, configured = {("a", 1): {10}, ("b", 1): {20}}, {("a", 0): [(8000, 8000)]}
    for pid, owners in (10, {("a", 0), ("a", 1)}), (20, {("b", 1)}):
        told = owned([listener()], {7: [pid]}, trees, configured, uid=1000, gateway=1, agent_of=lambda owner: owner[0])
        assert {each.owner for each in told} == owners


def test_a_port_with_listeners_of_both_families_is_told_once_by_the_older_one() -> None:
    both = [listener(host="::1", inode=8), listener()]
    (told,) = owned(both, {7: [10], 8: [10]}, {"a": {10}}, {}, uid=1000, gateway=1)
    assert told.listener.host == "127.0.0.1"


def answer(family: int, address: bytes, port: int = 6006, *, kind: int = 20) -> bytes:
    """A netlink message about a socket."""
    place = struct.pack("!HH16s16s12x", port, 0, address, b"")
    return struct.pack("=IHHII", 88, kind, 2, 1, 0) + struct.pack("=BBxx48s12xII", family, 10, place, 1000, 7)


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def test_answers_of_the_kernel_are_read_to_their_end() -> None:
    parts = answer(2, bytes((127, 0, 0, 1))), answer(10, bytes(16)), answer(2, bytes((10, 0, 0, 1)))
    found = [Listener(6006, "127.0.0.1", 1000, 7), Listener(6006, "::1", 1000, 7)]
    assert read_answers(b"".join(parts)) == (found, False)
    assert read_answers(b"".join(parts) + DONE) == (found, True)
    assert read_answers(DONE) == ([], True)


@pytest.mark.parametrize(
    "data",
    [
        answer(2, bytes(4))[:-1],
        answer(2, bytes(4), kind=2),
        answer(7, bytes(4)),
        struct.pack("=IHHII", 0, 20, 0, 0, 0) + bytes(72),
        b"x",
    ],
)
def test_an_answer_that_is_not_understood_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_answers(data)


def test_the_kernel_is_asked_for_one_port_of_both_families() -> None:
    for query, family in zip(queries(6006), (2, 10), strict=True):
        assert struct.unpack_from("=IH", query) == (len(query), 20)
        assert query[16:18] == bytes((family, 6))
        assert struct.unpack_from("=I", query, 20) == (1 << 10,)
        assert struct.unpack_from("!H", query, 24) == (6006,)


def test_ranges_have_their_ends() -> None:
    assert [port for port in range(7998, 8013) if is_in(port, [(8000, 8010)])] == list(range(8000, 8011))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/tensorboard --logdir runs", "tensorboard"),
        ("/usr/bin/python3 /venv/bin/tensorboard --logdir runs", "tensorboard"),
        ("python3.11 -u -m http.server 8000", "http.server"),
        ("python app.py --password=secret", "app"),
        ("python -c import-everything", "python"),
        ("node /srv/node_modules/.bin/vite --port 5173", "vite"),
        ("node", "node"),
        ("", ""),
    ],
)
def test_a_program_is_named_without_the_arguments_that_may_hold_secrets(line: str, name: str) -> None:
    assert program_name(line.split()) == name


def test_the_name_of_a_program_is_bounded() -> None:
    assert len(program_name(["x" * 1000])) == 40


@pytest.mark.parametrize(
    ("folder", "place"),
    [("/srv/a/b", "/srv/a"), ("/srv/a", "/srv/a"), ("/srv/ab", "/srv"), ("/home", None), ("", None)],
)
def test_a_folder_is_in_the_deepest_place_around_it(folder: str, place: str | None) -> None:
    assert nearest(folder, ["/srv", "/srv/a"]) == place
