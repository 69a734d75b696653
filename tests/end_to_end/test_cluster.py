"""Three nodes of a cluster, Redis and editors, as programs: what ends, hangs or is cut, and what goes on.

`test_many_machines.py` has nodes that a section names.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from acp_gateway.protocol.gaps import MAY_BE_MISSING
from tests.end_to_end.switch import Switch
from tests.end_to_end.test_outages import Editor, Gate
from tests.end_to_end.traces import TRACES
from tests.kit import running
from tests.kit.free_ports import free_port
from tests.kit.redis_server import RedisServer
from tests.kit.running import (
    AGENTS,
    WORK,
    RunningGateway,
    prepare,
    run_and_warn,
    run_program,
    start_gateway,
    until,
)

pytestmark = pytest.mark.cluster

NAMES = ("gpu1", "gpu2", "gpu3")
TTL = 2.0
LOST = "the directory of the cluster is lost since "


@dataclass
class Machine:
    """A node, which listens at the same port and is found at the same address when it is started again."""

    name: str
    directory: Path
    pin: str
    way: Switch
    gateway: RunningGateway

    def start(self) -> None:
        """Start another process."""
        self.gateway = start_hurried(self.directory, self.pin)

    def kill(self) -> None:
        """End the process at once."""
        self.gateway.process.kill()
        self.gateway.process.wait(60)
        assert self.gateway.process.stderr is not None
        self.gateway.process.stderr.close()

    def stop(self) -> None:
        """End it as a service manager does."""
        assert self.gateway.stop() == 0, "".join(self.gateway.log)
        assert "Traceback" not in "".join(self.gateway.log)

    def until_in(self, words: str, *command: str) -> None:
        """Wait until a command prints these words."""
        until(lambda: words in run_program(*command, "--config", self.gateway.config))

    def until_directory_is_there(self) -> None:
        """Wait until nothing tells of a lost directory."""
        until(lambda: not any(LOST in text for text in self.told_problems))

    def until_directory_is_lost(self) -> None:
        """Wait until everything tells of a lost directory."""
        until(lambda: all(LOST in text for text in self.told_problems))

    def until_up(self) -> None:
        """Wait until it knows that all other nodes are there."""
        until(lambda: [*self.nodes.values()] == [True] * (len(NAMES) - 1))

    def until_known(self, name: str, *, up: bool) -> None:
        """Wait until it knows that another node is there, or away. Its log may tell of an earlier time."""
        until(lambda: self.nodes.get(name, False) == up)

    @property
    def listed(self) -> dict[str, dict[str, Any]]:
        """By id: the sessions that its user is told."""
        return {session["sessionId"]: session for session in self.gateway.sessions()}

    @property
    def nodes(self) -> dict[str, bool]:
        """By name: whether a node is there."""
        found = json.loads(run_program("nodes", "--config", self.gateway.config, "--json"))
        return {node["name"]: node["up"] for node in found}

    @property
    def told_problems(self) -> tuple[str, str, str]:
        """Return the answers of `/readyz`, `sessions` and `status`."""
        address = urlsplit(self.gateway.urls["ws"])
        with closing(HTTPConnection("127.0.0.1", address.port, timeout=60)) as connection:
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {self.gateway.token}"})
            ready = connection.getresponse().read().decode()
        warnings = run_and_warn("sessions", self.gateway.urls["tcp"], "--token-file", self.gateway.token_file)[1]
        return ready, warnings, run_program("status", "--config", self.gateway.config)


class Cluster:
    """The nodes by name, and Redis."""

    def __init__(self, redis: RedisServer, machines: dict[str, Machine]) -> None:
        self.redis = redis
        self.machines = machines

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines.values())

    def until_known(self) -> None:
        """Wait until each node knows that each other one is there."""
        for machine in self:
            machine.until_up()

    def until_announced(self, *names: str) -> None:
        """Wait until nodes have written their records, which expire soon."""
        until(lambda: self.keys >= {f"{{acp}}:node:{name}" for name in names})

    def until_withdrawn(self, name: str) -> None:
        """Wait until there is no record of a node: one that could not be removed expires."""
        until(lambda: not self.redis.ask("EXISTS", f"{{acp}}:node:{name}"))

    @property
    def keys(self) -> set[str]:
        """The names of all that is in Redis."""
        return {*self.redis.ask("KEYS", "*")}


def until_listed(front: Machine, *sessions: str, token_file: Path | None = None) -> None:
    """Wait until a front lists exactly these sessions to a token: it does not wait for a slow node."""
    deadline = time.monotonic() + 60
    while (found := {session["sessionId"] for session in front.gateway.sessions(token_file)}) != {*sessions}:
        assert time.monotonic() < deadline, found ^ {*sessions}


def start_hurried(directory: Path, pin: str) -> RunningGateway:
    """Start a gateway that is in a hurry to reconnect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PROGRAM", [sys.executable, str(AGENTS / "hurried.py"), os.devnull])
        return start_gateway(directory, pin)


