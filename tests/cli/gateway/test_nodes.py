"""The commands `nodes add` and `nodes remove`: the line for a node that lends its connections, and its end."""

import json
from pathlib import Path

import pytest

from acp_gateway.client.joining import parse_invitation
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import run_command as run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    create_certificate(["door.example"], tmp_path)
    (tmp_path / "gpu1.token").touch(0o600)
    path = tmp_path / "config.toml"
    path.write_text(
        f'[gateway]\nstate_dir = "{tmp_path / "state"}"\n[[listen]]\nurl = "wss://door.example:7443"\n'
        'cert = "cert.pem"\nkey = "key.pem"\n[nodes.gpu1]\nurl = "gpu1"\ntoken_file = "gpu1.token"\n'
    )
    return path


def test_nodes_add_prints_a_command_whose_code_is_worth_a_token_of_the_node(config: Path, tmp_path: Path) -> None:
    added = run("nodes", "add", "gpu2", "--config", config)
    assert added.exit_code == 0, added.output
    start, line, _ = added.stdout.split("'")
    assert start == "acp-gateway up --door "
    invitation = parse_invitation(line)
    assert str(invitation.address) == "wss://door.example:7443/acp"
    assert invitation.pin
    tokens = TokenStore(tmp_path / "state")
    token, secret = InvitationStore(tmp_path / "state", tokens).accept(invitation.code)
    assert (token.role, token.nodes, token.identity, token.local) == ("node", ("gpu2",), "node gpu2", True)
    assert secret.startswith("acpgwn_")
    assert secret not in added.output
    assert "'node'" not in added.output


def test_nodes_add_as_json_has_the_command_and_its_end(config: Path) -> None:
    said = json.loads(run("nodes", "add", "gpu2", "--config", config, "--json").stdout)
    assert (said["node"], said["command"].split("'")[0]) == ("gpu2", "acp-gateway up --door ")
    assert {*said} == {"node", "tokenId", "command", "commandExpires"}


@pytest.mark.parametrize(
    ("name", "why"),
    [("gpu1", "there is a section [nodes.gpu1] already"), ("a b", "a node's name has"), ("x/y", "name")],
)
def test_names_of_sections_and_those_that_can_not_be_names_are_refused(config: Path, name: str, why: str) -> None:
    refused = run("nodes", "add", name, "--config", config)
    assert refused.exit_code == 2
    assert why in refused.stderr


def test_a_node_is_added_once_and_can_be_added_again_when_it_was_removed(config: Path, tmp_path: Path) -> None:
    assert run("nodes", "add", "gpu2", "--config", config).exit_code == 0
    assert "there is a node gpu2 already" in run("nodes", "add", "gpu2", "--config", config).stderr
    assert run("nodes", "remove", "gpu2", "--config", config).exit_code == 0
    assert TokenStore(tmp_path / "state").tokens() == []
    events = [json.loads(line)["event"] for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
    assert events == ["token_created", "invitation_created", "token_revoked"]
    assert run("nodes", "add", "gpu2", "--config", config).exit_code == 0


def test_what_a_former_machine_of_a_name_has_told_is_forgotten(config: Path, tmp_path: Path) -> None:
    told = tmp_path / "state" / "lent" / "gpu2.token"
    told.parent.mkdir(parents=True)
    told.touch()
    assert run("nodes", "add", "gpu2", "--config", config).exit_code == 0
    assert not told.exists()
    told.touch()
    assert run("nodes", "remove", "gpu2", "--config", config).exit_code == 0
    assert not told.exists()


def test_nodes_remove_tells_that_the_node_has_the_default_agent(config: Path) -> None:
    config.write_text(config.read_text().replace("[gateway]", '[gateway]\ndefault_agent = "gpu2/opencode"'))
    assert run("nodes", "add", "gpu2", "--config", config).exit_code == 0
    said = run("nodes", "remove", "gpu2", "--config", config)
    assert (said.exit_code, "default_agent is gpu2/opencode: set another one" in said.stderr) == (0, True)


@pytest.mark.parametrize(("name", "why"), [("gpu9", "no node"), ("gpu1", "remove the section [nodes.gpu1]")])
def test_only_what_was_added_is_removed(config: Path, name: str, why: str) -> None:
    assert why in run("nodes", "remove", name, "--config", config).stderr


def test_without_an_address_nothing_is_made(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        f'[gateway]\nstate_dir = "{tmp_path / "state"}"\n[[listen]]\nurl = "unix://{tmp_path}/s"\n'
        '[agents.demo]\ncommand = ["demo"]\n'
    )
    assert "no listener with wss:// is known" in run("nodes", "add", "gpu2", "--config", path).stderr
    assert TokenStore(tmp_path / "state").tokens() == []
