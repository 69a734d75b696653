"""Access rules for messages of clients, by role and reach."""

import pytest

from acp_gateway.core.access_rules import (
    directories_of,
    flaw_of_opening,
    flaw_of_params,
    flaw_of_size,
    objection_to_notification,
    objection_to_request,
)
from acp_gateway.core.requests import ErrorObject
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Role, SessionReach
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message, parse
from acp_gateway.protocol.text.lookup import params_of
from tests.kit.scene import encode, make_policy

MOST = make_policy().limits.max_additional_directories

CONTROLLER = Client("a", SessionReach("me"))
OBSERVER = Client("b", SessionReach("me"), Role.OBSERVER)
JOINED = Client("c", SessionReach("me", "s"))
GUEST = Client("d", SessionReach("guest-1", "s", guest=True))

ANY_METHOD = (*methods.CLIENT_METHODS, "authenticate", "_x/y", "session/unheard_of")
OPENING = {methods.NEW, methods.LOAD, methods.RESUME}
LOOKING = {methods.INITIALIZE, *OPENING, methods.LIST, methods.CLOSE, methods.SESSION_STATUS}
WHOLE = {"logout", "auth/logout", "auth/status", "providers/list", "providers/set", "providers/disable"}
BEYOND = {"session/fork", "session/delete", "session/archive", "session/unarchive", "nes/start"}
TAKING_PART = {*methods.PROMPTS, methods.SET_MODE, methods.SET_MODEL, methods.SET_CONFIG_OPTION}


def request(method: str, **params: object) -> Message:
    return parse(encode(id=1, method=method, params=params))


def notification(method: str, **params: object) -> Message:
    return parse(encode(method=method, params=params))


@pytest.mark.parametrize("method", ANY_METHOD)
def test_a_controller_may_ask_anything(method: str) -> None:
    assert objection_to_request(CONTROLLER, request(method, sessionId="s")) is None
    assert objection_to_request(CONTROLLER, request(method)) is None


@pytest.mark.parametrize("method", ANY_METHOD)
def test_an_observer_may_ask_what_never_reaches_the_agent(method: str) -> None:
    objection = objection_to_request(OBSERVER, request(method, sessionId="s"))
    assert (objection is None) == (method in LOOKING)
    assert objection is None or objection[0] == jsonrpc.METHOD_NOT_FOUND


@pytest.mark.parametrize("method", ANY_METHOD)
def test_a_guest_may_ask_what_is_known_to_be_about_its_session(method: str) -> None:
    objection = objection_to_request(GUEST, request(method, sessionId="s"))
    assert (objection is None) == (method in LOOKING | TAKING_PART)
    assert objection is None or objection[0] == jsonrpc.INVALID_REQUEST


@pytest.mark.parametrize("method", ANY_METHOD)
def test_a_workspace_token_may_send_known_requests_and_those_that_name_a_session(method: str) -> None:
    limited = Client("e", SessionReach("me", workspaces=("a",)))
    assert (objection_to_request(limited, request(method, sessionId="s")) is None) == (method not in WHOLE)
    objection = objection_to_request(limited, request(method))
    known = method in methods.CLIENT_METHODS or method == methods.AUTHENTICATE
    assert (objection is None) == (known and method not in WHOLE)
    assert objection is None or objection[0] == jsonrpc.INVALID_REQUEST


@pytest.mark.parametrize("method", ANY_METHOD)
def test_a_client_of_one_session_may_send_requests_that_name_a_session_and_neither_make_nor_remove_one(
    method: str,
) -> None:
    assert (objection_to_request(JOINED, request(method, sessionId="s")) is None) == (method not in BEYOND | WHOLE)
    # An editor whose agent wants a login can't begin without one.
    without = (methods.NEW, methods.LIST, methods.AUTHENTICATE)
    assert (objection_to_request(JOINED, request(method)) is None) == (method in without)


@pytest.mark.parametrize("client", [CONTROLLER, JOINED])
def test_a_controller_may_tell_anything_about_a_session(client: Client) -> None:
    assert objection_to_notification(client, notification("_x/y", sessionId="s")) is None
    assert objection_to_notification(client, notification(methods.SESSION_CANCEL, sessionId="s")) is None


