"""The commands of pairing: what they write and say. The machine is made up but for its own command."""

import io
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from acp_gateway.cli.client import editor_files
from acp_gateway.cli.client import pair as pairing_cli
from acp_gateway.cli.main import main
from acp_gateway.client import control, joining, pairing, ssh
from acp_gateway.client.dialing import Destination
from acp_gateway.client.joining import Invitation, Joined
from acp_gateway.client.pairing import ListenerPin, Offer
from acp_gateway.client.ssh import SshTarget
from acp_gateway.config.addresses import parse_address
from acp_gateway.config.editing import section_writer
from acp_gateway.config.hosts import load_hosts
from acp_gateway.diagnosis.checks import fault
from acp_gateway.errors import AccessError, ConfigError, Forbidden, GatewayError, TrustError, Unauthorized, Unreachable
from acp_gateway.security.token_format import mint, read_token_file
from tests.kit.doubles import run_command as run

PIN = "sha256:" + "0a" * 32


class Machine:
    """A fake machine that accepts each pairing, with a gateway that answers at some addresses."""

    def __init__(self, config_home: Path) -> None:
        self.hosts = config_home / "acp-gateway" / "hosts.toml"
        self.listeners = ["wss://0.0.0.0:7443"]
        self.relayed = True
        self.told_hosts: tuple[str, ...] = ()
        self.failing_hosts: dict[str, GatewayError] = {}
        self.kept = False
        self.host_name = "192.0.2.1"
        self.asked: list[tuple[SshTarget, str, tuple[str, ...]]] = []
        # What it is told of its tokens, and what it fails to do then.
        self.told: list[str] = []
        self.broken: set[str] = set()
        self.tokens: list[str] = []
        self.dialed: list[Destination] = []
        self.failures: dict[str, GatewayError] = {}
        self.steps: list[tuple[str | None, ...]] = []

    def install(self, target: SshTarget) -> None:
        assert self.tokens == []
        self.steps.append(("install", target.login))

    def try_agent(self, name: str, folder: str | None) -> None:
        self.steps.append(("try_agent", name, folder))

    @asynccontextmanager
    async def open_pairing(
        self, way: SshTarget, *, label: str, agents: tuple[str, ...], time_limit: float
    ) -> AsyncIterator["FakePairing"]:
        self.asked.append((way, label, agents))
        self.tokens.append(mint())
        listeners = tuple(ListenerPin(parse_address(url), PIN) for url in self.listeners)
        token_id = f"{len(self.tokens):08x}"
        offer = Offer(listeners, self.relayed, "/opt/acp-gateway", self.tokens[-1], token_id, self.told_hosts)
        yield FakePairing(self, offer)

    async def find_host_name(self, way: SshTarget) -> str:
        return self.host_name

    async def list_sessions(self, destination: Destination, *, time_limit: float) -> control.Listing:
        self.dialed.append(destination)
        address = destination.address
        failure = self.failing_hosts.get(address.host) or self.failures.get(address.scheme)
        if failure is not None:
            raise failure
        return control.Listing([])

    def pair(self, *arguments: str) -> Result:
        """Pair with it; no token may be shown."""
        result = run("pair", *arguments)
        assert not any(token in result.output for token in self.tokens)
        return result

    def entry(self, name: str = "box") -> dict[str, str]:
        """Collects output as it is written."""
        block = self.hosts.read_text().partition(f"[hosts.{name}]\n")[2].partition("\n[")[0]
        return dict(line.split(" = ", 1) for line in block.splitlines() if " = " in line)


