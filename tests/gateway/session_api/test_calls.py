"""The calls of browsers, one by one."""

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import WorkspaceSection
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import AgentError, Busy
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.agent_supervisor import RestartBackoff
from acp_gateway.gateway.search import service
from acp_gateway.gateway.session_api import calls
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.gateway.session_api.last_lines import last_line
from acp_gateway.gateway.viewing.open_sessions import ANSWER_TIMEOUT
from acp_gateway.gateway.viewing.session_connection import HIGH_WATER, LARGE_RESPONSES
from acp_gateway.protocol import jsonrpc
from tests.kit.bridging import (
    TEXT,
    YES,
    Bench,
    MakeBench,
    asks,
    editor_in,
    prompted,
    running,
    says,
    section,
    texts,
)
from tests.kit.doubles import ServingAgent, ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def test_gateway_info_tells_the_browser_who_it_is(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    info = await page.result("gateway/info")
    assert {name: info[name] for name in ("identity", "role", "guest", "session", "mayShare")} == {
        "identity": "ann",
        "role": "controller",
        "guest": False,
        "session": None,
        "mayShare": True,
    }
    assert info["limit"] == {"size": 8 * 1024 * 1024, "option": "browser_message_size"}
    info = await (await bench.page(bench.guest(session, "observer"), "guest")).result("gateway/info")
    assert (info["role"], info["guest"], info["session"], info["mayShare"]) == ("observer", True, session, False)
    info = await (await bench.page(replace(bench.access(), only=session), "narrowed")).result("gateway/info")
    assert (info["guest"], info["session"], info["mayShare"]) == (False, session, False)


async def test_gateway_machine_is_told_to_all_but_those_of_one_session(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    machine = await page.result("gateway/machine")
    assert (machine["cpus"], machine["name"]) == (os.cpu_count(), platform.node())
    assert [disk["path"] for disk in machine["disks"]] == ["/"]
    narrow = await bench.page(bench.access(workspaces=["other"]), "narrow")
    assert (await narrow.result("gateway/machine"))["disks"] == []
    guest = await bench.page(bench.guest(session, "controller"), "guest")
    assert "one session" in (await guest.error("gateway/machine"))[1]


async def test_agents_list_has_those_that_the_token_allows_with_its_workspaces(make_bench: MakeBench) -> None:
    async with make_bench(a=section(), b=section()) as bench:
        (agent,) = (await (await bench.page(bench.access(agents=["b"]))).result("agents/list"))["agents"]
        assert agent == {
            "name": "b",
            "title": "b",
            "default": True,
            "machine": None,
            "workspaces": [{"name": "everything", "path": "/"}],
        }


async def test_session_list_has_live_and_past_sessions_the_latest_first(bench: Bench) -> None:
    page = await bench.page(bench.access())
    first = await page.new_session(cwd="/", title="one")
    bench.gateway.hubs[0].end()
    await page.until_status(first, "exited")
    second = await page.new_session(cwd="/", title="two")
    other = await (await bench.page(bench.access("ben"), "ben")).new_session()
    listed = (await page.result("session/list"))["sessions"]
    assert [(it["id"], it["title"], it["status"], it["live"]) for it in listed] == [
        (second, "two", "completed", True),
        (first, "one", "exited", False),
    ]
    assert other not in str(listed)
    (only,) = (await page.result("session/list", status=["exited"]))["sessions"]
    assert only["id"] == first
    (client,) = listed[0]["clients"]
    assert (client["identity"], client["role"], client["presence"], client["via"], client["you"]) == (
        "ann",
        "controller",
        "connected",
        "browser",
        True,
    )


async def test_a_prompt_is_answered_at_once_and_its_turn_is_told(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd="/", title="Mend it")
    assert await page.result("session/prompt", sessionId=session, prompt=TEXT) == {"success": True}
    (update,) = await page.until_updates(session, 1)
    assert (update["seq"], update["updateType"]) == (1, "user_message")
    assert update["payload"] == {"sessionUpdate": "user_message_chunk", "content": TEXT[0]}
    assert update["createdAt"].endswith("Z")
    await page.until_status(session, "running")
    assert await page.result("session/cancel", sessionId=session) == {"success": True}
    await page.until_status(session, "running", "completed")
    assert page.of("session/status_changed")[-1]["stopReason"] == "cancelled"


async def test_a_page_stops_the_turn_that_it_shows_and_no_later_one(bench: Bench) -> None:
    page, other = await bench.page(bench.access()), await bench.page(bench.access())
    session = await page.new_session()
    epoch = (await other.result("session/get", sessionId=session))["epoch"]
    await page.result("session/prompt", sessionId=session, prompt=TEXT)
    await other.until_updates(session, 1)
    for before in ({"epoch": epoch, "seq": 0}, {"epoch": "another", "seq": 1}):
        await other.result("session/cancel", sessionId=session, **before)
    await other.result("session/set_mode", sessionId=session, modeId="plan")
    assert not [it for it in bench.agents[0].received if it.get("method") == "session/cancel"]
    await other.result("session/cancel", sessionId=session, epoch=epoch, seq=1)
    assert (await bench.agents[0].got("session/cancel"))["params"] == {"sessionId": session}
    await page.until_status(session, "running", "completed")


async def test_modes_and_options_are_passed_on_with_the_agents_answer(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    assert await page.result("session/set_mode", sessionId=session, modeId="plan") == 1
    assert (await bench.agents[0].got("session/set_mode"))["params"] == {"sessionId": session, "modeId": "plan"}
    (update,) = await page.until_updates(session, 1)
    assert update["payload"] == {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
    await page.result("session/set_model", sessionId=session, modelId="large")
    await page.result("session/set_config_option", sessionId=session, configId="c", value="v")
    assert (await bench.agents[0].got("session/set_config_option"))["params"]["value"] == "v"


async def test_prompts_beyond_the_limit_are_refused_in_the_gateways_words(make_bench: MakeBench) -> None:
    async with make_bench(limits=LimitsSection(queued_prompts_per_session=1)) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        for _ in range(2):
            await page.result("session/prompt", sessionId=session, prompt=TEXT)
        # Tasks run in a random order: a refusal that came too late once would be taken for a prompt that waits.
        for _ in range(20):
            code, text = await page.error("session/prompt", sessionId=session, prompt=TEXT)
            assert (code, "queued_prompts_per_session" in text) == (jsonrpc.INVALID_REQUEST, True)
        (listed,) = (await page.result("session/list"))["sessions"]
        assert (listed["turn"], listed["queued"]) == (True, 1)


async def test_a_prompt_that_fails_later_without_a_turn_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    bench.agents[0].end(0)
    await bench.agents[0].close()
    await page.until_status(session, "exited")

    async def broken(*_: object, task_status: object) -> None:
        raise AgentError("no such program")

    monkeypatch.setattr(startup, "run_agent", broken)
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    await page.result("session/prompt", sessionId=session, prompt=TEXT)
    told = await page.until(lambda: next((it for it in page.of("session/status_changed") if "error" in it), None))
    assert "no such program" in told["error"]["message"]


async def test_an_observer_sees_all_and_can_do_nothing(bench: Bench) -> None:
    owner = await bench.page(bench.access())
    session = await owner.new_session()
    await prompted(owner, bench.agents[0], session)
    await asks(bench.agents[0], session)
    await owner.until(lambda: owner.of("session/request"))
    (told,) = owner.of("session/request")
    before = len(bench.agents[0].received)
    pages = [
        await bench.page(bench.access(role="observer"), "observer"),
        await bench.page(bench.access(), "observing", observe=True),
        await bench.page(bench.guest(session, "observer"), "guest"),
    ]
    calls: dict[str, dict[str, Any]] = {
        "agents/sessions": {"agentType": "demo"},
        "session/new": {},
        "session/prompt": {"prompt": TEXT},
        "session/steer": {"prompt": TEXT},
        "session/cancel": {},
        "session/respond": {"requestId": told["requestId"], "response": YES},
        "session/rules": {"requestId": told["requestId"]},
        "session/set_mode": {"modeId": "m"},
        "session/set_model": {"modelId": "m"},
        "session/set_config_option": {"configId": "c", "value": "v"},
        "session/archive": {},
        "session/delete": {},
        "session/share": {},
        "files/list": {"query": ""},
    }
    for page in pages:
        got = await page.result("session/get", sessionId=session)
        assert texts(got["updates"]) == ["hello"]
        assert got["pendingRequests"] == []
        (waiting,) = got["session"]["waiting"]
        assert (waiting["requestId"], waiting["method"]) == (told["requestId"], "session/request_permission")
        assert not got["session"]["mayControl"]
        for method, params in calls.items():
            code, text = await page.error(method, sessionId=session, **params)
            assert (code, "observers may only look" in text) == (jsonrpc.METHOD_NOT_FOUND, True)
        await page.send(id=told["requestId"], result=YES)
        await page.result("gateway/info")
    await says(bench.agents[0], session, "more")
    for page in pages:
        await page.until_updates(session, 1)
        assert page.of("session/request") == []
    assert bench.agents[0].received[before:] == []


async def test_a_session_of_another_identity_does_not_exist(make_bench: MakeBench) -> None:
    async with make_bench(fake=section("shared")) as bench:
        session = await (await bench.page(bench.access())).new_session()
        ben = await bench.page(bench.access("ben"), "ben")
        calls: dict[str, dict[str, Any]] = {
            "session/get": {},
            "session/prompt": {"prompt": TEXT},
            "session/steer": {"prompt": TEXT},
            "session/cancel": {},
            "session/unsubscribe": {},
            "session/delete": {},
            "session/archive": {},
            "session/share": {},
            "files/list": {"query": ""},
            "files/folder": {},
            "files/read": {"path": "a"},
        }
        for method, params in calls.items():
            assert (await ben.error(method, sessionId=session, **params))[0] == jsonrpc.INVALID_PARAMS
        assert (await ben.result("session/list"))["sessions"] == []


async def test_errors_have_the_codes_that_browsers_know(bench: Bench) -> None:
    page = await bench.page(bench.access())
    assert (await page.error("session/get", sessionId="never"))[0] == -32602
    assert (await page.error("session/get"))[0] == -32602
    assert (await page.error("session/nothing"))[0] == -32601
    assert (await page.error("session/new", agentType="other"))[0] == -32602
    assert (await page.error("session/new", cwd="relative"))[0] == -32602
    await page.stream.send(b"{")
    assert (await page.response(None))["error"]["code"] == -32700
    await page.stream.send(b"[]")
    assert (await page.response(None))["error"]["code"] == -32600
    assert await page.new_session()


async def test_an_agent_that_cannot_start_is_told(tmp_path: Path, spawner: Spawner) -> None:
    missing = replace(section(), command=("/no/such/program",))
    async with running(tmp_path, spawner, fake=missing) as bench:
        code, text = await (await bench.page(bench.access())).error("session/new")
        assert (code, "/no/such/program" in text) == (-32603, True)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.gateway.connections) == 1


async def test_session_new_is_answered_in_time_by_an_agent_that_never_answers(
    make_bench: MakeBench, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> None: ...

    monkeypatch.setattr(ServingAgent, "_answer", silent)
    async with make_bench(timeout=100) as bench:
        page = await bench.page(bench.access())
        began = trio.current_time()
        with trio.fail_after(30):
            code, text = await page.error("session/new")
        assert trio.current_time() - began == pytest.approx(ANSWER_TIMEOUT)
        assert (code, "not answered" in text) == (-32603, True)


async def test_files_are_found_below_the_directory_of_the_session(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for name in ("main.py", "src/domain.py", "src/other.txt"):
        (folder / name).write_text("")
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session(cwd=str(folder))
        found = await page.result("files/list", sessionId=session, query="main")
        assert found == {"files": ["main.py", "src/domain.py"], "complete": True}
        found = await page.result("files/list", sessionId=session, query="", limit=1)
        assert found["files"] == ["main.py"]
        inside = {"inside": WorkspaceSection(root=tmp_path / "other")}
        bench.gateway.services.config = replace(bench.gateway.config, workspaces=inside)
        code, text = await page.error("files/list", sessionId=session, query="")
        assert (code, "not in a folder that this session may use" in text) == (-32602, True)


async def test_a_session_is_deleted_for_all_clients(bench: Bench) -> None:
    pages = [await bench.page(bench.access(), name) for name in ("first", "second")]
    session = await pages[0].new_session()
    await pages[1].result("session/get", sessionId=session)
    assert await pages[0].result("session/delete", sessionId=session) == {"success": True}
    assert (await bench.agents[0].got("session/delete"))["params"] == {"sessionId": session}
    for page in pages:
        await page.until(lambda page=page: page.of("session/removed", session))  # type: ignore[misc]
    assert (await pages[1].result("session/list"))["sessions"] == []


ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10**30,
    "",
    "\ud83d",
    "x" * 5000,
    [],
    [[]],
    [None],
    {},
    {"a": 1},
    "s1.1",
    ["s1.1"],
]


async def test_every_call_with_odd_members_gets_one_response_and_harms_nothing(make_bench: MakeBench) -> None:
    async with make_bench(timeout=60) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        for method, rules in api.METHODS.items():
            if method in (api.NEW, api.DELETE, api.SHARE):
                continue  # They take their time.
            for name in rules.members:
                fitting: dict[str, Any] = {"sessionId": session, "prompt": TEXT, "response": YES, "requestId": "1"}
                fitting |= {"modeId": "m", "modelId": "m", "configId": "c", "value": "v", "query": "a"}
                for odd in ODD:
                    params = {key: value for key, value in fitting.items() if key in rules.members} | {name: odd}
                    response = await page.ask(method, **params)
                    assert ("result" in response) != ("error" in response), (method, params)
        await page.result("session/cancel", sessionId=session)
        assert (await page.result("session/get", sessionId=session))["session"]["live"]


async def test_equal_ids_of_two_agents_of_one_machine_are_not_mixed(
    make_bench: MakeBench, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "1"
    async with make_bench(a=section(), b=section()) as bench:
        page, other = await bench.page(bench.access()), await bench.page(bench.access(), "other")
        await other.result("session/list", watch=True)
        assert await page.new_session(agentType="a") == "1"
        await other.result("session/get", sessionId="1")
        assert await page.new_session(agentType="b") == "1"
        for watching, agent in ((page, "b"), (other, "a")):
            (listed,) = (await watching.result("session/list"))["sessions"]
            assert listed["agentType"] == agent
        assert {params["session"]["agentType"] for params in other.of("session/changed")} == {"a"}
        await says(bench.agents[0], "1", "of a")
        await says(bench.agents[1], "1", "of b")
        assert texts(await page.until_updates("1", 1)) == ["of b"]
        assert texts(await other.until_updates("1", 1)) == ["of a"]
        await other.result("session/prompt", sessionId="1", prompt=TEXT)
        assert await bench.agents[0].got("session/prompt")
        assert not [it for it in bench.agents[1].received if it.get("method") == "session/prompt"]
        bench.gateway.registry.remove(next(it for it in bench.gateway.registry if it.agent == "b"))
        await trio.testing.wait_all_tasks_blocked()
        assert not other.of("session/removed")


async def test_a_list_has_the_latest_sessions_and_tells_how_many_more_there_are(make_bench: MakeBench) -> None:
    async with make_bench(limits=LimitsSection(max_browser_sessions=2), a=section()) as bench:
        page = await bench.page(bench.access())
        for count in range(1, 5):
            bench.gateway.registry.restore(Session("a", str(count), "ann", Journal(1)))
            told = await page.result("session/list")
            assert [one["id"] for one in told["sessions"]] == ["4", "3", "2", "1"][4 - count :][:2]
            assert told.get("more", 0) == max(count - 2, 0)


@pytest.mark.parametrize(
    ("form", "name"), [("markdown", "Mend-it.md"), ("html", "Mend-it.html"), ("json", "Mend-it.json")]
)
async def test_a_session_is_exported_as_a_file(form: str, name: str, bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd="/", title="Mend it")
    await prompted(page, bench.agents[0], session)
    await says(bench.agents[0], session, "hello, token: hunter2hunter2hunter2")
    await page.result("session/get", sessionId=session)
    await page.until_updates(session, 1)
    for viewer in (page, await bench.page(bench.guest(session, "observer"), "guest")):
        told = await viewer.result("session/export", sessionId=session, format=form)
        assert told["name"] == name
        assert "hello" in told["text"]
        assert "hunter2" in told["text"]
        redacted = await viewer.result("session/export", sessionId=session, format=form, redact=True)
        assert "hello" in redacted["text"]
        assert "hunter2" not in redacted["text"]


async def test_files_that_browsers_of_an_identity_do_not_read_are_as_few_as_histories(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    async def write_file(reader: object, limiter: object, session: Session, form: str, *, redacted: bool) -> bytes:
        written.append(form)
        return b'{"text":"%b"}' % (b"x" * 2 * HIGH_WATER)

    monkeypatch.setattr(calls, "write_file", write_file)
    async with make_bench() as bench:
        session = await (await bench.page(bench.access())).new_session()
        observer = bench.access(role="observer")
        lazy = [await bench.page(observer, f"lazy {number}", reads=False) for number in range(2 * LARGE_RESPONSES)]
        for one in lazy:
            await one.send(id=1, method="session/export", params={"sessionId": session, "format": "json"})
        while len(written) < LARGE_RESPONSES:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert len(written) == LARGE_RESPONSES
        for one in lazy:
            bench.nursery.start_soon(one.read)
        for one in lazy:
            assert "result" in await one.response(1)


async def test_files_that_a_browser_does_not_read_count_in_the_memory_limit(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write_file(reader: object, limiter: object, session: Session, form: str, *, redacted: bool) -> bytes:
        return b'{"text":"%b"}' % (b"x" * 2 * HIGH_WATER)

    monkeypatch.setattr(calls, "write_file", write_file)
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        monkeypatch.setattr(bench.gateway.services._memory, "_limit", 3 * HIGH_WATER)
        lazy = [await bench.page(bench.access(), f"lazy{number}", reads=False) for number in range(2)]
        export = {"method": "session/export", "params": {"sessionId": session, "format": "json"}}
        await lazy[0].send(id=1, **export)
        await trio.testing.wait_all_tasks_blocked()
        assert sum(it.input_bytes for it in bench.gateway.services.inputs) > 2 * HIGH_WATER
        await lazy[1].send(id=1, **export)
        await trio.testing.wait_all_tasks_blocked()
        # One of them was ended, with its file.
        assert sum(it.input_bytes for it in bench.gateway.services.inputs) < 3 * HIGH_WATER
        assert (await page.result("session/export", **export["params"]))["text"]  # type: ignore[arg-type]


async def test_a_file_that_a_browser_does_not_read_is_in_memory_once(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []

    class Written(bytes):
        def __init__(self, _: bytes) -> None:
            kept.append("written")

        def __del__(self) -> None:
            kept.remove("written")

    async def write_file(reader: object, limiter: object, session: Session, form: str, *, redacted: bool) -> bytes:
        return Written(b'{"text":"%b"}' % (b"x" * 2 * HIGH_WATER))

    monkeypatch.setattr(calls, "write_file", write_file)
    async with make_bench() as bench:
        session = await (await bench.page(bench.access())).new_session()
        lazy = await bench.page(bench.access(), "lazy", reads=False)
        await lazy.send(id=1, method="session/export", params={"sessionId": session, "format": "json"})
        await trio.testing.wait_all_tasks_blocked()
        assert lazy.pending_bytes > 2 * HIGH_WATER
        assert kept == []


async def test_export_is_refused_for_sessions_of_others_and_unknown_formats(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    other = await bench.page(bench.access("ben"), "ben")
    code, _ = await other.error("session/export", sessionId=session, format="json")
    assert code == jsonrpc.INVALID_PARAMS
    assert "must be one of" in (await page.error("session/export", sessionId=session, format="pdf"))[1]


async def test_texts_are_searched_in_the_sessions_that_one_sees(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GATHERING", 0.0)
    monkeypatch.setattr(service, "PAUSE", 0.0)
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session, second = await page.new_session(cwd="/"), await page.new_session(cwd="/")
        for name in (session, second):
            await prompted(page, bench.agents[0], name)
            await says(bench.agents[0], name, "divide by zero")
            await page.result("session/cancel", sessionId=name)
        for _ in range(100_000):
            told = await page.result("session/search", words='"divide by"')
            if len(told["found"]) == 2:
                break
        hits = await page.result("session/search", words="zero", sessionId=session)
        assert not hits["more"]
        (hit,) = hits["found"]
        assert hit["text"].endswith("divide by zero Stopped.")
        assert [hit["text"][begin:end] for begin, end in hit["marks"]] == ["zero"]
        assert {one["sessionId"] for one in told["found"]} == {session, second}
        assert hit["seq"] == 2
        later = await page.result("session/search", words="zero", sessionId=session, before=1)
        assert (later["found"], later["more"]) == ([], False)
        for viewer, seen in (
            (await bench.page(bench.guest(session, "observer"), "guest"), [session]),
            (await bench.page(replace(bench.access(), only=session), "bound"), [session]),
            (await bench.page(bench.access("ben"), "ben"), []),
            (await bench.page(bench.access(agents=["other"]), "no agent"), []),
            (await bench.page(replace(bench.access(), workspaces=("nowhere",)), "no workspace"), []),
        ):
            found = (await viewer.result("session/search", words="zero"))["found"]
            assert [one["sessionId"] for one in found] == seen
            code, _ = await viewer.error("session/search", words="zero", sessionId=second)
            assert code == jsonrpc.INVALID_PARAMS
        assert "needs a word" in (await page.error("session/search", words="?"))[1]


async def test_session_last_tells_the_last_lines_of_the_sessions_that_one_sees(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await bench.page(bench.access())
    first, second = await page.new_session(cwd="/"), await page.new_session(cwd="/")
    for name in (first, second):
        await prompted(page, bench.agents[0], name)
        await says(bench.agents[0], name, f"Done:\nall of {name}.")
    looked: list[str] = []

    def counted(messages: Iterable[bytes], session_id: str) -> str:
        looked.append(session_id)
        return last_line(messages, session_id)

    monkeypatch.setattr(calls, "last_line", counted)
    told = await page.result("session/last", sessionIds=[first, second, "unknown", first])
    assert looked == [first, second]
    assert told == {"lines": {first: f"all of {first}.", second: f"all of {second}."}}
    guest = await bench.page(bench.guest(first, "observer"), "guest")
    assert (await guest.result("session/last", sessionIds=[first, second]))["lines"].keys() == {first}


async def test_session_last_tells_the_last_lines_of_former_sessions_from_the_index(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await bench.page(bench.access())
    first, second = await page.new_session(cwd="/"), await page.new_session(cwd="/")
    sessions = {session.id: session for session in bench.gateway.registry}
    for session in sessions.values():
        monkeypatch.setattr(session, "journal", Journal(1000))
    asked: list[list[str]] = []

    async def last(former: Sequence[Session]) -> dict[Session, str]:
        asked.append([one.id for one in former])
        if len(asked) > 1:
            raise Busy("the index can't be read now")
        return {sessions[first]: "All\nis done.\n", sessions[second]: " \n"}

    monkeypatch.setattr(bench.gateway.search, "last", last)
    assert await page.result("session/last", sessionIds=[first, second]) == {"lines": {first: "is done."}}
    assert await page.result("session/last", sessionIds=[second]) == {"lines": {}}
    assert asked == [[first, second], [second]]


async def test_a_session_is_renamed_for_good_by_a_controller_that_is_not_a_guest(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd="/")
    editor = await editor_in(bench, session)
    assert await page.result("session/set_title", sessionId=session, title=" Mend\n it ") == {"success": True}
    told = await editor.receive()
    assert told["params"]["update"] == {"sessionUpdate": "session_info_update", "title": "Mend it"}
    # Neither the first prompt nor the agent gives it another one.
    await prompted(page, bench.agents[0], session)
    await says(bench.agents[0], session, "Done.")
    (described,) = (await page.result("session/list"))["sessions"]
    assert described["title"] == "Mend it"
    refusals = [
        (page, {"sessionId": session, "title": "  "}, jsonrpc.INVALID_PARAMS),
        (page, {"sessionId": "unknown", "title": "a"}, jsonrpc.INVALID_PARAMS),
    ]
    for role in ("controller", "observer"):
        guest = await bench.page(bench.guest(session, role), role)
        code = jsonrpc.INVALID_REQUEST if role == "controller" else jsonrpc.METHOD_NOT_FOUND
        refusals.append((guest, {"sessionId": session, "title": "a"}, code))
    for asking, params, code in refusals:
        assert (await asking.error("session/set_title", **params))[0] == code
    (described,) = (await page.result("session/list"))["sessions"]
    assert described["title"] == "Mend it"


async def test_a_session_is_forked_where_the_agent_can(
    tmp_path: Path, spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = ServingAgents(loadSession=True, sessionCapabilities={"fork": {}})
    monkeypatch.setattr(startup, "run_agent", agents.run)
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session(cwd="/")
        await prompted(page, agents[0], session)
        await says(agents[0], session, "Done.")
        assert (await page.result("session/get", sessionId=session))["canFork"]
        forked = (await page.result("session/fork", sessionId=session))["sessionId"]
        assert forked != session
        assert texts((await page.result("session/get", sessionId=forked))["updates"])[-1] == "Done."
        for role, code in (("controller", jsonrpc.INVALID_REQUEST), ("observer", jsonrpc.METHOD_NOT_FOUND)):
            guest = await bench.page(bench.guest(session, role), role)
            assert (await guest.error("session/fork", sessionId=session))[0] == code


async def test_an_agent_that_cannot_fork_is_not_asked(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd="/")
    assert not (await page.result("session/get", sessionId=session))["canFork"]
    code, why = await page.error("session/fork", sessionId=session)
    assert code == jsonrpc.INVALID_REQUEST
    assert "can't fork" in why