def test_a_message_of_an_mcp_server_is_a_request_or_a_notification_of_a_controller() -> None:
    told = notification("mcp/message", connectionId="c")
    assert objection_to_notification(CONTROLLER, told) is None
    for client in (JOINED, GUEST, OBSERVER):
        assert objection_to_notification(client, told) is not None
    asked = request("mcp/message", connectionId="c")
    assert objection_to_request(CONTROLLER, asked) is None
    for client in (JOINED, GUEST, OBSERVER):
        assert objection_to_request(client, asked) is not None


def test_a_notification_without_a_session_is_refused_from_clients_of_one_session() -> None:
    assert objection_to_notification(CONTROLLER, notification("_x/y")) is None
    assert objection_to_notification(JOINED, notification("_x/y")) is not None


def test_a_guest_may_cancel_and_tell_nothing_else() -> None:
    assert objection_to_notification(GUEST, notification(methods.SESSION_CANCEL, sessionId="s")) is None
    assert objection_to_notification(GUEST, notification("_x/y", sessionId="s")) is not None


@pytest.mark.parametrize("method", sorted({*methods.CLIENT_NOTIFICATIONS} - {methods.CANCEL_REQUEST}))
def test_a_known_notification_is_for_controllers_and_names_a_session(method: str) -> None:
    """A guest may send `session/cancel` alone."""
    named = notification(method, sessionId="s")
    assert objection_to_notification(CONTROLLER, named) is None
    assert objection_to_notification(CONTROLLER, notification(method)) == "it names no session"
    assert objection_to_notification(OBSERVER, named) == "observers may only look"
    assert (objection_to_notification(GUEST, named) is None) == (method == methods.SESSION_CANCEL)


@pytest.mark.parametrize("method", sorted(methods.CLIENT_METHODS.keys() - {methods.MCP_MESSAGE}))
def test_a_request_method_is_refused_as_a_notification(method: str) -> None:
    objection = objection_to_notification(CONTROLLER, notification(method, sessionId="s"))
    assert objection == "it is a request, which has an id"


@pytest.mark.parametrize("method", methods.CLIENT_NOTIFICATIONS)
def test_a_notification_method_is_refused_as_a_request(method: str) -> None:
    for client in (CONTROLLER, JOINED):
        objection = objection_to_request(client, request(method, sessionId="s"))
        assert objection == ErrorObject(jsonrpc.INVALID_REQUEST, f"{method} is a notification, which has no id")


@pytest.mark.parametrize(
    "params",
    [
        {"session_id": "s"},
        {"SessionId": "s"},
        {"sessionID": "s"},
        {"_sessionId_": "s"},
        {"sessionId": ["s"]},
        {"sessionId": {"id": "s"}},
        {"sessionId": 5},
        {"sessionId": True},
        {"sessionId": "s", "session_id": "victim"},
        {"sessionId": "s" * (SESSION_ID_SIZE + 1)},
    ],
)
def test_a_session_that_others_might_read_into_a_message_must_be_the_one_that_is_checked(
    params: dict[str, object],
) -> None:
    objection = objection_to_request(CONTROLLER, request("_x/y", **params))
    assert objection is not None
    assert objection[0] == jsonrpc.INVALID_PARAMS
    assert objection_to_notification(CONTROLLER, notification("_x/y", **params)) is not None


@pytest.mark.parametrize("params", [{}, {"sessionId": None}, {"sessionId": "s" * SESSION_ID_SIZE}, {"sessions": ["s"]}])
def test_a_session_may_be_named_properly_or_not_at_all(params: dict[str, object]) -> None:
    assert objection_to_request(CONTROLLER, request("_x/y", **params)) is None
    assert objection_to_notification(CONTROLLER, notification("_x/y", **params)) is None


# Where a session is to be opened