class FakePairing:
    """A pairing with the machine that is under way."""

    def __init__(self, machine: Machine, offer: Offer) -> None:
        self.offer = offer
        self._machine = machine

    async def keep(self) -> None:
        self._tell("keep")

    async def replace(self, token_id: str) -> bool:
        self._tell(f"replace {token_id}")
        return not self._machine.kept

    async def withdraw(self) -> None:
        self._tell("withdraw")

    def _tell(self, line: str) -> None:
        self._machine.told.append(line)
        if line.split()[0] in self._machine.broken:
            raise Unreachable("the line is cut")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(pairing, "open_pairing", machine.open_pairing)
    monkeypatch.setattr(ssh, "find_host_name", machine.find_host_name)
    monkeypatch.setattr(control, "list_sessions", machine.list_sessions)
    monkeypatch.setattr("platform.node", lambda: "Ann's laptop")
    monkeypatch.setattr(editor_files, "installed_editors", lambda _: [])
    monkeypatch.setattr(pairing_cli, "try_agent", machine.try_agent)
    monkeypatch.setattr(pairing_cli, "show_editors", lambda *words: machine.steps.append(("show_editors", *words)))
    monkeypatch.setattr(pairing_cli, "install_there", machine.install)
    monkeypatch.setattr(pairing_cli, "choose_machine", lambda: "ann@chosen")
    return machine


# pair


@pytest.fixture
def door(machine: Machine) -> str:
    """A door in hosts.toml; returns its token."""
    token = mint("tunnel")
    machine.hosts.parent.mkdir()
    (machine.hosts.parent / "door.token").touch(0o600)
    (machine.hosts.parent / "door.token").write_text(token)
    machine.hosts.touch(0o600)
    machine.hosts.write_text('[hosts.door]\nurl = "door.example"\ntoken_file = "door.token"\n')
    return token


def test_a_gateway_behind_a_door_is_tried_and_saved_through_its_tunnel(machine: Machine, door: str) -> None:
    machine.listeners = ["tcp+tls://0.0.0.0:7444", "wss://0.0.0.0:7443"]
    result = machine.pair("ann@box", "--via", "door")
    assert result.exit_code == 0, result.output
    (tried,) = machine.dialed
    assert tried.via is not None
    assert (tried.token, tried.via.node, tried.via.door.token) == (machine.tokens[0], "box", door)
    entry = machine.entry()
    assert (entry["url"], entry["via"], entry["pin"]) == ('"wss://box:7443/acp"', '"door"', f'"{PIN}"')
    # Pairing again keeps the door.
    assert machine.pair("ann@box").exit_code == 0
    assert machine.dialed[-1].via is not None
    assert machine.entry()["via"] == '"door"'


def test_pairing_fails_before_a_token_is_made_if_there_is_no_such_door(machine: Machine) -> None:
    result = machine.pair("ann@box", "--via", "door")
    assert result.exit_code == 2
    assert "is not in hosts.toml" in result.stderr
    assert machine.tokens == []


def test_a_gateway_without_tls_can_not_be_behind_a_door(machine: Machine, door: str) -> None:
    machine.listeners = ["unix:///run/acp"]
    result = machine.pair("ann@box", "--via", "door")
    assert result.exit_code != 0
    assert "needs a wss:// listener to be behind a door" in result.stderr
    assert machine.told == ["withdraw"]


def test_everything_that_it_takes_is_written_and_the_next_step_said(machine: Machine) -> None:
    result = machine.pair("ann@box")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Next: acp-gateway connect box --install zed\n"
    assert machine.entry() == {
        "url": '["wss://192.0.2.1:7443/acp", "ssh://ann@box"]',
        "token_file": '"box.token"',
        "token_id": '"00000001"',
        "pin": f'"{PIN}"',
        "command": '"/opt/acp-gateway"',
    }
    host = load_hosts(machine.hosts)["box"]
    assert host.token_file == machine.hosts.with_name("box.token")
    assert read_token_file(host.token_file) == machine.tokens[0]
    assert {stat.S_IMODE(path.stat().st_mode) for path in machine.hosts.parent.iterdir()} == {0o600}
    ((way, label, agents),) = machine.asked
    assert (str(way.address), way.command, way.options, way.asks) == ("ssh://ann@box", None, (), False)
    assert (label, agents) == ("Ann-s laptop", ())
    assert machine.told == ["keep"]
    assert f'Paired with box (wss://192.0.2.1:7443/acp), saved as "box" in {machine.hosts}.' in result.stderr
    assert "Its other addresses, for other networks: ssh://ann@box\n" in result.stderr
    destination = machine.dialed[0]
    assert (destination.token, destination.pin, destination.connect_params) == (
        machine.tokens[0],
        PIN,
        {"control": True},
    )


