"""The checks of clients: a table of rules, and the judges that only clients have."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from acp_conformance.client_runner import FILE_TEXT
from acp_conformance.client_script import BIG, IDS, UNUSUAL_IDS
from acp_conformance.common_judges import (
    METHOD_NOT_FOUND,
    UNKNOWN_EXTENSION,
    common_judges,
    describe_end,
    each_line,
    judge_alive,
    judge_each,
    judge_echoed_ids,
    judge_stream,
    require_response,
    table_of_checks,
)
from acp_conformance.dialogue import (
    FOR_STDERR,
    NOTIFICATION,
    REQUEST,
    RESPONSE,
    Dialogue,
    Dialogues,
    Exchange,
    Fault,
    Judge,
    Line,
    Verdict,
    not_shown,
)
from acp_conformance.shapes import block_fault, members_fault, outcome_fault

NOTHING: Final = Dialogue()

PERMISSION: Final = "session/request_permission"

NOT_COME: Final = "the client did not come to that"
NO_PROMPT: Final = "the client sent no prompt; see --prompt"


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

    def fault_of(line: Line) -> str:
        version = line.params.get("protocolVersion")
        fits = type(version) is int and 0 <= version <= 65535
        return "" if fits else "protocolVersion is not an integer from 0 to 65535"

    return judge_each(requests_of(dialogues, "initialize"), fault_of, NOT_COME)


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
    def fault_of(line: Line) -> str:
        fault = members_fault(line.params, {"cwd": str, "mcpServers": list}, "the request")
        return fault or next(filter(None, map(_server_fault, line.params["mcpServers"])), "")

    return judge_each(requests_of(dialogues, "session/new"), fault_of, NOT_COME)


def _server_fault(server: Any) -> str:
    remote = isinstance(server, dict) and server.get("type") in ("http", "sse")
    wanted: dict[str, type] = {"name": str, "url": str} if remote else {"name": str, "command": str, "args": list}
    return members_fault(server, wanted, "an MCP server")


def judge_mcp_offered(dialogues: Dialogues) -> Verdict | None:
    """Check that MCP servers are reached in ways that the agent offers; a command is always one."""
    found = False
    for scenario, line in requests_of(dialogues, "session/new"):
        servers = line.params.get("mcpServers")
        offered = _agent_capabilities(dialogues[scenario]).get("mcpCapabilities") or {}
        for server in servers if isinstance(servers, list) else ():
            kind = server.get("type", "stdio") if isinstance(server, dict) else "stdio"
            found = True
            if kind != "stdio" and offered.get(kind) is not True:
                raise Fault(f"an MCP server of type {kind!r}, which the agent does not offer", line, scenario)
    return None if found else not_shown("the client named no MCP server")


def judge_prompt(dialogues: Dialogues) -> Verdict | None:
    def fault_of(line: Line) -> str:
        fault = members_fault(line.params, {"sessionId": str, "prompt": list}, "the request")
        return fault or next(filter(None, map(block_fault, line.params["prompt"] or [None])), "")

    return judge_each(requests_of(dialogues, "session/prompt"), fault_of, NO_PROMPT)


def judge_blocks_offered(dialogues: Dialogues) -> Verdict | None:
    """Check that prompts have only text and links: no scenario offers more."""
    found = False
    for scenario, line in requests_of(dialogues, "session/prompt"):
        prompt = line.params.get("prompt")
        for block in prompt if isinstance(prompt, list) else ():
            found = True
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in ("image", "audio", "resource"):
                raise Fault(f"a content block of type {kind!r}, which the agent does not offer", line, scenario)
    return None if found else not_shown(NO_PROMPT)


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
    if not found and not any(True for _ in requests_of(dialogues, "session/new")):
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
    if dialogue.ending != "finished" or not dialogue.lines:
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


def requests_of(dialogues: Dialogues, method: str) -> Iterator[tuple[str, Line]]:
    return (each for each in each_line(dialogues, outgoing=True) if each[1].method == method)


def _result_of(dialogue: Dialogue, method: str) -> dict[str, Any]:
    """Return the last result of a method of the agent, empty if there is none."""
    found = [each.response for each in dialogue.exchanges(method, outgoing=True) if each.response is not None]
    results = [each.result for each in found if isinstance(each.result, dict)]
    return results[-1] if results else {}


def _agent_capabilities(dialogue: Dialogue) -> dict[str, Any]:
    capabilities = _result_of(dialogue, "initialize").get("agentCapabilities")
    return capabilities if isinstance(capabilities, dict) else {}


PERMISSIONS: Final = ("permission", "permission-reject", "agent-options")
"""Scenarios with a permission that the user decides."""


def judge_permission(dialogues: Dialogues) -> Verdict | None:
    """Check that permissions are answered with an outcome, and that an option was offered."""
    found = False
    for scenario in PERMISSIONS:
        dialogue = dialogues.get(scenario, NOTHING)
        for exchange in dialogue.exchanges(PERMISSION, outgoing=False):
            if (
                exchange.response is None
                and dialogue.ending == "timeout"
                and not dialogue.actions & {"allow", "reject"}
            ):
                continue
            found = True
            response = require_response(dialogue, exchange, scenario)
            if response.error is not None:
                raise Fault("a permission was answered with an error instead of an outcome", response, scenario)
            if fault := outcome_fault(response.result, exchange.request.params):
                raise Fault(fault, response, scenario)
    return None if found else not_shown("no permission was decided; see --allow")


def judge_decision(dialogues: Dialogues, *, scenario: str, kind: str) -> Verdict | None:
    """Check that an option of a kind is selected: `allow` or `reject`."""
    dialogue = dialogues.get(scenario, NOTHING)
    for exchange in dialogue.exchanges(PERMISSION, outgoing=False):
        result = exchange.response.result if exchange.response is not None else None
        if exchange.response is None or outcome_fault(result, exchange.request.params):
            continue
        chosen = exchange.response.result["outcome"].get("optionId")
        kinds = [each["kind"] for each in exchange.request.params["options"] if each["optionId"] == chosen]
        if kinds and kinds[0].startswith(kind):
            return None
        if kind in dialogue.actions:
            what = f"an option of the kind {kinds[0]}" if kinds else "the outcome cancelled"
            raise Fault(f"the user said {kind}, and the client answered with {what}", exchange.response, scenario)
    return not_shown(f"the client selected no option of that kind; see --{kind}")


def _cancels(dialogues: Dialogues) -> Iterator[tuple[str, Dialogue, Line]]:
    for scenario in ("cancellation", "permission-cancelled"):
        dialogue = dialogues.get(scenario, NOTHING)
        for line in dialogue.of(outgoing=True):
            if line.method == "session/cancel":
                yield scenario, dialogue, line


def judge_cancel(dialogues: Dialogues) -> Verdict | None:
    """Check that a cancellation is a notification that names the session."""
    found = False
    for scenario, _, line in _cancels(dialogues):
        found = True
        if line.kind != NOTIFICATION:
            raise Fault("session/cancel was sent as a request", line, scenario)
        if not isinstance(line.params.get("sessionId"), str):
            raise Fault("session/cancel names no session", line, scenario)
    return None if found else not_shown("the client cancelled no turn; see --cancel")


def judge_cancel_permission(dialogues: Dialogues) -> Verdict | None:
    """Check that permissions which are open at a cancellation are answered with `cancelled`."""
    for scenario, dialogue, cancel in _cancels(dialogues):
        after = dialogue.after(cancel)
        for exchange in dialogue.exchanges(PERMISSION, outgoing=False):
            if exchange.response is not None and exchange.response not in after:
                continue
            response = require_response(dialogue, exchange, scenario)
            outcome = response.result.get("outcome") if isinstance(response.result, dict) else None
            if outcome != {"outcome": "cancelled"}:
                raise Fault("the permission of a cancelled turn was not answered with cancelled", response, scenario)
            return None
    return not_shown("no permission was open when the client cancelled a turn; see --cancel")


def _is_client_offering(dialogue: Dialogue, method: str) -> bool:
    exchanges = dialogue.exchanges("initialize", outgoing=True)
    capabilities = exchanges[0].request.params.get("clientCapabilities") if exchanges else None
    capabilities = capabilities if isinstance(capabilities, dict) else {}
    files = capabilities.get("fs")
    named = {"fs/read_text_file": "readTextFile", "fs/write_text_file": "writeTextFile"}
    if method in named:
        return isinstance(files, dict) and files.get(named[method]) is True
    return capabilities.get("terminal") is True


def judge_refused(dialogues: Dialogues, *, scenario: str) -> Verdict | None:
    """Check that requests of a family that the client does not offer are refused with -32601."""
    dialogue = dialogues.get(scenario, NOTHING)
    found = False
    for exchange in dialogue.exchanges(outgoing=False):
        method = exchange.request.method
        # Without a terminal, the requests for one name nothing.
        if method not in ("fs/read_text_file", "fs/write_text_file", "terminal/create"):
            continue
        if not _is_client_offering(dialogue, method):
            found = True
            response = require_response(dialogue, exchange, scenario)
            if (response.error or {}).get("code") != METHOD_NOT_FOUND:
                raise Fault(f"{method} is not offered, and was not refused with -32601", response, scenario)
    return None if found else not_shown("the client offers that, or did not come to it")


def _served(dialogue: Dialogue, method: str, scenario: str) -> Iterator[tuple[Exchange, Line]]:
    """Yield the requests of a method that the client offers, with their responses. Raises `Fault` for an error."""
    for exchange in dialogue.exchanges(method, outgoing=False):
        if _is_client_offering(dialogue, method):
            response = require_response(dialogue, exchange, scenario)
            if response.error is not None:
                raise Fault(f"{method} is offered, and was answered with an error", response, scenario)
            yield exchange, response


def judge_files(dialogues: Dialogues, *, before: str) -> Verdict | None:
    """Check that files are written, and read as a whole and in part; `before` is the text of the file at first."""
    dialogue = dialogues.get("file-system", NOTHING)
    text, found = before, False
    for exchange, _ in _served(dialogue, "fs/write_text_file", "file-system"):
        text, found = exchange.request.params["content"], True
    for exchange, response in _served(dialogue, "fs/read_text_file", "file-system"):
        found = True
        first, limit = exchange.request.params.get("line", 1), exchange.request.params.get("limit")
        lines = text.splitlines(keepends=True)[first - 1 :][:limit]
        content = response.result.get("content") if isinstance(response.result, dict) else None
        # Whether the last line of a part keeps its end is open.
        if not isinstance(content, str) or (content != "".join(lines) and content + "\n" != "".join(lines)):
            raise Fault(f"the content is not {''.join(lines)!r}", response, "file-system")
    return None if found else not_shown("the client does not offer files, or did not come to that")


def judge_terminal(dialogues: Dialogues) -> Verdict | None:
    """Check that a command runs in a terminal, with its output and its end."""
    dialogue, scenario = dialogues.get("terminal", NOTHING), "terminal"
    created = list(_served(dialogue, "terminal/create", scenario))
    for _, response in created:
        if fault := members_fault(response.result, {"terminalId": str}, "the result"):
            raise Fault(fault, response, scenario)
    for _, response in _served(dialogue, "terminal/wait_for_exit", scenario):
        if not isinstance(response.result, dict) or response.result.get("exitCode") != 0:
            raise Fault("the command did not end with exit code 0", response, scenario)
    for _, response in _served(dialogue, "terminal/output", scenario):
        fault = members_fault(response.result, {"output": str}, "the result")
        if not fault and not isinstance(response.result.get("truncated"), bool):
            fault = "the result does not say whether the output is truncated"
        if not fault and "acp-gateway-check" not in response.result["output"]:
            fault = "the output is not that of the command"
        if fault:
            raise Fault(fault, response, scenario)
    for method in ("terminal/kill", "terminal/release"):
        list(_served(dialogue, method, scenario))
    return None if created else not_shown("the client does not offer terminals, or did not come to that")


def _is_update(line: Line) -> bool:
    return bool(line.update)


_RULES: Final = """
turn | MUST | Overview: Message Flow | the client comes to the end of a turn
stdin | MUST | Transports: stdio | the agent's stdin has nothing but messages
messages | MUST | JSON-RPC 2.0: 4, 5 | messages are JSON-RPC 2.0
responses | MUST | JSON-RPC 2.0: 5 | each request has one response
ids-unique | MUST | JSON-RPC 2.0: 4 | open requests have different ids
ids | MUST | JSON-RPC 2.0: 5 | strings and integers are ids, and come back as they are
ids-unusual | SHOULD | JSON-RPC 2.0: 5 | null and large integers are ids as well
initialize | MUST | Initialization | it comes first and has the specified form
version | MUST | Initialization: Version Negotiation | a version is asked for
version-unsupported | SHOULD | Initialization: Version Negotiation | an unknown version is not worked with
authenticate | MUST | Initialization: Authentication | a session is asked for again after it
methods-offered | MUST | Initialization: Capabilities | only what the agent offers is called
session-new | MUST | Session Setup: Creating a Session | the request has the specified form
session-known | MUST | Session Setup: Session ID | messages name sessions that were opened
mcp-offered | MUST | Session Setup: MCP Servers | MCP servers are reached in offered ways
prompt | MUST | Prompt Turn: User Message | prompts are content blocks
blocks-offered | MUST | Initialization: Prompt Capabilities | blocks are text and links where no more is offered
updates | MUST | Prompt Turn: Agent Reports Output | updates of each kind are taken
update-unknown | SHOULD | Prompt Turn: Agent Reports Output | unknown kinds are ignored
unknown-members | SHOULD | Extensibility | unknown members are ignored
stop-reasons | MUST | Prompt Turn: Stop Reasons | the client goes on after each of them
permission | MUST | Tool Calls: Requesting Permission | requests are answered with an outcome that was offered
permission-allow | MUST | Tool Calls: Requesting Permission | what the user allows is allowed
permission-reject | MUST | Tool Calls: Requesting Permission | what the user rejects is rejected
cancel | MUST | Prompt Turn: Cancellation | session/cancel is a notification
cancel-permission | MUST | Prompt Turn: Cancellation | open permissions are answered with cancelled
fs-refused | MUST | File System: Checking Support | files are refused with -32601 where not offered
fs | MUST | File System | files are read and written where offered
terminal-refused | MUST | Terminals: Checking Support | so are terminals
terminal | MUST | Terminals | commands are run where offered
paths | MUST | Overview: Argument Requirements | paths are absolute
unknown-method | MUST | JSON-RPC 2.0: 5.1 | unknown methods are answered with -32601
unknown-extension | MUST | Extensibility: Custom Requests | so are unknown extensions
unknown-notification | MUST | Extensibility: Custom Notifications | unknown notifications are ignored
meta | MUST | Extensibility: The _meta Field | _meta is accepted anywhere
big-message | MUST | Transports: stdio | an update of 2 MiB is read
split-message | MUST | Transports: stdio | messages in pieces are read
bad-line | SHOULD | JSON-RPC 2.0: 5.1 | the client goes on after a line that is not JSON
stderr | MUST | Transports: stdio | the agent may write to stderr
agent-lost | SHOULD | Transports: stdio | the client ends although its agent has ended
exit | SHOULD | Transports: stdio | the client ends when its stdin ends
agent-released | SHOULD | Transports: stdio | the agent's stdin ends with the client
"""

_JUDGES: Final[dict[str, Judge]] = {
    **common_judges(outgoing=True, requests="agent-requests", notifications="agent-notifications"),
    "turn": judge_turn,
    "stdin": partial(judge_stream, outgoing=True),
    "ids-unique": judge_unique_ids,
    "ids": partial(judge_ids, scenario="agent-ids", keys=IDS),
    "ids-unusual": partial(judge_ids, scenario="agent-ids-unusual", keys=UNUSUAL_IDS),
    "initialize": judge_initialize,
    "version": judge_version,
    "version-unsupported": judge_version_unsupported,
    "authenticate": judge_authenticate,
    "methods-offered": judge_methods_offered,
    "session-new": judge_session_new,
    "mcp-offered": judge_mcp_offered,
    "prompt": judge_prompt,
    "blocks-offered": judge_blocks_offered,
    "updates": partial(judge_survived, scenario="agent-updates", probe=_is_update),
    "update-unknown": partial(judge_survived, scenario="agent-update-unknown", probe=_is_update),
    "unknown-members": partial(judge_survived, scenario="agent-members", probe=_is_update),
    "stop-reasons": judge_stop_reasons,
    "permission": judge_permission,
    "permission-allow": partial(judge_decision, scenario="permission", kind="allow"),
    "permission-reject": partial(judge_decision, scenario="permission-reject", kind="reject"),
    "cancel": judge_cancel,
    "cancel-permission": judge_cancel_permission,
    "fs-refused": partial(judge_refused, scenario="file-system"),
    "fs": partial(judge_files, before=FILE_TEXT),
    "terminal-refused": partial(judge_refused, scenario="terminal"),
    "terminal": judge_terminal,
    "meta": partial(judge_survived, scenario="agent-meta", probe=_is_update),
    "big-message": partial(judge_survived, scenario="agent-big", probe=lambda line: len(line.text) > BIG),
    "split-message": partial(judge_survived, scenario="agent-split", probe=_is_update),
    "bad-line": judge_bad_line,
    "stderr": judge_stderr,
    "agent-lost": judge_lost,
    "exit": judge_exit,
    "agent-released": judge_released,
}

CHECKS: Final = table_of_checks(_RULES, _JUDGES)
"""All checks of clients, in the order of the report."""