@pytest.mark.parametrize(
    ("params", "flaw"),
    [
        ({"Cwd": "/srv"}, "cwd must have that very name, not 'Cwd'"),
        ({"c_w_d": "/srv"}, "cwd must have that very name, not 'c_w_d'"),
        (
            {"additional_directories": []},
            "additionalDirectories must have that very name, not 'additional_directories'",
        ),
        ({"mcp_servers": []}, "mcpServers must have that very name, not 'mcp_servers'"),
        ({"McpServers": []}, "mcpServers must have that very name, not 'McpServers'"),
        ({"cwd": ["/srv"]}, "cwd must be a string"),
        ({"cwd": {}}, "cwd must be a string"),
        ({"cwd": 7}, "cwd must be a string"),
        ({"cwd": True}, "cwd must be a string"),
        *(
            (
                {"cwd": "/srv", "additionalDirectories": value},
                "additionalDirectories must be an array of at most 64 strings (max_additional_directories)",
            )
            for value in ("/x", {"0": "/x"}, 7, True, [7], ["/x", None], ["/x", ["/y"]], ["/x"] * (MOST + 1))
        ),
    ],
)
def test_where_a_session_is_to_be_opened_must_be_what_is_checked(params: dict[str, object], flaw: str) -> None:
    message = request(methods.NEW, **params)
    assert (flaw_of_params(message) or flaw_of_opening(message, MOST)) == flaw


@pytest.mark.parametrize(
    ("params", "directories"),
    [
        ({}, ()),
        ({"cwd": None, "additionalDirectories": None}, ()),
        ({"additionalDirectories": []}, ()),
        *(({"cwd": cwd, "additionalDirectories": ["/x"]}, ("/x",)) for cwd in ("", ".", "./", None)),
        ({"cwd": ".."}, ("..",)),
        ({"cwd": "sub"}, ("sub",)),
        ({"cwd": "/srv", "mcpServers": 7, "cwds": 7, "_meta": {"Cwd": 7}}, ("/srv",)),
        ({"additionalDirectories": ["/y", "/x"], "cwd": "/srv"}, ("/srv", "/y", "/x")),
        ({"cwd": "/srv", "additionalDirectories": ["/x"] * MOST}, ("/srv", *["/x"] * MOST)),
    ],
)
def test_the_directories_of_a_session_come_in_order(params: dict[str, object], directories: tuple[str, ...]) -> None:
    opening = request(methods.NEW, **params)
    assert flaw_of_opening(opening, MOST) is None
    assert directories_of(opening) == directories


def test_directories_are_what_they_mean_however_they_are_escaped() -> None:
    params = rb'{"c\u0077d":"\/s\u0072v","additionalDirectories" : [ "/\ud83d" , "a\"b" ]}'
    opening = parse(b'{"id":1,"method":"session/new","params":%b}' % params)
    assert flaw_of_opening(opening, MOST) is None
    assert directories_of(opening) == ("/srv", "/\ud83d", 'a"b')


def test_max_additional_directories_may_exceed_what_other_arrays_may_have() -> None:
    opening = request(methods.NEW, cwd="/srv", additionalDirectories=["/x"] * 1500)
    assert flaw_of_opening(opening, 1500) is None
    assert len(directories_of(opening)) == 1501
    assert "max_additional_directories" in str(flaw_of_opening(opening, 1499))


def test_a_list_of_directories_is_read_no_further_than_it_may_be_long() -> None:
    opening = parse(
        b'{"id":1,"method":"session/new","params":{"cwd":"/","additionalDirectories":[%b""]}}' % (b'"",' * 300_000)
    )
    assert flaw_of_opening(opening, MOST) is not None


def test_a_workspace_token_may_send_no_notification_without_a_session() -> None:
    limited = Client("e", SessionReach("me", workspaces=("a",)))
    assert objection_to_notification(limited, notification("_x/y", sessionId="s")) is None
    for message in (notification("_x/y"), notification("_x/y", cwd="/etc"), notification("_x/y", sessionId=None)):
        assert objection_to_notification(limited, message) is not None


@pytest.mark.parametrize("method", [*methods.CLIENT_METHODS, "authenticate", *methods.CLIENT_NOTIFICATIONS])
@pytest.mark.parametrize("params", [b'["/etc",[]]', b'"s"', b"5", b"true", b"[]"])
@pytest.mark.parametrize("looked_up", [False, True])
def test_params_of_a_method_that_is_known_are_an_object(method: str, params: bytes, looked_up: bool) -> None:
    message = parse(b'{"id":1,"method":"%b","params":%b}' % (method.encode(), params))
    if looked_up:
        # As a check of its size does.
        assert params_of(message) == {}
    assert flaw_of_params(message) == "params must be an object"


