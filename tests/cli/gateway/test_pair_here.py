"""The commands of pairing on the gateway's machine: what they make, say and revoke."""

import io
import json
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from acp_gateway.cli.gateway import pair_here as pairing_cli
from acp_gateway.cli.main import main
from acp_gateway.client import pairing
from acp_gateway.client.pairing import Offer, parse_offer
from acp_gateway.client.ssh import mark
from acp_gateway.errors import GatewayError
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import run_command as run


@pytest.fixture
def tls_config(tmp_path: Path) -> Path:
    """A configuration with every kind of listener that pairing knows."""
    create_certificate(["box"], tmp_path)
    path = tmp_path / "config.toml"
    path.write_text(
        f'[gateway]\nstate_dir = "{tmp_path}/state"\n'
        '[[listen]]\nurl = "wss://0.0.0.0:7443"\ncert = "cert.pem"\nkey = "key.pem"\n'
        '[[listen]]\nurl = "unix:///run/socket"\n[agents.demo]\ncommand = ["python3"]\n'
    )
    return path


def offered(result: Result) -> Offer:
    return parse_offer(answers(result)[0].encode())


def answers(result: Result) -> list[str]:
    """All that was answered."""
    assert result.exit_code == 0, result.output
    begin, end = mark("pairing", "BEGIN", "ab"), mark("pairing", "END", "ab")
    assert re.fullmatch(rf"(\n{begin}\n.*\n{end}\n)*", result.stdout)
    return re.findall(rf"\n{begin}\n(.*)\n{end}\n", result.stdout)


def here(config: Path, *arguments: str, label: str = "laptop", told: str = "") -> Result:
    """Run the command, and tell it these lines."""
    words = ["pair-here", "--config", str(config), "--nonce", "ab", "--label", label, *arguments]
    return CliRunner().invoke(main, words, input=told)