def test_pair_with_json_prints_the_host_and_whether_the_previous_token_is_valid(machine: Machine) -> None:
    result = machine.pair("box", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "name": "box",
        "hosts": str(machine.hosts),
        "address": "wss://192.0.2.1:7443/acp",
        "addresses": ["wss://192.0.2.1:7443/acp", "ssh://box"],
        "tokenId": "00000001",
        "previousTokenId": None,
        "previousTokenValid": False,
        "next": "acp-gateway connect box --install zed",
    }
    machine.kept = True
    again = json.loads(machine.pair("box", "--label", "other", "--json").stdout)
    assert (again["previousTokenId"], again["previousTokenValid"]) == ("00000001", True)


def test_a_pairing_ends_with_the_agent_and_the_editors(machine: Machine) -> None:
    machine.pair("box", "--name", "b")
    assert machine.steps == [("try_agent", "b", None), ("show_editors", "b")]


def test_a_map_that_is_refused_is_not_saved_and_the_command_to_run_again_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.pair("box", "--map", "/e=/f").exit_code == 0
    refused = replace(fault("session", "no such folder", "", 3), folder="/srv/my proj")
    monkeypatch.setattr(pairing_cli, "try_agent", lambda *_: refused)
    result = machine.pair("ann@box", "--name", "box", "--map", "/a=/srv/porj", "--map", "/b=/c")
    assert result.exit_code == 3
    again = "acp-gateway pair ann@box --name box --map '/a=/srv/my proj' --map /b=/c"
    assert result.stdout == f"Next: {again}\n"
    assert "The map is not saved" in result.stderr
    assert load_hosts(machine.hosts)["box"].maps == (("/e", "/f"),)
    assert ("show_editors", "box") not in machine.steps[2:]
    told = machine.pair("new", "--map", "/a=/srv/porj", "--json")
    assert (told.exit_code, json.loads(told.stdout)["next"]) == (3, "acp-gateway pair new --map '/a=/srv/my proj'")
    assert load_hosts(machine.hosts)["new"].maps == ()


def test_without_a_machine_one_is_chosen(machine: Machine) -> None:
    assert machine.pair().exit_code == 0
    assert machine.asked[0][0].login == "ann@chosen"


def test_path_maps_are_saved_and_those_that_are_there_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert machine.pair("box", "--map", "~/proj=/srv/proj", "--map", "/a b=/c").exit_code == 0
    assert load_hosts(machine.hosts)["box"].maps == (("/home/ann/proj", "/srv/proj"), ("/a b", "/c"))
    assert machine.steps[0] == ("try_agent", "box", "/home/ann/proj")
    assert machine.pair("box", "--map", "/a b=/d", "--map", "/e=/f").exit_code == 0
    maps = (("/home/ann/proj", "/srv/proj"), ("/a b", "/d"), ("/e", "/f"))
    assert load_hosts(machine.hosts)["box"].maps == maps
    machine.pair("box")
    assert load_hosts(machine.hosts)["box"].maps == maps


def test_path_maps_that_could_not_be_saved_are_refused_before_anything_is_done(machine: Machine) -> None:
    assert machine.pair("box", "--map", "proj=/srv").exit_code == 2
    machine.hosts.parent.mkdir()
    machine.hosts.write_text('[hosts.box]\nurl = "box"\n[hosts.box.maps]\n"/a" = "/b"\n')
    result = machine.pair("box", "--map", "/c=/d")
    assert result.exit_code == 3
    assert "in a way that this can't change" in result.stderr
    assert machine.asked == []


def test_the_program_is_installed_before_a_token_is_made(machine: Machine) -> None:
    assert machine.pair("ann@box", "--install").exit_code == 0
    assert machine.steps[0] == ("install", "ann@box")