@pytest.mark.parametrize("params", [b"", b',"params":null'])
def test_params_may_be_left_out_only_where_nothing_need_be_said(params: bytes) -> None:
    for method in (*methods.CLIENT_METHODS, "authenticate", *methods.CLIENT_NOTIFICATIONS):
        message = parse(b'{"id":1,"method":"%b"%b}' % (method.encode(), params))
        bare = method in ("session/list", "logout", "auth/logout", "auth/status", "providers/list")
        needed = None if bare else "params are missing: they must be an object"
        assert flaw_of_params(message) == needed


@pytest.mark.parametrize(
    ("method", "name", "meant"),
    [
        (methods.NEW, "CWD", "cwd"),
        (methods.NEW, "mcp-servers", "mcpServers"),
        (methods.LOAD, "MCP_SERVERS", "mcpServers"),
        (methods.FORK, "additional_directories", "additionalDirectories"),
        (methods.PROMPT, "Prompt", "prompt"),
        (methods.PROMPT, "\u017fessionId", "sessionId"),
        (methods.SET_MODE, "mode_id", "modeId"),
        (methods.SET_MODEL, "modelID", "modelId"),
        (methods.SET_CONFIG_OPTION, "config_id", "configId"),
        (methods.SET_CONFIG_OPTION, "Value", "value"),
        (methods.CANCEL_REQUEST, "request_id", "requestId"),
        (methods.LIST, "Cursor", "cursor"),
        (methods.NES_START, "workspace_uri", "workspaceUri"),
        (methods.NES_START, "WorkspaceFolders", "workspaceFolders"),
        ("document/didOpen", "session_id", "sessionId"),
        (methods.INITIALIZE, "protocol_version", "protocolVersion"),
    ],
)
@pytest.mark.parametrize("size", [0, 20_000])
def test_a_member_that_is_checked_has_that_very_name(method: str, name: str, meant: str, size: int) -> None:
    message = request(method, **{name: 1, "x": "x" * size})
    assert flaw_of_params(message) == f"{meant} must have that very name, not {name!r}"


def test_an_unknown_method_may_have_any_params_without_another_spelling_of_session_id() -> None:
    assert flaw_of_params(parse(b'{"id":1,"method":"_x/y","params":["s"]}')) is None
    assert flaw_of_params(request("_x/y", Cwd=1, mode_id=2, **{str(number): 1 for number in range(500)})) is None
    assert flaw_of_params(request("_x/y", session_id="s")) is not None


def test_a_method_that_is_known_has_few_members_and_a_prompt_not_too_many_blocks() -> None:
    many = {str(number): 1 for number in range(methods.MEMBERS)}
    assert flaw_of_params(request(methods.NEW, **many)) is None
    flaw = f"params of session/new have at most {methods.MEMBERS} members"
    assert flaw_of_params(request(methods.NEW, cwd="/", **many)) == flaw
    assert flaw_of_params(request(methods.NEW, **{str(number): 1 for number in range(5000)})) == flaw


def test_a_prompt_has_at_most_max_prompt_blocks() -> None:
    policy, block = make_policy(max_prompt_blocks=3), {"type": "text", "text": "a, b"}
    assert flaw_of_size(request(methods.PROMPT, prompt=[block] * 3), policy) is None
    for further in (block, "\ud83d"):
        flaw = "a prompt has at most 3 blocks (max_prompt_blocks)"
        assert flaw_of_size(request(methods.PROMPT, prompt=[block, block, block, further]), policy) == flaw


@pytest.mark.parametrize("method", sorted({*methods.CLIENT_METHODS, methods.AUTHENTICATE} - methods.UNREAD))
def test_a_request_that_the_gateway_reads_is_no_larger_than_session_request_size(method: str) -> None:
    message = request(method, _meta={"x": "x" * 1000})
    size = len(message.text)
    assert flaw_of_size(message, make_policy(session_request_size=size)) is None
    flaw = f"{method} has {size} bytes, session_request_size allows {size - 1}"
    assert flaw_of_size(message, make_policy(session_request_size=size - 1)) == flaw


@pytest.mark.parametrize("method", [*sorted(methods.UNREAD), "_x/y", "session/of_a_later_version"])
def test_session_request_size_does_not_limit_texts_and_unknown_methods(method: str) -> None:
    assert flaw_of_size(request(method, x="x" * 1000), make_policy(session_request_size=100)) is None