@contextmanager
def one_machine(directory: Path, redis: RedisServer, token_file: Path) -> Iterator[Machine]:
    directory.mkdir()
    (directory / "agent").mkdir()
    port = free_port()
    with Switch(port).running() as way:
        command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "agent")]
        sections = f"""
[agents.memory]
command = {json.dumps(command)}
eof_grace = 0.1

[cluster]
url = "{redis.url}"
name = "{directory.name}"
token_file = "{token_file}"
advertise = "wss://127.0.0.1:{way.port}"
ttl = {TTL}
renew = 0.3
timeout = 1
"""
        pin = prepare(directory, sections, ports={"wss": port})
        machine = Machine(directory.name, directory, pin, way, start_hurried(directory, pin))
        try:
            yield machine
        finally:
            if machine.gateway.process.poll() is None:
                machine.gateway.process.send_signal(signal.SIGCONT)
                machine.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes that know each other."""
    token_file = tmp_path / "cluster.token"
    run_program("token", "cluster", "--output", str(token_file))
    TRACES.note_tokens_in(token_file.read_text())
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        machines = {name: stack.enter_context(one_machine(tmp_path / name, redis, token_file)) for name in NAMES}
        cluster = Cluster(redis, machines)
        for machine in cluster:
            machine.until_up()
        yield cluster


def named(session: str, owner: Machine, front: Machine) -> str:
    """The id of a session at a front."""
    return session if owner is front else f"{owner.name}/{session}"


def test_any_of_three_nodes_leads_to_the_others_and_tokens_count_on_all_until_they_are_revoked(
    cluster: Cluster,
) -> None:
    gpu1, gpu2, gpu3 = cluster
    with ExitStack() as stack:
        opened = {}
        for front, owner in ((gpu1, gpu2), (gpu2, gpu3), (gpu3, gpu1)):
            editor = stack.enter_context(Editor(front.gateway, "unix", "--agent", f"{owner.name}/memory"))
            editor.open_session()
            assert editor.talk(f"through {front.name}") == "end_turn"
            opened[owner.name] = editor
        for front in cluster:
            until_listed(
                front, *(named(editor.session, cluster.machines[owner], front) for owner, editor in opened.items())
            )
        with Editor(gpu3.gateway, "unix", "--attach", f"gpu2/{opened['gpu2'].session}") as late:
            assert late.open_session() == opened["gpu2"].session
            late.until_told("through gpu1")
            assert late.talk("through another front") == "end_turn"
        opened["gpu2"].until_told("through another front")

    token = gpu1.gateway.save_token("token", "create", "--label", "shared")
    for machine in (gpu2, gpu3):
        machine.until_in("shared", "token", "list")
    gate = Gate()
    with (
        Editor(gpu2.gateway, "wss", "--token-file", str(token)) as direct,
        Editor(gpu3.gateway, "wss", "--token-file", str(token), "--agent", "gpu2/memory") as through,
    ):
        for editor in (direct, through):
            editor.open_session()
            assert editor.talk("with a token of gpu1") == "end_turn"
        direct.prompt("in a turn", gate.command)
        direct.until_told("in a turn")
        rows = json.loads(run_program("token", "list", "--json", "--config", gpu1.gateway.config))["tokens"]
        (shared,) = (row["id"] for row in rows if row["label"] == "shared")
        run_program("token", "revoke", shared, "--config", gpu1.gateway.config)
        for editor in (direct, through):
            with pytest.raises(AssertionError, match="the shim has ended"):
                editor.until(lambda _: False)
            assert editor.process.wait(60) == 4
        for machine in cluster:
            with pytest.raises(AssertionError, match="token"):
                machine.gateway.sessions(token)
    gate.open()


def test_a_thousand_sessions_of_three_nodes_are_listed_and_joined_at_any_front(cluster: Cluster) -> None:
    expected = {}
    for machine in cluster:
        with Editor(machine.gateway, "unix") as editor:
            asked = [editor.request("session/new", {"cwd": str(WORK), "mcpServers": []}) for _ in range(334)]
            opened = [editor.answer(request)["result"]["sessionId"] for request in asked]
        expected[machine.name] = opened
    for front in cluster:
        until_listed(front, *(named(session, owner, front) for owner in cluster for session in expected[owner.name]))
        for owner in cluster:
            for session in expected[owner.name][::200]:
                with Editor(front.gateway, "unix", "--attach", named(session, owner, front)) as editor:
                    assert editor.open_session() == session
                    assert editor.talk(f"from {front.name}") == "end_turn"
    gpu1, gpu2, gpu3 = cluster
    # Redis has none of them.
    whole = {f"{{acp}}:{name}" for name in ("changed", "version", "tokens-number", "tokens", "confirmed")}
    assert cluster.keys <= whole | {f"{{acp}}:node:{name}" for name in NAMES}
    gpu3.kill()
    gpu1.until_known("gpu3", up=False)
    others = {named(session, owner, gpu1) for owner in (gpu1, gpu2) for session in expected[owner.name]}
    until(lambda: {*gpu1.listed} >= others)
    until(lambda: "the node gpu3 " in gpu1.told_problems[1])


def test_a_node_that_is_killed_ends_its_turns_alone_and_everything_is_as_before_when_it_is_back(
    cluster: Cluster,
) -> None:
    gpu1, gpu2, _ = cluster
    gate = Gate()
    with (
        Editor(gpu1.gateway, "unix", "--agent", "gpu2/memory") as editor,
        Editor(gpu1.gateway, "unix", "--agent", "gpu3/memory") as other,
    ):
        editor.open_session()
        other.open_session()
        prompt = editor.prompt("before the kill", gate.command)
        editor.until_told("before the kill")
        until(lambda: f"gpu2/{editor.session}" in gpu1.listed)
        gpu2.kill()
        gpu1.until_known("gpu2", up=False)
        assert other.talk("goes on") == "end_turn"
        until(lambda: "the node gpu2 " in gpu1.told_problems[1])
        gpu2.start()
        assert editor.answer(prompt)["error"]["data"]["reason"] == "gateway_restarted"
        assert editor.talk("after the kill") == "end_turn"
        assert len(editor.answers_to(prompt)) == 1
        # The node tells of each kill that its history may have a gap.
        assert len(editor.told) == 3, editor.told
        before, missing, after = editor.told
        assert (before, after) == ("before the kill", "after the kill")
        assert MAY_BE_MISSING in missing
        cluster.until_known()
        with Editor(gpu2.gateway, "unix", "--agent", "gpu1/memory") as back:
            back.open_session()
            assert back.talk("as a front") == "end_turn"


def test_a_front_that_is_killed_costs_its_clients_and_the_node_nothing(cluster: Cluster) -> None:
    gpu1, gpu2, gpu3 = cluster
    gate = Gate()
    with Editor(gpu1.gateway, "wss", "--agent", "gpu2/memory") as editor, Editor(gpu2.gateway, "unix") as direct:
        session = editor.open_session()
        direct.load(session)
        prompt = editor.prompt("before the kill", gate.command, "after the kill")
        editor.until_told("before the kill")
        direct.until_told("before the kill")
        gpu1.kill()
        # Else a session that was opened since the last look at the node is not known there.
        until(lambda: f"gpu2/{session}" in gpu3.listed)
        with Editor(gpu3.gateway, "unix", "--attach", f"gpu2/{session}") as late:
            assert late.open_session() == session
            late.until_told("before the kill")
            gate.open()
            late.until_told("after the kill")
        direct.until_told("after the kill")
        gpu1.start()
        assert editor.stop_reason(prompt) == "end_turn"
        assert editor.talk("through the front again") == "end_turn"
        assert editor.told == ["before the kill", "after the kill", "through the front again"]
        direct.until_told("through the front again")
        assert len(editor.answers_to(prompt)) == 1


def test_redis_that_is_killed_in_mid_turn_is_missed_by_no_client_and_written_again(cluster: Cluster) -> None:
    gpu1, _, gpu3 = cluster
    gates = [Gate(), Gate()]
    with Editor(gpu1.gateway, "unix", "--agent", "gpu2/memory") as editor:
        editor.open_session()
        prompt = editor.prompt("with Redis", gates[0].command, "without", gates[1].command, "with Redis again")
        editor.until_told("with Redis")
        for machine in cluster:
            machine.until_directory_is_there()
        cluster.redis.kill()
        for machine in cluster:
            machine.until_directory_is_lost()
            assert machine.told_problems[0].startswith("ready")
        gates[0].open()
        editor.until_told("without")
        with Editor(gpu3.gateway, "unix", "--agent", "gpu1/memory") as other:
            between = other.open_session()
            assert other.talk("between") == "end_turn"
        ids = (f"gpu2/{editor.session}", between)
        until_listed(gpu1, *ids)
        cluster.redis.start()
        for machine in cluster:
            machine.until_directory_is_there()
        cluster.until_announced(*NAMES)
        gates[1].open()
        assert editor.stop_reason(prompt) == "end_turn"
        assert editor.told == ["with Redis", "without", "with Redis again"]
        until_listed(gpu1, *ids)


def test_redis_that_is_emptied_is_written_again_in_one_renewal(cluster: Cluster) -> None:
    gpu1, gpu2, gpu3 = cluster
    opened = []
    for front, agent in ((gpu1, "gpu2/memory"), (gpu2, "memory"), (gpu3, "gpu1/memory")):
        with Editor(front.gateway, "unix", "--agent", agent) as editor:
            opened.append(editor.open_session())
            assert editor.talk("hello") == "end_turn"
    token = gpu1.gateway.save_token("token", "create", "--label", "shared")
    gpu3.gateway.save_token("token", "create", "--label", "revoked")
    shared = ("{acp}:tokens", "{acp}:revoked")
    rows = json.loads(run_program("token", "list", "--json", "--config", gpu3.gateway.config))["tokens"]
    (revoked,) = (row["id"] for row in rows if row["label"] == "revoked")
    # These two and the first one of each node.
    until(lambda: cluster.redis.ask("HLEN", shared[0]) == len(NAMES) + 2)
    for machine in (gpu2, gpu3):
        machine.until_in("shared", "token", "list")
    run_program("token", "revoke", revoked, "--config", gpu3.gateway.config)
    until(lambda: cluster.redis.ask("EXISTS", shared[1]) and not cluster.redis.ask("HEXISTS", shared[0], revoked))
    records = {f"{{acp}}:node:{name}" for name in NAMES}
    keys, tokens = cluster.keys | records, {*cluster.redis.ask("HKEYS", shared[0])}
    cluster.redis.ask("FLUSHALL")
    until(lambda: cluster.keys == keys)
    until(lambda: {*cluster.redis.ask("HKEYS", shared[0])} == tokens)
    for machine in cluster:
        names = [named(session, owner, machine) for session, owner in zip(opened, (gpu2, gpu2, gpu1), strict=True)]
        until_listed(machine, *names)
        until_listed(machine, *names, token_file=token)


def test_a_partition_between_nodes_that_redis_does_not_see_is_a_pause_for_that_route_alone(cluster: Cluster) -> None:
    gpu1, gpu2, _ = cluster
    gates = [Gate(), Gate()]
    with (
        Editor(gpu1.gateway, "unix", "--agent", "gpu2/memory") as editor,
        Editor(gpu1.gateway, "unix", "--agent", "gpu3/memory") as other,
        Editor(gpu2.gateway, "unix", "--agent", "gpu1/memory") as backwards,
    ):
        for each in (editor, other, backwards):
            each.open_session()
        prompt = editor.prompt("before", gates[0].command, "between", gates[1].command, "after")
        editor.until_told("before")
        until(lambda: f"gpu2/{editor.session}" in gpu1.listed)
        gpu2.way.cut()
        gpu1.until_known("gpu2", up=False)
        gates[0].open()
        assert other.talk("to another node") == "end_turn"
        assert backwards.talk("the other way") == "end_turn"
        until(lambda: "the node gpu2 " in gpu1.told_problems[1])
        until(lambda: gpu1.nodes == {"gpu2": False, "gpu3": True})
        cluster.until_announced(*NAMES)
        with Editor(gpu2.gateway, "unix", "--attach", editor.session) as direct:
            direct.open_session()
            direct.until_told("between")
        assert "between" not in editor.told
        gpu2.way.mend()
        editor.until_told("between")
        gates[1].open()
        assert editor.stop_reason(prompt) == "end_turn"
        assert editor.told == ["before", "between", "after"]
        cluster.until_known()


def test_an_owner_and_a_front_that_are_restarted_say_goodbye_and_come_back(cluster: Cluster) -> None:
    gpu1, gpu2, gpu3 = cluster
    with (
        Editor(gpu1.gateway, "wss", "--agent", "gpu2/memory") as editor,
        Editor(gpu3.gateway, "unix", "--agent", "gpu1/memory") as other,
    ):
        editor.open_session()
        other.open_session()
        for restarted, others in ((gpu2, (gpu1, gpu3)), (gpu1, (gpu2, gpu3))):
            assert editor.talk(f"before the end of {restarted.name}") == "end_turn"
            assert other.talk(f"before the end of {restarted.name}") == "end_turn"
            restarted.stop()
            cluster.until_withdrawn(restarted.name)
            for machine in others:
                machine.until_known(restarted.name, up=False)
            restarted.start()
            for machine in others:
                machine.until_known(restarted.name, up=True)
            restarted.until_up()
            # It may know and be known before it has written its record.
            cluster.until_announced(restarted.name)
            assert editor.talk(f"after the end of {restarted.name}") == "end_turn"
            assert other.talk(f"after the end of {restarted.name}") == "end_turn"
            assert "another process is the node" not in "".join(restarted.gateway.log)
        expected = [f"{when} the end of {name}" for name in ("gpu2", "gpu1") for when in ("before", "after")]
        assert editor.told == other.told == expected