def test_options_are_passed_on_and_those_of_ssh_remembered(machine: Machine) -> None:
    options = ["--name", "b", "--label", "tv", "--command", "~/x", "--agent", "a", "--agent", "b"]
    result = machine.pair("ssh://box:2222", *options, "--ssh-option", "IdentityFile=~/.ssh/k", "--ssh-option", "A=b")
    assert result.exit_code == 0, result.output
    ((way, label, agents),) = machine.asked
    assert (str(way.address), way.command) == ("ssh://box:2222", "~/x")
    assert (label, agents) == ("tv", ("a", "b"))
    assert machine.entry("b")["ssh_options"] == '["IdentityFile=~/.ssh/k", "A=b"]'
    machine.pair("box", "--name", "b")
    assert machine.asked[1][0].options == ("IdentityFile=~/.ssh/k", "A=b")
    assert machine.asked[1][0].command == "/opt/acp-gateway"


def test_pairing_again_names_the_token_of_before_and_keeps_what_else_is_there(machine: Machine) -> None:
    machine.pair("box")
    text = machine.hosts.read_text().replace("[hosts.box]\n", '# mine\n[hosts.box]\nagent = "demo"  # the one\n')
    machine.hosts.write_text(text)
    result = machine.pair("box")
    assert result.exit_code == 0, result.output
    assert machine.told == ["keep", "keep", "replace 00000001"]
    assert machine.hosts.read_text() == text.replace("00000001", "00000002")
    assert read_token_file(machine.hosts.with_name("box.token")) == machine.tokens[1]


def test_a_token_that_could_not_be_replaced_is_said(machine: Machine) -> None:
    machine.pair("box")
    machine.kept = True
    result = machine.pair("box", "--label", "other")
    assert "warning: the previous token 00000001 is still valid" in result.stderr
    assert result.exit_code == 0
    machine.broken.add("replace")
    result = machine.pair("box")
    assert "warning: the previous token 00000002 is still valid" in result.stderr
    assert result.exit_code == 0


def urls(machine: Machine) -> list[str]:
    host = load_hosts(machine.hosts)["box"]
    return [str(address) for address in (host.address, *host.others)]


def test_the_addresses_that_the_machine_tells_are_written_behind_the_one_that_works(machine: Machine) -> None:
    machine.told_hosts = ("10.0.0.5", "100.64.0.5")
    assert machine.pair("box").exit_code == 0
    assert urls(machine) == [
        "wss://192.0.2.1:7443/acp",
        "wss://10.0.0.5:7443/acp",
        "wss://100.64.0.5:7443/acp",
        "ssh://box",
    ]
    assert [str(destination.address) for destination in machine.dialed] == ["wss://192.0.2.1:7443/acp", "ssh://box"]


def test_an_address_that_the_machine_tells_is_used_where_its_name_does_not_work(machine: Machine) -> None:
    machine.told_hosts = ("10.0.0.5", "100.64.0.5")
    machine.failing_hosts = {"192.0.2.1": Unreachable("no route"), "10.0.0.5": TrustError("another machine")}
    assert machine.pair("box").exit_code == 0
    assert urls(machine) == [
        "wss://100.64.0.5:7443/acp",
        "wss://192.0.2.1:7443/acp",
        "wss://10.0.0.5:7443/acp",
        "ssh://box",
    ]


@pytest.mark.parametrize("failure", [AccessError("ssh could not log in without asking"), Unreachable("no socket")])
def test_ssh_is_not_written_if_it_does_not_lead_to_the_gateway_without_asking(
    machine: Machine, failure: GatewayError
) -> None:
    machine.failures["ssh"] = failure
    assert machine.pair("box").exit_code == 0
    assert machine.entry()["url"] == '"wss://192.0.2.1:7443/acp"'


def test_listeners_of_another_transport_or_with_another_key_are_not_written(machine: Machine) -> None:
    machine.listeners = ["wss://0.0.0.0:7443", "tcp+tls://0.0.0.0:7444"]
    machine.relayed = False
    assert machine.pair("box").exit_code == 0
    assert machine.entry()["url"] == '"wss://192.0.2.1:7443/acp"'