def test_a_machine_gets_a_token_of_the_gateways_own_user_and_the_listeners(
    tls_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_addresses", lambda: ["192.0.2.7", "100.64.0.7"])
    offer = offered(here(tls_config, "--agent", "demo", told="keep\n"))
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert TokenStore(tmp_path / "state").authenticate(offer.token) == token
    assert (token.id, token.label, token.agents) == (offer.token_id, "laptop (paired)", ("demo",))
    assert token.expires is None
    assert offer.relayed
    assert [str(listener.address) for listener in offer.listeners] == ["wss://0.0.0.0:7443/acp"]
    assert offer.hosts == ("192.0.2.7", "100.64.0.7")
    (entry,) = [json.loads(line) for line in (tmp_path / "state/audit.jsonl").read_text().splitlines()]
    assert (entry["event"], entry["id"], entry["label"]) == ("token_created", token.id, "laptop (paired)")


def test_the_token_of_before_is_revoked_if_pairing_made_it_for_the_same_machine(
    tls_config: Path, tmp_path: Path
) -> None:
    store = TokenStore(tmp_path / "state")
    by_hand, _ = store.create("laptop", None, None)
    first = offered(here(tls_config, told="keep\n"))
    phone = offered(here(tls_config, label="phone", told="keep\n"))
    lines = ["keep", *(f"replace {token}" for token in (first.token_id, by_hand.id, phone.token_id, first.token_id))]
    result = here(tls_config, told="".join(f"{line}\n" for line in lines))
    # The last is gone already.
    assert [json.loads(answer)["done"] for answer in answers(result)[1:]] == [True, True, False, False, True]
    assert {token.id for token in store.tokens()} == {by_hand.id, phone.token_id, offered(result).token_id}


@pytest.mark.parametrize("told", ["", "withdraw\n", "keep\nwithdraw\n", "replace {first}\n", "what?\n", "\n", "kee"])
def test_a_token_that_is_not_kept_or_withdrawn_is_revoked_and_the_one_of_before_goes_on(
    tls_config: Path, tmp_path: Path, told: str
) -> None:
    first = offered(here(tls_config, told="keep\n"))
    new = offered(here(tls_config, told=told.format(first=first.token_id)))
    assert [token.id for token in TokenStore(tmp_path / "state").tokens()] == [first.token_id]
    lines = (tmp_path / "state/audit.jsonl").read_text().splitlines()
    assert [(entry["event"], entry["id"]) for entry in map(json.loads, lines)][1:] == [
        ("token_created", new.token_id),
        ("token_revoked", new.token_id),
    ]


def test_a_token_of_a_pairing_that_was_killed_does_not_live_long(
    tls_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(io.StringIO):
        def readline(self, *_: Any) -> str:  # type: ignore[override] # It is for bytes in the interface.
            (token,) = TokenStore(tmp_path / "state").tokens()
            assert token.expires is not None
            age = datetime.fromisoformat(token.expires) - datetime.fromisoformat(token.created)
            assert age.total_seconds() == pytest.approx(pairing.PENDING_LIFETIME, abs=1)
            return ""

    monkeypatch.setattr("sys.stdin", Killed())
    call(pairing_cli.pair_here)(tls_config, "laptop", (), "ab")


def test_a_machine_may_be_limited_to_an_agent_of_the_cluster(tls_config: Path, tmp_path: Path) -> None:
    with tls_config.open("a") as file:
        file.write('[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "cluster.token"\n')
    offered(here(tls_config, "--agent", "gpu2/opencode", told="keep\n"))
    (token,) = TokenStore(tmp_path / "state").tokens()
    assert token.agents == ("gpu2/opencode",)


def test_what_cannot_be_handed_over_makes_no_token(config: Path, tls_config: Path, tmp_path: Path) -> None:
    assert "there is no agent 'dmo' in the configuration; did you mean" in here(tls_config, "--agent", "dmo").stderr
    assert here(tls_config, label="a!b").exit_code == 2
    (tmp_path / "cert.pem").unlink()
    assert here(tls_config).exit_code == 3
    assert here(tmp_path / "none.toml").exit_code == 3
    assert TokenStore(tmp_path / "state").tokens() == []


class BrokenPipe(io.TextIOBase):
    """A stdout without a reader."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_pair_here_revokes_a_token_that_stdout_did_not_take_and_keeps_the_one_before(
    tls_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = offered(here(tls_config, told="keep\n"))
    monkeypatch.setattr("sys.stdout", BrokenPipe())
    with pytest.raises(BrokenPipeError):
        call(pairing_cli.pair_here)(tls_config, "laptop", (), "ab")
    assert [token.id for token in TokenStore(tmp_path / "state").tokens()] == [first.token_id]


def test_a_token_is_not_shown_on_a_terminal(tls_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(GatewayError, match="run `acp-gateway pair` on the machine"):
        call(pairing_cli.pair_here)(tls_config, "laptop", (), "ab")
    assert TokenStore(tmp_path / "state").tokens() == []


def call(command: Any) -> Callable[..., None]:
    """The function of a command, without its options."""
    function: Callable[..., None] = command.callback
    return function


@pytest.mark.parametrize(
    ("started", "path"), [("/opt/x/acp-gateway", "/opt/x/acp-gateway"), ("/lib/acp_gateway/__main__.py", None)]
)
def test_the_program_knows_where_it_is(started: str, path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [started, "pair-here"])
    assert pairing_cli._own_path() == path


# relay


def test_a_relay_without_a_socket_in_the_configuration_says_what_to_add(config: Path) -> None:
    result = run("relay", "--config", config)
    assert result.exit_code == 3
    assert "[[listen]]" in result.stderr


def test_a_relay_takes_the_number_from_what_was_asked_of_sshd(
    tls_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed = []

    async def relay(stdio: object, path: str, nonce: str) -> None:
        relayed.append((stdio, path, nonce))

    monkeypatch.setattr("acp_gateway.client.ssh.relay", relay)
    monkeypatch.setattr("acp_gateway.transports.pipes.open_stdio", lambda: "stdio")
    monkeypatch.setitem(os.environ, "SSH_ORIGINAL_COMMAND", "sh -c x acp-gateway '' relay --nonce 0a0b")
    assert run("relay", "--config", tls_config).exit_code == 0
    assert run("relay", "--socket", "/s", "--nonce", "ff").exit_code == 0
    assert relayed == [("stdio", "/run/socket", "0a0b"), ("stdio", "/s", "ff")]
