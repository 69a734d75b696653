"""A gateway with an agent of others, which uses the model of the tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acp_gateway.config.agent_search import KNOWN, AcpAgent
from tests.interop.model_server import model_server
from tests.interop.test_fenced_agents import MODELS, installed
from tests.kit.running import RunningGateway, prepare, start_gateway


@contextmanager
def real_agent(program: str, folder: Path) -> Iterator[RunningGateway]:
    """A gateway in `folder/gateway`, whose agent `a` is this program, with the workspace `folder/work`."""
    known = KNOWN[program]
    assert isinstance(known, AcpAgent)
    command = json.dumps([installed(program), *known.arguments[0]])
    for name in ("home", "work", "gateway"):
        (folder / name).mkdir()
    with model_server() as url:
        env = {"HOME": str(folder / "home"), **MODELS[program](folder / "home", url)}
        variables = "".join(f"{name} = {json.dumps(value)}\n" for name, value in env.items())
        workspace = f'[workspaces.work]\nroot = "{folder / "work"}"\n'
        pin = prepare(folder / "gateway", f"{workspace}[agents.a]\ncommand = {command}\n[agents.a.env]\n{variables}")
        gateway = start_gateway(folder / "gateway", pin)
        try:
            yield gateway
        finally:
            assert gateway.stop() == 0, "".join(gateway.log)