def test_a_gateway_that_only_ssh_leads_to_is_written_so(machine: Machine) -> None:
    machine.hosts.parent.mkdir()
    machine.hosts.write_text(
        '[hosts.box]\nurl = "box"\npin = "sha256:' + 64 * "1" + '"\ncert = "c"\nkey = "k"\nca = "x"\n'
    )
    machine.failures["wss"] = Unreachable("a firewall")
    result = machine.pair("ann@box")
    assert result.exit_code == 0, result.output
    assert machine.entry() == {
        "url": '"ssh://ann@box"',
        "token_file": '"box.token"',
        "token_id": '"00000001"',
        "command": '"/opt/acp-gateway"',
    }
    assert machine.dialed[1].command == "/opt/acp-gateway"


@pytest.fixture
def paired(machine: Machine) -> dict[str, bytes]:
    """The files of a pairing that works."""
    assert machine.pair("box").exit_code == 0
    machine.told.clear()
    machine.dialed.clear()
    return contents(machine)


def contents(machine: Machine) -> dict[str, bytes]:
    """Return the content of each file of the laptop."""
    return {path.name: path.read_bytes() for path in machine.hosts.parent.iterdir() if path.is_file()}


def test_a_gateway_that_does_not_answer_changes_nothing(machine: Machine, paired: dict[str, bytes]) -> None:
    machine.failures |= {"wss": Unreachable("refused"), "ssh": Unreachable("no socket")}
    result = machine.pair("box")
    assert result.exit_code == Unreachable.exit_code
    assert (
        "the gateway does not answer: refused; is `acp-gateway serve` running there? nothing was changed"
        in result.stderr
    )
    assert machine.told == ["withdraw"]
    assert contents(machine) == paired


@pytest.mark.parametrize("failure", [TrustError("another pin"), Forbidden("no")])
def test_another_gateway_at_the_address_is_an_error_and_no_reason_to_try_elsewhere(
    machine: Machine, paired: dict[str, bytes], failure: GatewayError
) -> None:
    machine.failures["wss"] = failure
    result = machine.pair("box")
    assert result.exit_code == failure.exit_code
    assert f"{failure}; nothing was changed" in result.stderr
    assert (len(machine.dialed), machine.told) == (1, ["withdraw"])
    assert contents(machine) == paired


def test_a_gateway_that_nothing_leads_to_is_not_written(machine: Machine) -> None:
    machine.listeners, machine.relayed = ["wss://127.0.0.1:7443"], False
    result = machine.pair("box")
    assert result.exit_code == 3
    assert "only listens where this machine can't reach it" in result.stderr
    assert machine.told == ["withdraw"]
    assert not machine.hosts.exists()


def test_a_token_that_the_machine_does_not_keep_is_not_noted(machine: Machine, paired: dict[str, bytes]) -> None:
    machine.broken.add("keep")
    assert machine.pair("box").exit_code == Unreachable.exit_code
    assert machine.told == ["keep", "withdraw"]
    assert contents(machine) == paired


def test_a_new_token_that_may_be_left_behind_is_named(machine: Machine, paired: dict[str, bytes]) -> None:
    machine.broken |= {"keep", "withdraw"}
    result = machine.pair("box")
    assert (
        "hosts.toml is as it was; should `acp-gateway token list` on box still show the token 00000002" in result.stderr
    )
    assert "`acp-gateway token revoke 00000002` ends it" in result.stderr
    assert contents(machine) == paired


