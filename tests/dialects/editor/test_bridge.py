"""The requests of editors that speak HTTP: what each is answered, and who may send it."""

import json
import re
import tempfile
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11
import msgspec
import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.dialects.editor.output import TurnLines
from acp_gateway.dialects.editor.service import EditorSection
from acp_gateway.errors import Busy, Forbidden, UnknownAgent, UnknownSession
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.rate_limits import RateLimiter
from acp_gateway.protocol import jsonrpc
from tests.dialects.editor.editing import PAGE, HttpEditor, message, serving_editors, tells
from tests.dialects.editor.test_turns import prompts, started
from tests.fuzz.effort import effort
from tests.kit.bridging import asks, ends_turn, says, section, spawner_in
from tests.kit.doubles import ServingAgents
from tests.kit.echoing import WS, port_of
from tests.kit.http_client import JSON
from tests.kit.hub_scene import permission

ROOT = Path(__file__).parents[3]
DIALECTS = (ROOT / "docs" / "dialects-reference.md").read_text()

UPDATES = (
    *("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"),
    *(
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
        "usage_update",
    ),
)

pytestmark = pytest.mark.usefixtures("no_bug_showed", "heads_at_once")


async def test_a_message_is_answered_in_lines_while_the_turn_runs(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, there.http(Origin=PAGE).sent("hi") as turn:
        agent = agents[0]
        prompt = await agent.got("session/prompt")
        session = prompt["params"]["sessionId"]
        assert prompt["params"]["prompt"] == [{"type": "text", "text": "hi"}]
        await says(agent, session, "one")
        assert await turn.next() == {"type": "text", "content": "one", "seq": 1}
        await tells(agent, session, sessionUpdate="tool_call", toolCallId="t", title="Read", status="pending")
        tool = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Read", "status": "pending"}
        assert await turn.next() == {"type": "tool", **tool, "seq": 2}
        await tells(agent, session, sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "hm"})
        await says(agent, session, "two")
        await ends_turn(agent)
        assert (await turn.rest())[2:] == [
            {"type": "text", "content": "two", "seq": 3},
            {"type": "done", "stopReason": "end_turn", "seq": 4},
        ]
        headers = turn.reply.headers
        assert (headers["content-type"], headers["cache-control"]) == ("application/x-ndjson", "no-cache")
        assert headers["transfer-encoding"] == "chunked"
        assert headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize(("texts", "content"), [(["one ", "two"], "one two"), ([], "[No response]")])
