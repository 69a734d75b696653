"""Runs an agent once, as the gateway would, and tells what its fence refuses."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import trio

from acp_gateway.config.load import AgentSection, Config, agent_environment
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.diagnosis.checks import Line, fault, ok, warning
from acp_gateway.errors import AgentError
from acp_gateway.fence.plan import refusals
from acp_gateway.gateway.agent.fencing import fence_options
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner, run_agent
from acp_gateway.gateway.workspaces import workspaces_of
from acp_gateway.protocol.reasons import in_one_line
from acp_gateway.protocol.text.pairs import texts_of
from acp_gateway.security.token_store import default_identity
from acp_gateway.transports.streams import MessageTooLarge

_LOST = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError, MessageTooLarge)


async def try_agent(
    name: str, section: AgentSection, config: Config, environment: Mapping[str, str], registry: Path
) -> list[Line]:
    """Start an agent, open a session in its first workspace, and stop it; return what came of that.

    `registry` is a folder for the record of the process. The agent runs for `initialize_timeout` at most. Raises
    `ConfigError` for an `env_file` that cannot be used.
    """
    reach = SessionReach(default_identity(config.gateway.state_dir))
    launch = Launch(
        name=name,
        command=section.command or (),
        environment=agent_environment(section, environment),
        cwd=None if section.cwd is None else str(section.cwd),
        max_message_size=config.gateway.max_message_size,
        eof_grace=section.eof_grace,
        term_grace=section.term_grace,
        fence=fence_options(section, config, reach, None),
    )
    roots = [workspace.root for workspace in workspaces_of(config.workspaces, section.cwd)]
    answers: list[str] = []
    lines: list[Line] = []
    with Spawner(ProcessRegistry(registry)) as spawner:
        try:
            async with trio.open_nursery() as nursery:
                agent: Agent = await nursery.start(run_agent, launch, spawner)
                with trio.move_on_after(section.initialize_timeout):
                    await _talk(agent, roots[0] if roots else os.getcwd(), answers)
                nursery.cancel_scope.cancel()
            lines += _judge(agent, answers)
        except* AgentError as group:
            lines.append(
                fault("agent", str(group.exceptions[0]), "see `acp-gateway files fence.md`", AgentError.exit_code)
            )
    return lines


async def _talk(agent: Agent, cwd: str, answers: list[str]) -> None:
    """Send `initialize` and `session/new`, and note what is answered, until both are or the agent has ended."""
    capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    requests = [
        ("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities}),
        ("session/new", {"cwd": cwd, "mcpServers": []}),
    ]
    try:
        for number, (method, params) in enumerate(requests):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            agent.messages.send_nowait([json.dumps(message).encode()])
            await agent.messages.stream.drain()
            answers.append(await _answer(agent, number, method))
    except _LOST:
        await agent.ended.wait()


async def _answer(agent: Agent, number: int, method: str) -> str:
    while True:
        for line in texts_of(await agent.messages.receive_batch()):
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and message.get("id") == number and "method" not in message:
                return f"answers {method}" + _error(message.get("error"))


def _error(error: object) -> str:
    """Return the error of an answer in words; none for an answer without one."""
    if error is None:
        return ""
    message = error.get("message") if isinstance(error, dict) else None
    return f" with the error {in_one_line(str(message), 200)!r}" if message else " with an error"


def _judge(agent: Agent, answers: list[str]) -> Iterable[Line]:
    fence = agent.fence
    within = "without a fence" if fence is None else f"fenced by {fence.by}"
    if not answers:
        text = f"{agent.name}, {within}, does not answer initialize"
        yield fault("agent", text, "; ".join(agent.last_lines()[-3:]) or "it has written nothing", AgentError.exit_code)
    else:
        yield ok("agent", f"{agent.name}, {within}, {' and '.join(answers)}")
    refused = [] if fence is None else refusals(fence, agent.last_lines())
    for option in ("readable", "writable"):
        paths = [path for path, needed in refused if needed == option]
        if paths:
            text = f"its fence refuses {', '.join(paths)}"
            yield warning("fence", text, f"if {agent.name} may use that: {option} = {json.dumps(paths)}")