def test_an_entry_that_cannot_be_written_leaves_the_old_token_in_its_file(
    machine: Machine, paired: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("cannot be written: No space left on device", file="hosts.toml")

    monkeypatch.setattr(section_writer, "write_host", fail)
    result = machine.pair("box")
    assert result.exit_code == 3
    assert "hosts.toml: cannot be written: No space left on device; nothing was changed" in result.stderr
    assert machine.told == ["keep", "withdraw"]
    assert contents(machine) == paired
    (machine.hosts.parent / "box.token").unlink()
    assert machine.pair("box").exit_code == 3
    assert set(contents(machine)) == {"hosts.toml"}


def test_ctrl_c_while_the_link_is_tried_changes_nothing(
    machine: Machine, paired: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control, "list_sessions", interrupted)
    assert machine.pair("box").exit_code == 1
    assert machine.told == ["withdraw"]
    assert contents(machine) == paired


def test_an_entry_of_the_users_own_for_another_machine_is_left_alone(machine: Machine) -> None:
    machine.hosts.parent.mkdir()
    machine.hosts.write_text('[hosts.box]\nurl = "other.example"\n')
    result = machine.pair("box")
    assert result.exit_code == 2
    assert "choose another --name" in result.stderr
    assert machine.asked == []
    machine.host_name = "Other.Example"
    assert machine.pair("box").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-oProxyCommand=x"], 2, "No such option"),
        (["--", "-oProxyCommand=x"], 2, "no valid host"),
        (["ann:acpgw_secret@box"], 2, "has a password"),
        (["box/run/socket"], 2, "has a path"),
        (["ann@box:7443"], 2, "not to the gateway's own address: acp-gateway pair ann@box (without ssh"),
        (["https://box:7443"], 2, "not to the gateway's own address: acp-gateway pair box (without ssh"),
        (["wss://ann@box/acp"], 2, "not to the gateway's own address: acp-gateway pair ann@box (without ssh"),
        (["wss://box/acp"], 2, "not to the gateway's own address: acp-gateway pair box (without ssh"),
        (["[::1]"], 2, "give --name"),
        (["box", "--name", "a b"], 2, "give --name"),
        (["box", "--label", "a!b"], 2, "give another --label"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    machine: Machine, arguments: list[str], code: int, message: str
) -> None:
    result = machine.pair(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "secret" not in result.output
    assert machine.asked == []


def test_a_hosts_toml_that_is_wrong_is_left_alone(machine: Machine) -> None:
    machine.hosts.parent.mkdir()
    machine.hosts.write_text("[hosts.box]\nurl = 1\n")
    result = machine.pair("box")
    assert result.exit_code == 3
    assert "hosts.toml:2: hosts.box.url" in result.stderr
    assert machine.asked == []


@pytest.mark.parametrize("source", ['hosts = { box = { url = "box" } }\n', '[hosts]\nbox.url = "box"\n'])
def test_where_the_token_could_not_be_noted_none_is_made(machine: Machine, source: str) -> None:
    machine.hosts.parent.mkdir()
    machine.hosts.write_text(source)
    result = machine.pair("box")
    assert result.exit_code == 3
    assert "in a way that this can't change" in result.stderr
    assert machine.asked == []
    assert [path.name for path in machine.hosts.parent.iterdir()] == ["hosts.toml"]


def test_a_token_that_could_not_be_noted_all_the_same_is_withdrawn(machine: Machine) -> None:
    machine.hosts.with_name("box.token").mkdir(parents=True)
    result = machine.pair("box")
    assert result.exit_code == 3
    assert "box.token: cannot be written: " in result.stderr
    assert machine.told == ["keep", "withdraw"]


LINE = f"wss://box:7443/acp#{mint('invitation')},{PIN}"
TOKEN = mint("guest")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Invitation]:
    """The invitations that were used at a gateway."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    seen: list[Invitation] = []

    async def join(invitation: Invitation) -> Joined:
        seen.append(invitation)
        return Joined(TOKEN, "0a0a0a0a", "observer", "s1", "2027-01-15T08:00:00Z")

    monkeypatch.setattr(joining, "join", join)
    monkeypatch.setattr(editor_files, "installed_editors", lambda _: [])
    return seen


def test_an_invitation_becomes_a_host_and_the_next_step_is_said(used: list[Invitation], tmp_path: Path) -> None:
    joined = run("join", LINE, "--map", "/a=/b")
    assert joined.exit_code == 0, joined.output
    assert joined.stdout == "Next: acp-gateway connect box --install zed\n"
    folder = tmp_path / "acp-gateway"
    host = load_hosts(folder / "hosts.toml")["box"]
    assert (str(host.address), host.pin, host.maps) == ("wss://box:7443/acp", PIN, (("/a", "/b"),))
    assert host.token_file is not None
    assert host.token_file.read_text() == f"{TOKEN}\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert "you may watch the session s1, until 2027-01-15T08:00:00Z" in joined.stderr
    assert "acp-gateway ping box" in joined.stderr
    assert TOKEN not in joined.output
    assert [str(invitation) for invitation in used] == [LINE]


def test_all_addresses_of_an_invitation_are_saved(used: list[Invitation], tmp_path: Path) -> None:
    assert run("join", LINE.replace("#", ",wss://10.0.0.5:7443/acp#")).exit_code == 0
    host = load_hosts(tmp_path / "acp-gateway" / "hosts.toml")["box"]
    assert [str(address) for address in (host.address, *host.others)] == [
        "wss://box:7443/acp",
        "wss://10.0.0.5:7443/acp",
    ]


def test_the_line_may_come_from_stdin(used: list[Invitation], monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["join", "--name", "b"], input=f"acp-gateway join {LINE}\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Next: acp-gateway connect b --install zed\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(f"{LINE}\n"))
    main(["join", "--name", "c"], standalone_mode=False)
    assert len(used) == 2


def test_what_could_fail_fails_before_the_code_is_used(used: list[Invitation], tmp_path: Path) -> None:
    folder = tmp_path / "acp-gateway"
    folder.mkdir()
    (folder / "hosts.toml").write_text('[hosts.box]\nurl = "box"\n')
    for arguments, code, words in (
        ((LINE,), 2, "--name, such as box-guest"),
        *(((LINE, "--name", name), 2, "give --name") for name in ("a b", "..", "-x", "a/b")),
        ((LINE, "--map", "x"), 2, "path map"),
        (("junk",), 2, "not an invitation"),
    ):
        refused = run("join", *arguments)
        assert refused.exit_code == code
        assert words in refused.stderr
    (folder / "b.token").write_text("mine")
    refused = run("join", LINE, "--name", "b")
    assert refused.exit_code == 3
    assert "b.token: this file exists already" in refused.stderr
    (folder / "hosts.toml").write_text("[hosts.box]\nurl = 1\n")
    assert run("join", LINE, "--name", "c").exit_code == 3
    assert used == []
    assert (folder / "b.token").read_text() == "mine"


def test_what_the_gateway_says_can_not_command_the_terminal(
    used: list[Invitation], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def join(_: Invitation) -> Joined:
        return Joined(TOKEN, "0a0a0a0a", "\x1b]0;r\x07", "s\x1b[2J\u202e", "\x9b2J\ntomorrow")

    monkeypatch.setattr(joining, "join", join)
    shown = run("join", LINE).stderr
    assert r"the session s\x1b[2J\u202e, until \x9b2J tomorrow." in shown
    assert not set(shown) & set("\x1b\x07\u202e\x9b")


def test_a_refused_code_writes_nothing(used: list[Invitation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def join(_: Invitation) -> Joined:
        raise Unauthorized("this invitation is not valid")

    monkeypatch.setattr(joining, "join", join)
    refused = run("join", LINE)
    assert refused.exit_code == 4
    assert "not valid" in refused.stderr
    assert not (tmp_path / "acp-gateway").exists()


def test_join_with_json_prints_the_host_and_what_the_guest_may_do(used: list[Invitation], tmp_path: Path) -> None:
    joined = run("join", LINE, "--json")
    assert (joined.exit_code, joined.stderr) == (0, "")
    assert json.loads(joined.stdout) == {
        "name": "box",
        "hosts": str(tmp_path / "acp-gateway/hosts.toml"),
        "role": "observer",
        "session": "s1",
        "expires": "2027-01-15T08:00:00Z",
        "next": "acp-gateway connect box --install zed",
    }