async def test_a_message_without_stream_is_answered_by_a_completion(
    texts: list[str], content: str, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    replies = []
    async with serving_editors(tmp_path, spawner) as there:

        async def ask() -> None:
            replies.append(await there.http().ask())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not agents.started:
                await trio.lowlevel.checkpoint()
            prompt = await agents[0].got("session/prompt")
            await says(agents[0], prompt["params"]["sessionId"], *texts)
            await ends_turn(agents[0])
    (reply,) = replies
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    found = json.loads(reply.body)
    assert found.pop("id").startswith("acp-")
    assert isinstance(found.pop("created"), int)
    assert found == {
        "object": "chat.completion",
        "model": "acp:fake",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


PROVIDER = {"provider": {"id": "fake"}}
CALLS: list[tuple[str, Any]] = [
    ("sendMessage", message()),
    ("initSession", PROVIDER),
    ("getSession", {**PROVIDER, "composerId": "c"}),
    ("respond", {"requestId": "1", "outcome": {"outcome": "cancelled"}}),
    ("log", {"level": "info", "message": "m"}),
]
READS = ["getSlashCommands?providerId=fake", "debug?msg=m"]
ACTS = CALLS[:4]


@pytest.mark.parametrize(("call", "body"), CALLS)
async def test_no_call_is_answered_without_a_token_on_loopback(
    call: str, body: Any, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        for token in (None, "acpgw_" + "x" * 40, "x"):
            reply = await HttpEditor(there.listener, token).post(call, body)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert agents.started == []


@pytest.mark.parametrize("target", READS)
async def test_nothing_is_read_without_a_token(
    target: str, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        assert (await HttpEditor(there.listener, None).get(f"/acp/{target}")).status == 401
        assert (await there.http().get(f"/acp/{target}")).status == 200


@pytest.mark.parametrize(("call", "body"), CALLS)
async def test_no_page_of_another_origin_is_answered(
    call: str, body: Any, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    """The original answers any page."""
    async with serving_editors(tmp_path, spawner) as there:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            reply = await there.http(Origin=origin).post(call, body)
            assert (reply.status, "access-control-allow-origin" in reply.headers) == (403, False)
        host = await there.http(Host="evil.example").post(call, body)
        assert host.status == 403
    assert agents.started == []


@pytest.mark.parametrize("path", ["/acp/sendMessage", "/acp/getSlashCommands", "/acp/log"])
async def test_a_preflight_and_answers_have_the_headers_for_listed_origins_alone(
    path: str, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        unknown = HttpEditor(there.listener, None)
        preflight = await unknown.get(path, "OPTIONS", Origin=PAGE)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert preflight.headers["access-control-allow-methods"] == f"{editor.METHODS[path]}, OPTIONS"
        assert (await unknown.get(path, "OPTIONS", Origin="https://evil.example")).status == 403
        refused = await unknown.get(path, "GET", Origin=PAGE)
        assert refused.headers["access-control-allow-origin"] == PAGE
        assert (await unknown.get("/acp/nothing", "OPTIONS", Origin=PAGE)).status == 404


async def test_the_command_of_a_body_is_ignored_and_audited_without_its_text(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    """The original runs it."""
    touched = tmp_path / "touched"
    provider = {"id": "fake", "command": "touch", "args": [str(touched)], "env": {"KEY": "secret"}}
    async with serving_editors(tmp_path, spawner) as there:
        sender = there.http()
        await sender.answer("getSession", {"provider": provider, "composerId": "c"})
        await sender.answer("getSession", {**PROVIDER, "composerId": "c"})
        unknown = await sender.post("initSession", {"provider": {**provider, "id": "touch"}})
    assert (unknown.status, unknown.headers["acp-gateway"]) == (404, "unknown_agent")
    (refused,) = there.audit.of("refused")
    assert (refused["identity"], refused["reason"], refused["address"]) == ("ann", "unknown_agent", "127.0.0.1")
    assert not touched.exists()
    assert agents[0].launch.command == section().command
    entries = there.audit.of("ignored_provider_command")
    assert [(entry["identity"], entry["provider"]) for entry in entries] == [("ann", "fake"), ("ann", "touch")]
    assert "secret" not in json.dumps(there.audit.entries)
    assert str(touched) not in json.dumps(there.audit.entries)


async def test_a_provider_is_an_agent_that_the_token_may_use(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    two = {"fake": section(), "other": section()}
    async with serving_editors(tmp_path, spawner, agents=two, gateway={"default_agent": "fake"}) as there:
        sender = there.http(agents=("other",))
        for reply in (
            await sender.ask(),
            await sender.post("initSession", PROVIDER),
            await sender.post("getSession", {**PROVIDER, "composerId": "c"}),
            await sender.get("/acp/getSlashCommands?providerId=fake"),
        ):
            assert (reply.status, json.loads(reply.body)["error"]) == (403, True)
        nowhere = await sender.ask(agent="nothing")
        assert nowhere.status == 404
        assert "there are: other" in json.loads(nowhere.body)["message"]
    assert agents.started == []


@pytest.mark.parametrize(("call", "body"), ACTS)
async def test_an_observer_can_do_nothing_that_acts(
    call: str, body: Any, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        observer = there.http(role="observer")
        assert (await observer.post(call, body)).status == 403
        assert (await observer.get("/acp/getSlashCommands?providerId=fake")).status == 200
        metrics = HttpEditor(there.listener, there.gateway.tokens.create("m", None, None, role="metrics")[1])
        assert (await metrics.post(call, body)).status == 403
        assert (await metrics.get("/acp/getSlashCommands?providerId=fake")).status == 403
    assert agents.started == []


@pytest.mark.parametrize("role", ["controller", "observer"])
async def test_a_guest_can_do_nothing_that_acts(
    role: Any, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        composer = {**PROVIDER, "composerId": "c"}
        session = (await there.http().answer("getSession", composer))["sessionId"]
        token = there.gateway.tokens.create_guest(session, role=role, lifetime=None)[1]
        guest = HttpEditor(there.listener, token)
        for call, body in ACTS:
            assert (await guest.post(call, body)).status == 403
    assert [it["method"] for it in agents[0].received] == ["initialize", "session/new"]


async def test_an_observer_or_another_identity_decides_no_permission(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, there.http().sent() as turn:
        agent = await started(agents)
        (prompt,) = await prompts(agent, 1)
        await asks(agent, prompt["params"]["sessionId"], 77)
        permission = await turn.until("permission")
        yes = {"requestId": permission["requestId"], "outcome": {"outcome": "selected", "optionId": "yes"}}
        assert (await there.http(role="observer").post("respond", yes)).status == 403
        assert (await there.http("ben").post("respond", yes)).status == 404
        assert [it for it in agent.received if it.get("id") == 77] == []


async def test_a_question_that_is_not_a_permission_is_left_to_other_clients(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        page = await there.page(there.access())
        session, agent = await page.new_session(), agents[0]
        await page.result("session/get", sessionId=session)
        await agent.send(id=78, method="elicitation/create", params={"sessionId": session, "message": "Name?"})
        asked = await page.until(lambda: next(iter(page.of("session/request")), None))
        cancelled = {"requestId": asked["requestId"], "outcome": {"outcome": "cancelled"}}
        attached = len(there.audit.of("attached"))
        assert (await there.http().post("respond", cancelled)).status == 404
        assert len(there.audit.of("attached")) == attached


async def test_a_token_that_is_revoked_ends_the_answer_and_the_turn(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        token, secret = there.gateway.tokens.create("editor", "ann", None)
        async with HttpEditor(there.listener, secret).sent() as turn:
            agent = await started(agents)
            (prompt,) = await prompts(agent, 1)
            await says(agent, prompt["params"]["sessionId"], "one")
            await turn.next()
            there.gateway.tokens.revoke(token.id)
            there.gateway.connections.enforce()
            with pytest.raises((EOFError, h11.RemoteProtocolError, trio.BrokenResourceError)):
                await turn.until("done")
        assert (await HttpEditor(there.listener, secret).ask()).status == 401


async def test_the_paths_exist_only_where_editors_are_served(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    for serves in (("acp",), ("acp", "page"), ("metrics",)):
        async with serving_editors(tmp_path, spawner, ListenSection(url=WS, serves=serves)) as there:
            for call, body in CALLS:
                assert (await there.http().post(call, body)).status == 404
    async with serving_editors(tmp_path, spawner, ListenSection(url=WS, serves=("editor",))) as there:
        sender = there.http()
        assert (await sender.post("../acp", {})).status == 404
        assert (await sender.get("/acp")).status == 404
        assert (await sender.get("/ws")).status == 404
        assert (await sender.get("/")).status == 404
        assert (await sender.get("/healthz")).status == 200
        assert (await sender.post("log", {})).body == b"ok"


@pytest.mark.parametrize("path", ["/acp/", "/acp/nothing", "/acp/sendMessage/", "/acp/sendmessage", "/acp/../login"])
async def test_an_unknown_path_is_not_found(path: str, tmp_path: Path, spawner: Spawner, agents: ServingAgents) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            reply = await there.http().get(path, method)
            assert (reply.status, reply.body) == (404, b"Not Found")


async def test_a_call_takes_its_own_method_and_json_only(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        sender = there.http()
        for call, body in CALLS:
            reply = await sender.get(f"/acp/{call}")
            assert (reply.status, reply.headers["allow"]) == (405, "POST, OPTIONS")
            reply = await sender.post(call, body, **{"Content-Type": "text/plain"})
            assert (reply.status, json.loads(reply.body)["error"]) == (415, True)
        for target in READS:
            reply = await sender.get(f"/acp/{target}", "POST")
            assert (reply.status, reply.headers["allow"]) == (405, "GET, OPTIONS")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"null", b'"text"', b"{}", b"[" * 100_000])
@pytest.mark.parametrize("call", [call for call, _ in ACTS])
async def test_garbage_is_refused_and_the_connection_goes_on(
    call: str, body: bytes, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        sender = there.http()
        async with sender.connection() as http:
            for _ in range(2):
                reply = await http.ask("POST", f"/acp/{call}", body, **{**JSON, **sender.headers})
                assert reply.status == 400
                assert set(json.loads(reply.body)) == {"error", "message"}
            assert (await http.ask("POST", "/acp/log", {}, **{**JSON, **sender.headers})).body == b"ok"
    assert agents.started == []


@pytest.mark.parametrize("query", ["", "?providerId", "?providerId=fake&providerId=fake", "?" + "a=1&" * 50])
async def test_a_query_without_the_one_provider_is_refused(
    query: str, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        reply = await there.http().get(f"/acp/getSlashCommands{query}")
        assert reply.status in (400, 404)
        assert json.loads(reply.body)["error"] is True
        assert (await there.http().get("/acp/debug?message=m")).status == 400


async def test_a_body_beyond_message_size_is_refused_and_others_go_on(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner, options=EditorSection(message_size=1000)) as there:
        assert (await there.http().post("log", {"message": "x" * 1000})).status == 413
        assert (await there.http().post("log", {"message": "x" * 900})).status == 200


async def test_messages_that_wait_for_their_turns_are_bounded_by_their_size(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    limited = EditorSection(message_size=1000, bodies_per_identity=1)
    async with serving_editors(tmp_path, spawner, options=limited) as there, there.http().sent("a" * 800):
        agent, waiting = await started(agents), there.composers.waiting
        await prompts(agent, 1)
        assert waiting["ann"] == 0
        # The agent does not obey.
        begun, agent._prompts = agent._prompts, []
        async with there.http().sent_unread("b" * 600):
            await agent.got("session/cancel")
            assert waiting["ann"] == 600
            reply = await there.http().ask("c" * 600, "other")
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")
            assert waiting["ann"] == 600
            async with there.http("ben").sent("d" * 600):
                while len(agents.started) < 2:
                    await trio.lowlevel.checkpoint()
        while waiting["ann"]:
            await trio.lowlevel.checkpoint()
        agent._prompts = begun
        await ends_turn(agent)
        async with there.http().sent("c" * 600, "other"):
            await prompts(agent, 2)
            assert not waiting


async def test_bodies_that_are_sent_slowly_are_limited_and_do_not_disturb_others(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    limited = EditorSection(bodies_per_identity=2)
    async with serving_editors(tmp_path, spawner, options=limited) as there, AsyncExitStack() as stack:
        slow, composers = there.http(), there.composers
        for _ in range(2):
            http = await stack.enter_async_context(slow.connection())
            lines = ["POST /acp/log HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
            lines += [f"Authorization: {slow.headers['Authorization']}", "Content-Length: 100", "", "{"]
            await http.stream.send_all("\r\n".join(lines).encode())
        while composers.receiving["ann"] < 2:
            await trio.lowlevel.checkpoint()
        reply = await slow.post("log", {})
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert (await there.http("ben").post("log", {})).status == 200
        await stack.aclose()
        while composers.receiving["ann"]:
            await trio.lowlevel.checkpoint()
        assert (await slow.post("log", {})).status == 200


async def test_a_body_is_complete_within_message_timeout(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner, limits=LimitsSection(message_timeout=0.01)) as there:
        sender = there.http()
        async with sender.connection() as http:
            lines = ["POST /acp/log HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
            lines += [f"Authorization: {sender.headers['Authorization']}", "Content-Length: 100", "", "{"]
            await http.stream.send_all("\r\n".join(lines).encode())
            assert b" 408 " in await http.stream.receive_some()


async def test_connections_are_limited_and_those_of_others_go_on(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner, limits=LimitsSection(connections_per_identity=3)) as there:
        async with there.http().sent(composer="a") as turn:
            agent = await started(agents)
            (prompt,) = await prompts(agent, 1)
            full = await there.http().ask(composer="b")
            assert (full.status, full.headers["acp-gateway"]) == (503, "busy")
            assert "connections_per_identity" in json.loads(full.body)["message"]
            assert (await there.http("ben").get("/acp/getSlashCommands?providerId=fake")).status == 200
            await says(agent, prompt["params"]["sessionId"], "still here")
            await ends_turn(agent)
            await turn.rest()
        assert turn.text == "still here"


async def test_a_request_counts_as_a_connection_and_its_message_as_another(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner, limits=LimitsSection(connections_per_identity=2)) as there:
        async with there.http().sent():
            await prompts(await started(agents), 1)
            refused = await there.http().post("log", {})
            assert (refused.status, refused.headers["acp-gateway"]) == (503, "busy")
        while len(there.gateway.connections):
            await trio.lowlevel.checkpoint()
        assert (await there.http().post("log", {})).status == 200


async def test_what_an_editor_logs_is_escaped_redacted_and_for_verbose_logs_alone(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "acp_gateway.dialects.editor.bridge")
    async with serving_editors(tmp_path, spawner) as there:
        secret = there.http().headers["Authorization"].removeprefix("Bearer ")
        text = {"level": "warn\n", "message": f"\x1b[31mred {secret} " + "x" * 5000}
        assert (await there.http().post("log", text)).body == b"ok"
        assert (await there.http().get("/acp/debug?msg=two%0Alines")).body == b"ok"
    lines = [record for record in caplog.records if record.name == "acp_gateway.dialects.editor.bridge"]
    assert {record.levelname for record in lines} == {"DEBUG"}
    first, second = [record.getMessage() for record in lines]
    assert "\x1b" not in first
    assert secret not in first
    assert len(first) < 800
    assert second.endswith("the editor logs (debug): two lines")


async def test_a_cookie_signs_a_page_of_the_gateway_in(tmp_path: Path, spawner: Spawner, agents: ServingAgents) -> None:
    listen = ListenSection(url=WS, serves=("acp", "page", "editor"))
    async with serving_editors(tmp_path, spawner, listen) as there:
        port = port_of(there.listener)
        token = there.gateway.tokens.create("laptop", "ann", None)[0]
        code = there.gateway.browsers.make_code(token, "ann", label="phone")[1]
        own = f"http://localhost:{port}"
        page = HttpEditor(there.listener, None, Host=f"localhost:{port}", Origin=own)
        async with page.connection() as http:
            login = await http.ask("POST", "/login", {"code": code}, **{**JSON, **page.headers})
        cookie = login.headers["set-cookie"].partition(";")[0]
        assert (await page.post("log", {}, Cookie=cookie)).status == 200
        # A form of another page, or an image, sends the cookie as well.
        for origin in ("https://evil.example", "null"):
            assert (await page.post("log", {}, Cookie=cookie, Origin=origin)).status == 403
        stranger = HttpEditor(there.listener, None, Host=f"localhost:{port}")
        assert (await stranger.post("log", {}, Cookie=cookie)).status == 403
        assert (await stranger.get("/acp/debug?msg=m", Cookie=cookie)).status == 403


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading of the reference, without its head."""
    text = DIALECTS.partition(f"\n{heading}\n")[2]
    rows = [
        re.split(r" *\| *", line.strip("| "))
        for line in re.findall(r"^\|.*\|$", text.partition("\n#")[0], re.MULTILINE)
    ]
    return rows[2:]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def members(kind: Any) -> list[str]:
    found = msgspec.structs.fields(kind)
    return [field.encode_name + ("" if field.required else "?") for field in found]


def test_the_reference_has_all_paths_with_their_methods_and_members() -> None:
    rows = table("## Editor bridge")
    assert {words(path)[0]: words(method)[0] for path, method, *_ in rows} == editor.METHODS
    bodies = {words(path)[0]: words(body) for path, _, body, *_ in rows}
    assert bodies[editor.SEND_MESSAGE] == members(editor.SendMessage)
    assert bodies[editor.INIT_SESSION] == members(editor.InitSession)
    assert bodies[editor.GET_SESSION] == members(editor.GetSession)
    assert bodies[editor.RESPOND] == members(editor._Respond)
    assert bodies[editor.LOG] == members(editor.LogEntry)


def test_the_reference_has_all_lines_with_what_they_come_from() -> None:
    lines = TurnLines("s")
    update = {"sessionUpdate": "", "content": {"type": "text", "text": "t"}}
    kinds: dict[str, list[str]] = {}
    # Every kind of update that the project knows of, and one that it does not.
    for kind in [*UPDATES, "something_new"]:
        params = {"sessionId": "s", "update": update | {"sessionUpdate": kind}}
        line = lines.update(json.dumps({"method": "session/update", "params": params}).encode())
        if line is not None:
            kinds.setdefault(json.loads(line)["type"], []).append(kind)
    asked = jsonrpc.parse(json.dumps(permission(1)).encode())
    composed = [json.loads(it) for it in (lines.permission("k", asked), lines.done("end_turn"), lines.error("e"))]
    told = {line["type"]: [name for name in line if name not in ("type", "seq")] for line in composed}
    rows = table("### Lines of a turn")
    assert {words(kind)[0] for kind, *_ in rows} == {*kinds, *told}
    for kind, of, source in rows:
        if words(kind)[0] in told:
            assert words(of) == told[words(kind)[0]]
        else:
            assert words(source) == kinds[words(kind)[0]]


def test_the_reference_has_the_statuses_of_the_bridge() -> None:
    named = set()
    for path in (ROOT / "acp_gateway" / "dialects" / "editor").glob("*.py"):
        named |= set(re.findall(r"HTTPStatus\.([A-Z_]+)", path.read_text()))
    errors = {int(HTTPStatus[name]) for name in named if HTTPStatus[name] >= 400}
    refused = {error.http_status for error in (Forbidden, UnknownAgent, UnknownSession, Busy)}
    assert {int(row[0]) for row in table("### Errors")} == errors | refused


async def test_requests_and_their_bodies_count_in_the_rate_limits_of_the_identity(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[tuple[int, int]] = []

    def charge(limiter: Any, messages: int = 0, size: int = 0, *more: Any, **others: Any) -> float:
        charged.append((messages, size))
        return 0.0

    monkeypatch.setattr(RateLimiter, "charge", charge)
    async with serving_editors(tmp_path, spawner) as there:
        sender = there.http()
        await sender.post("log", {"message": "x" * 1000})
        assert sum(messages for messages, _ in charged) == 1
        assert sum(size for _, size in charged) >= 1000
        charged.clear()
        await sender.get("/acp/getSlashCommands?providerId=fake")
        assert charged == [(20, 0)]


async def test_a_browser_that_is_bound_to_a_session_can_do_nothing_that_acts(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    listen = ListenSection(url=WS, serves=("acp", "page", "editor"))
    async with serving_editors(tmp_path, spawner, listen) as there:
        own = f"http://localhost:{port_of(there.listener)}"
        page = HttpEditor(there.listener, None, Host=own.removeprefix("http://"), Origin=own)
        token = there.gateway.tokens.create("laptop", "ann", None)[0]
        code = there.gateway.browsers.make_code(token, "ann", session="s1", label="phone")[1]
        async with page.connection() as http:
            login = await http.ask("POST", "/login", {"code": code}, **{**JSON, **page.headers})
        page.headers["Cookie"] = login.headers["set-cookie"].partition(";")[0]
        for call, body in ACTS:
            assert (await page.post(call, body)).status == 403
        assert (await page.post("log", {})).status == 200
    assert agents.started == []


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["fake", "c", "plan"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(["id", "command", "env"]), values),
    max_leaves=5,
)
PROVIDERS = st.just({"id": "fake"}) | JSONS
BODIES = st.binary(max_size=20) | st.builds(
    lambda known, more: json.dumps({**known, **more}).encode(),
    st.fixed_dictionaries({"provider": PROVIDERS, "message": st.just("m") | JSONS, "composerId": st.just("c") | JSONS}),
    st.dictionaries(st.sampled_from(["stream", "modeId", "cwd", "requestId", "outcome", "level", "x"]), JSONS),
)


@effort(3)
@given(requests=st.lists(st.tuples(st.sampled_from([call for call, _ in CALLS]), BODIES), max_size=12))
def test_any_bodies_are_answered_as_the_reference_says(requests: list[tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("acp_gateway.dialects.editor.sessions.COMMANDS_TIMEOUT", 0.0)
        trio.run(send_all, Path(directory), patch, requests)


async def send_all(folder: Path, patch: pytest.MonkeyPatch, requests: list[tuple[str, bytes]]) -> None:
    agents = ServingAgents()
    patch.setattr(startup, "run_agent", agents.run)
    with spawner_in(folder) as spawner:
        async with serving_editors(folder, spawner) as there, trio.open_nursery() as nursery:

            async def end_turns() -> None:
                agent = await started(agents)
                while True:
                    while agent._prompts:
                        await ends_turn(agent)
                    await agent._arrived.park()

            nursery.start_soon(end_turns)
            sender = there.http()
            for call, body in requests:
                reply = await sender.post(call, body)
                assert reply.status in (200, 400, 403, 404, 500), (call, body, reply)
                if reply.status != 200:
                    assert set(json.loads(reply.body)) == {"error", "message"}
            assert (await sender.post("log", {})).status == 200
            nursery.cancel_scope.cancel()
    commands = {agent.launch.command for agent in agents.started}
    assert commands <= {section().command}
