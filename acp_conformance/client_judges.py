"""Judges of the checks that only clients have."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from acp_conformance.common_judges import (
    UNKNOWN_EXTENSION,
    describe_end,
    each_line,
    judge_alive,
    judge_echoed_ids,
    require_response,
)
from acp_conformance.dialogue import (
    FOR_STDERR,
    REQUEST,
    RESPONSE,
    Dialogue,
    Dialogues,
    Fault,
    Line,
    Verdict,
    not_shown,
)
from acp_conformance.shapes import block_fault, members_fault

NOTHING: Final = Dialogue()

PERMISSION: Final = "session/request_permission"

NOT_COME: Final = "the client did not come to that"


def judge_turn(dialogues: Dialogues) -> Verdict | None:
    """Check that the client comes to the end of a turn."""
    dialogue = dialogues.get("agent-text", NOTHING)
    if dialogue.ending != "finished":
        last = next((line for line in reversed(dialogue.lines) if not line.outgoing), None)
        # What a user has to decide may take its time.
        if dialogue.ending == "timeout" and dialogue.waiting_for == "a response" and "allow" not in dialogue.actions:
            return not_shown("the client waits for its user; see --allow")
        raise Fault(f"{describe_end(dialogue)}, before {dialogue.waiting_for}", last, "agent-text")
    return None if dialogue.lines else not_shown("nothing was run")


def judge_unique_ids(dialogues: Dialogues) -> Verdict | None:
    """Check that no request has the id of another one that is open."""
    found = False
    for scenario, dialogue in dialogues.items():
        waiting: set[str] = set()
        for line in dialogue.lines:
            if line.kind == REQUEST and line.outgoing:
                found = True
                if line.key in waiting:
                    raise Fault(f"the id {line.key} is that of a request without a response", line, scenario)
                waiting.add(line.key)
            elif line.kind == RESPONSE and not line.outgoing:
                waiting.discard(line.key)
    return None if found else not_shown("the client sent no request")


def judge_version(dialogues: Dialogues) -> Verdict | None:
    """Check that `initialize` asks for a version."""
    found = False
    for scenario, line in _requests(dialogues, "initialize"):
        found = True
        version = line.params.get("protocolVersion")
        if type(version) is not int or not 0 <= version <= 65535:
            raise Fault("protocolVersion is not an integer from 0 to 65535", line, scenario)
    return None if found else not_shown(NOT_COME)


def judge_version_unsupported(dialogues: Dialogues) -> Verdict | None:
    """Check that the client goes no further with a version that does not exist."""
    dialogue = dialogues.get("agent-version", NOTHING)
    exchanges = [each for each in dialogue.exchanges("initialize", outgoing=True) if each.response is not None]
    if not exchanges or exchanges[0].response is None:
        return not_shown(NOT_COME)
    for line in dialogue.after(exchanges[0].response):
        if line.outgoing:
            raise Fault("the client goes on with the version 65535, which no client has", line, "agent-version")
    return None


def judge_initialize(dialogues: Dialogues) -> Verdict | None:
    """Check that `initialize` is the first message, comes once, and has the specified form."""
    found = False
    for scenario, dialogue in dialogues.items():
        lines = [line for line in dialogue.of(outgoing=True) if line.kind]
        for index, line in enumerate(lines):
            found = True
            if (line.method == "initialize") is not (index == 0):
                raise Fault("initialize comes twice" if index else "the first message is another", line, scenario)
        if lines and (fault := _initialize_fault(lines[0].params)):
            raise Fault(fault, lines[0], scenario)
    return None if found else not_shown(NOT_COME)


def _initialize_fault(params: dict[str, Any]) -> str:
    capabilities, info = params.get("clientCapabilities"), params.get("clientInfo")
    if capabilities is not None and not isinstance(capabilities, dict):
        return "clientCapabilities is not an object"
    files = (capabilities or {}).get("fs")
    if files is not None and not isinstance(files, dict):
        return "the capability fs is not an object"
    flags = [
        (files or {}).get("readTextFile"),
        (files or {}).get("writeTextFile"),
        (capabilities or {}).get("terminal"),
    ]
    if any(flag is not None and not isinstance(flag, bool) for flag in flags):
        return "a capability is neither true nor false"
    return members_fault(info, {"name": str, "version": str}, "clientInfo") if info is not None else ""


def judge_session_new(dialogues: Dialogues) -> Verdict | None:
    found = False
    for scenario, line in _requests(dialogues, "session/new"):
        found = True
        if fault := members_fault(line.params, {"cwd": str, "mcpServers": list}, "the request"):
            raise Fault(fault, line, scenario)
        for server in line.params["mcpServers"]:
            if fault := _server_fault(server):
                raise Fault(fault, line, scenario)
    return None if found else not_shown(NOT_COME)


def _server_fault(server: Any) -> str:
    remote = isinstance(server, dict) and server.get("type") in ("http", "sse")
    wanted: dict[str, type] = {"name": str, "url": str} if remote else {"name": str, "command": str, "args": list}
    return members_fault(server, wanted, "an MCP server")


def judge_mcp_offered(dialogues: Dialogues) -> Verdict | None:
    """Check that MCP servers are reached in ways that the agent offers; a command is always one."""
    found = False
    for scenario, line in _requests(dialogues, "session/new"):
        servers = line.params.get("mcpServers")
        offered = _agent_capabilities(dialogues[scenario]).get("mcpCapabilities") or {}
        for server in servers if isinstance(servers, list) else ():
            kind = server.get("type", "stdio") if isinstance(server, dict) else "stdio"
            found = True
            if kind != "stdio" and offered.get(kind) is not True:
                raise Fault(f"an MCP server of type {kind!r}, which the agent does not offer", line, scenario)
    return None if found else not_shown("the client named no MCP server")


def judge_prompt(dialogues: Dialogues) -> Verdict | None:
    found = False
    for scenario, line in _requests(dialogues, "session/prompt"):
        found = True
        if fault := members_fault(line.params, {"sessionId": str, "prompt": list}, "the request"):
            raise Fault(fault, line, scenario)
        for block in line.params["prompt"] or [None]:
            if fault := block_fault(block):
                raise Fault(fault, line, scenario)
    return None if found else not_shown("the client sent no prompt; see --prompt")


def judge_blocks_offered(dialogues: Dialogues) -> Verdict | None:
    """Check that prompts have only text and links: no scenario offers more."""
    found = False
    for scenario, line in _requests(dialogues, "session/prompt"):
        prompt = line.params.get("prompt")
        for block in prompt if isinstance(prompt, list) else ():
            found = True
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in ("image", "audio", "resource"):
                raise Fault(f"a content block of type {kind!r}, which the agent does not offer", line, scenario)
    return None if found else not_shown("the client sent no prompt; see --prompt")


BASELINE: Final = ("initialize", "session/new", "session/prompt", "session/cancel", "$/cancel_request")
"""Methods that every agent has."""

OF_CAPABILITIES: Final = ("list", "resume", "fork", "close", "delete")
"""Ends of the names of methods that are offered by a member of `sessionCapabilities`."""

OF_SESSIONS: Final = {
    "session/set_mode": "modes",
    "session/set_model": "models",
    "session/set_config_option": "configOptions",
}
"""Methods that a member of the result of `session/new` offers."""


def judge_methods_offered(dialogues: Dialogues) -> Verdict | None:
    """Check that the client calls only what the agent offers; extensions have names of their own."""
    found = False
    for scenario, line in each_line(dialogues, outgoing=True):
        if line.method and line.method not in BASELINE and not line.method.startswith("_"):
            found = True
            if not _is_offered(line, dialogues[scenario]):
                raise Fault(f"the agent does not offer {line.method}", line, scenario)
    if not found and not any(True for _ in _requests(dialogues, "session/new")):
        return not_shown(NOT_COME)
    return None


def _is_offered(line: Line, dialogue: Dialogue) -> bool:
    capabilities = _agent_capabilities(dialogue)
    if line.method == "session/load":
        return capabilities.get("loadSession") is True
    if line.method == "authenticate":
        methods = _result_of(dialogue, "initialize").get("authMethods") or ()
        return line.params.get("methodId") in [method["id"] for method in methods]
    if line.method in OF_SESSIONS:
        return _result_of(dialogue, "session/new").get(OF_SESSIONS[line.method]) is not None
    last = line.method.removeprefix("session/")
    return last in OF_CAPABILITIES and (capabilities.get("sessionCapabilities") or {}).get(last) is not None


def judge_authenticate(dialogues: Dialogues) -> Verdict | None:
    """Check that the client asks again for a session after it has authenticated."""
    dialogue = dialogues.get("agent-authentication", NOTHING)
    exchanges = dialogue.exchanges("authenticate", outgoing=True)
    answered = [each.response for each in exchanges if each.response is not None and each.response.error is None]
    if not answered:
        return not_shown("the client did not authenticate")
    if not any(line.method == "session/new" for line in dialogue.after(answered[0])):
        raise Fault("no session was asked for after authentication", answered[0], "agent-authentication")
    return None


def judge_survived(dialogues: Dialogues, *, scenario: str, probe: Callable[[Line], bool]) -> Verdict | None:
    """Check that the client answers the request after the messages that `probe` is true for, if it comes to them."""
    dialogue = dialogues.get(scenario, NOTHING)
    probes = [line for line in dialogue.of(outgoing=False) if probe(line)]
    if not probes:
        last = next((line for line in reversed(dialogue.lines) if not line.outgoing), None)
        # In the plain dialogue it has come further.
        if (
            last is not None
            and dialogue.ending == "ended"
            and dialogues.get("agent-text", NOTHING).ending == "finished"
        ):
            raise Fault(f"after this {describe_end(dialogue)}", last, scenario)
        return not_shown(NOT_COME)
    if dialogue.ending == "timeout" and not _decides(dialogues):
        return not_shown("the client waits for its user; see --allow")
    return judge_alive(dialogue, probes[-1], scenario, outgoing=True)


def _decides(dialogues: Dialogues) -> bool:
    """Return False if the client left a permission to a user who was told nothing."""
    dialogue = dialogues.get("permission", NOTHING)
    exchanges = dialogue.exchanges(PERMISSION, outgoing=False)
    return not exchanges or exchanges[0].response is not None


def judge_stop_reasons(dialogues: Dialogues) -> Verdict | None:
    """Check that a client of several turns goes on after each stop reason."""
    dialogue = dialogues.get("agent-stop-reasons", NOTHING)
    exchanges = dialogue.exchanges("session/prompt", outgoing=True)
    if len(exchanges) < 2:
        return not_shown("the client sends one prompt only")
    if dialogue.ending == "finished":
        return None
    require_response(dialogue, exchanges[-1], "agent-stop-reasons")
    raise Fault(
        f"no prompt after this stop reason: {describe_end(dialogue)}", exchanges[-1].response, "agent-stop-reasons"
    )


def judge_ids(dialogues: Dialogues, *, scenario: str, keys: tuple[str, ...]) -> Verdict | None:
    """Check that requests have responses with their ids, if the client answers unknown requests at all."""
    dialogue = dialogues.get(scenario, NOTHING)
    if dialogue.exchanges(UNKNOWN_EXTENSION, outgoing=False) and not any(
        line.kind == RESPONSE for line in dialogue.of(outgoing=True)
    ):
        return not_shown("the client answers no unknown request")
    return judge_echoed_ids(dialogues, scenario=scenario, keys=keys, outgoing=True)


def judge_stderr(dialogues: Dialogues) -> Verdict | None:
    dialogue = dialogues.get("agent-stderr")
    if dialogue is None:
        return not_shown("nothing was run")
    if dialogue.waiting_for == FOR_STDERR:
        raise Fault("the agent can't go on: the client does not read its stderr", scenario="agent-stderr")
    return None if dialogue.lines else not_shown(NOT_COME)


def judge_bad_line(dialogues: Dialogues) -> Verdict | None:
    """Check that the client opens a session after a line of the agent that is not JSON."""
    dialogue = dialogues.get("agent-garbage", NOTHING)
    if not dialogue.lines:
        return not_shown(NOT_COME)
    if not any(line.method == "session/new" for line in dialogue.of(outgoing=True)):
        raise Fault(f"after this {describe_end(dialogue)}", dialogue.lines[0], "agent-garbage")
    return None


def judge_lost(dialogues: Dialogues) -> Verdict | None:
    """Check that the client can still be ended after the loss of its agent."""
    dialogue = dialogues.get("agent-lost", NOTHING)
    if dialogue.ending != "finished":
        return not_shown(NOT_COME)
    if not dialogues.get("agent-text", NOTHING).exited:
        return not_shown("the client does not end by itself")
    if not dialogue.exited:
        prompt = dialogue.exchanges("session/prompt", outgoing=True)[0].request
        raise Fault("the client hangs after its agent has ended in this turn", prompt, "agent-lost")
    return None


def judge_exit(dialogues: Dialogues) -> Verdict | None:
    for scenario, dialogue in dialogues.items():
        if not dialogue.exited and dialogue.ending == "finished" and scenario != "agent-lost":
            raise Fault("the client went on after its stdin had ended", scenario=scenario)
    return None if any(dialogue.exited for dialogue in dialogues.values()) else not_shown("nothing was run")


def judge_released(dialogues: Dialogues) -> Verdict | None:
    for scenario, dialogue in dialogues.items():
        if not dialogue.released:
            raise Fault("the agent's stdin is open after the client has ended", scenario=scenario)
    return None if any(dialogue.lines for dialogue in dialogues.values()) else not_shown("nothing was run")


def _requests(dialogues: Dialogues, method: str) -> Iterator[tuple[str, Line]]:
    return (each for each in each_line(dialogues, outgoing=True) if each[1].method == method)


def _result_of(dialogue: Dialogue, method: str) -> dict[str, Any]:
    """Return the last result of a method of the agent, empty if there is none."""
    found = [each.response for each in dialogue.exchanges(method, outgoing=True) if each.response is not None]
    results = [each.result for each in found if isinstance(each.result, dict)]
    return results[-1] if results else {}


def _agent_capabilities(dialogue: Dialogue) -> dict[str, Any]:
    capabilities = _result_of(dialogue, "initialize").get("agentCapabilities")
    return capabilities if isinstance(capabilities, dict) else {}
