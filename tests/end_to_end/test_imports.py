"""Modules that a gateway imports: none of nodes and clusters where its configuration has neither."""

import json
import sys
from pathlib import Path

import pytest

from acp_gateway.security.token_format import mint
from tests.end_to_end.test_outages import Editor
from tests.end_to_end.test_web_client import run_client
from tests.kit import running
from tests.kit.running import AGENTS, RunningGateway, prepare, run_program, start_gateway

OF_NODES = {
    "acp_gateway.config.nodes",
    "acp_gateway.gateway.node_directory",
    "acp_gateway.nodes.looks",
    "acp_gateway.nodes.node_set",
}
OF_CLUSTERS = {"acp_gateway.nodes.redis_store", "acp_gateway.config.cluster", "acp_gateway.nodes.membership"}


def modules_of(directory: Path, more: str = "") -> set[str]:
    """The modules of a gateway that has answered an editor, commands and a program for pages, and read its files again.

    `more` is for its configuration.
    """
    (directory / "sessions").mkdir(parents=True)
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "sessions")]
    pin = prepare(directory, f"[agents.memory]\ncommand = {json.dumps(command)}\n{more}")
    listed = directory / "modules"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PROGRAM", [sys.executable, str(AGENTS / "listing.py"), str(listed)])
        gateway = start_gateway(directory, pin)
    try:
        use(gateway)
    finally:
        assert gateway.stop() == 0, "".join(gateway.log)
    return set(listed.read_text(encoding="utf-8").split())


def use(gateway: RunningGateway) -> None:
    with Editor(gateway) as editor:
        session = editor.open_session()
        assert editor.talk("hello") == "end_turn"
        assert session in [row["sessionId"] for row in gateway.sessions()]
    assert run_client(gateway, "hello").stdout.endswith("hello\n[end_turn]\n")
    run_program("reload", "--config", gateway.config)
    run_program("status", "--config", gateway.config)


def test_a_gateway_without_nodes_and_a_cluster_imports_nothing_of_them(tmp_path: Path) -> None:
    modules = modules_of(tmp_path / "alone")
    assert {name for name in modules if "node" in name or "cluster" in name} == set()
    assert not modules & (OF_NODES | OF_CLUSTERS)
    assert not {name.partition(".")[0] for name in modules} & {"urwid", "segno", "tomlkit"}


def test_a_gateway_with_nodes_in_a_cluster_imports_what_the_other_one_does_not(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(mint())
    more = (
        f'[nodes.gpu]\nurl = "ws://127.0.0.1:1"\ntoken_file = "{secret}"\n'
        f'[cluster]\nurl = "redis://127.0.0.1:1"\nname = "gpu1"\ntoken_file = "{secret}"\n'
    )
    assert modules_of(tmp_path / "front", more) >= OF_NODES | OF_CLUSTERS
