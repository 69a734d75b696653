"""The bundled agent keeps to the protocol, in the way a stock editor sees it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import acp.schema
import pytest

from examples.demo_agent import DemoAgent

AGENT = Path(__file__).parent.parent / "examples" / "demo_agent.py"

Message = dict[str, Any]


class Client:
    """The editor's side: what it sends, and what the agent sent, in order."""

    def __init__(self, *, delay: float = 0) -> None:
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.agent = DemoAgent(self.received.put_nowait, delay=delay)

    def send(self, **message: object) -> None:
        self.agent.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def open_session(self, cwd: str) -> str:
        self.send(id="open", method="session/new", params={"cwd": cwd, "mcpServers": []})
        session_id = self.received.get_nowait()["result"]["sessionId"]
        assert isinstance(session_id, str)
        return session_id

    def prompt(self, session_id: str, text: str = "Hello", *, request_id: object = 1) -> None:
        prompt = [{"type": "text", "text": text}]
        self.send(id=request_id, method="session/prompt", params={"sessionId": session_id, "prompt": prompt})

    async def until(self, found: Callable[[Message], bool]) -> list[Message]:
        """The messages up to the first that is looked for, this one included."""
        messages = []
        async with asyncio.timeout(5):
            while True:
                messages.append(await self.received.get())
                if found(messages[-1]):
                    return messages

    async def until_asked(self) -> Message:
        return (await self.until(asks_permission))[-1]

    async def until_answered(self, request_id: object = 1) -> list[Message]:
        return await self.until(lambda message: "method" not in message and message["id"] == request_id)

    def choose(self, agent_request: Message, option: str) -> None:
        self.send(id=agent_request["id"], result={"outcome": {"outcome": "selected", "optionId": option}})


def asks_permission(message: Message) -> bool:
    return message.get("method") == "session/request_permission"


def updates(messages: list[Message], kind: str) -> list[Message]:
    return [
        message["params"]["update"]
        for message in messages
        if message.get("method") == "session/update" and message["params"]["update"]["sessionUpdate"] == kind
    ]


def text(messages: list[Message]) -> str:
    return "".join(update["content"]["text"] for update in updates(messages, "agent_message_chunk"))


def converse(conversation: Callable[[Client], Awaitable[None]]) -> None:
    """Run one conversation in an event loop of its own."""

    async def run() -> None:
        client = Client()
        await conversation(client)
        await client.agent.aclose()

    asyncio.run(run())


def answer_to(**message: object) -> Message:
    """Return the immediate answers to one request."""
    client = Client()
    client.send(**message)
    return client.received.get_nowait()


def test_initialize_says_who_it_is_in_the_words_of_version_1() -> None:
    answer = answer_to(id=0, method="initialize", params={"protocolVersion": 1})

    result = acp.schema.InitializeResponse.model_validate(answer["result"])
    assert result.protocol_version == 1
    assert result.agent_info is not None
    assert (result.agent_info.name, result.auth_methods) == ("demo-agent", [])


@pytest.mark.parametrize("spelling", ["0", '""', '"1"', "1.0", "null", "true", "9223372036854775808", '"\\ud83d"'])
def test_an_id_of_any_type_comes_back_as_it_was(spelling: str) -> None:
    client = Client()

    client.agent.receive(b'{"jsonrpc":"2.0","id":%b,"method":"initialize","params":{}}' % spelling.encode())

    assert json.dumps(client.received.get_nowait()["id"]) == spelling


def test_an_unknown_method_is_answered_with_method_not_found() -> None:
    assert answer_to(id=1, method="session/load", params={})["error"]["code"] == -32601


def test_a_session_without_a_directory_is_refused() -> None:
    assert answer_to(id=1, method="session/new", params={"mcpServers": []})["error"]["code"] == -32602


def test_a_prompt_in_an_unknown_session_is_refused_with_its_id() -> None:
    error = answer_to(id=1, method="session/prompt", params={"sessionId": "nowhere", "prompt": []})["error"]

    assert (error["code"], error["data"]) == (-32002, {"sessionId": "nowhere"})


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"banner of npx\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]\n',
        b"{}\n",
        b"7\n",
        b'{"id":1,"method":7}\n',
        b'{"id":99,"result":{}}\n',
        b'{"id":[],"result":{}}\n',
        b'{"method":"_unknown/notification"}\n',
        b'{"method":"session/cancel","params":[]}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_line_that_asks_nothing_is_passed_over(line: bytes) -> None:
    client = Client()

    client.agent.receive(line)

    assert client.received.empty()
    client.send(id=1, method="initialize", params={})
    assert client.received.get_nowait()["id"] == 1


def test_a_turn_streams_asks_lists_the_directory_and_ends(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    (tmp_path / "README.md").touch()

    async def conversation(client: Client) -> None:
        client.prompt(client.open_session(str(tmp_path)), "Look around")
        before = await client.until(asks_permission)
        client.choose(before[-1], "allow")
        after = await client.until_answered()

        assert len(updates(before, "agent_message_chunk")) > 5
        assert "Look around" in text(before)
        [call] = updates(before, "tool_call")
        assert (call["status"], call["locations"]) == ("pending", [{"path": str(tmp_path)}])
        steps = updates(after, "tool_call_update")
        assert [step["status"] for step in steps] == ["in_progress", "completed"]
        assert steps[-1]["content"][0]["content"]["text"] == "README.md\nmain.py"
        assert "I found 2 names" in text(after)
        assert after[-1]["result"] == {"stopReason": "end_turn"}

    converse(conversation)


def test_every_message_of_a_turn_fits_the_schema(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        client.prompt(client.open_session(str(tmp_path)))
        before = await client.until(asks_permission)
        client.choose(before[-1], "allow")
        after = await client.until_answered()

        acp.schema.RequestPermissionRequest.model_validate(before[-1]["params"])
        acp.schema.PromptResponse.model_validate(after[-1]["result"])
        for message in before[:-1] + after[:-1]:
            acp.schema.SessionNotification.model_validate(message["params"])

    converse(conversation)


@pytest.mark.parametrize(
    "response",
    [
        {"result": {"outcome": {"outcome": "selected", "optionId": "reject"}}},
        {"result": {"outcome": {"outcome": "selected", "optionId": "never offered"}}},
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"result": None},
        {"error": {"code": -32603, "message": "no dialog"}},
    ],
)
def test_whatever_is_not_an_allowance_fails_the_tool_call(tmp_path: Path, response: Message) -> None:
    async def conversation(client: Client) -> None:
        client.prompt(client.open_session(str(tmp_path)))
        client.send(id=(await client.until_asked())["id"], **response)
        after = await client.until_answered()

        assert [step["status"] for step in updates(after, "tool_call_update")] == ["failed"]
        assert "leave it at that" in text(after)
        assert after[-1]["result"] == {"stopReason": "end_turn"}

    converse(conversation)


def test_a_directory_that_is_not_there_fails_the_tool_call_and_not_the_turn(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        client.prompt(client.open_session(str(tmp_path / "gone")))
        client.choose(await client.until_asked(), "allow")
        after = await client.until_answered()

        assert [step["status"] for step in updates(after, "tool_call_update")] == ["in_progress", "failed"]
        assert "could not read it" in text(after)
        assert after[-1]["result"] == {"stopReason": "end_turn"}

    converse(conversation)


def test_cancelling_the_session_ends_the_prompt_while_the_permission_is_open(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        session_id = client.open_session(str(tmp_path))
        client.prompt(session_id)
        agent_request = await client.until_asked()
        client.send(method="session/cancel", params={"sessionId": session_id})
        after = await client.until_answered()

        assert after[-1]["result"] == {"stopReason": "cancelled"}
        assert [step["status"] for step in updates(after, "tool_call_update")] == ["failed"]
        withdrawn = [message["params"] for message in after if message.get("method") == "$/cancel_request"]
        assert withdrawn == [{"requestId": agent_request["id"]}]

    converse(conversation)


def test_an_answer_that_comes_after_the_cancel_changes_nothing(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        session_id = client.open_session(str(tmp_path))
        client.prompt(session_id)
        agent_request = await client.until_asked()
        client.send(method="session/cancel", params={"sessionId": session_id})
        client.choose(agent_request, "allow")
        after = await client.until_answered()

        assert after[-1]["result"] == {"stopReason": "cancelled"}
        assert client.received.empty()

    converse(conversation)


def test_an_answer_right_before_the_cancel_loses_to_it(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        session_id = client.open_session(str(tmp_path))
        client.prompt(session_id)
        client.choose(await client.until_asked(), "allow")
        client.send(method="session/cancel", params={"sessionId": session_id})

        assert (await client.until_answered())[-1]["result"] == {"stopReason": "cancelled"}

    converse(conversation)


def test_cancelling_before_the_first_word_still_answers_the_prompt(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        session_id = client.open_session(str(tmp_path))
        client.prompt(session_id)
        client.send(method="session/cancel", params={"sessionId": session_id})

        assert [message["result"] for message in await client.until_answered()] == [{"stopReason": "cancelled"}]

    converse(conversation)


def test_cancelling_the_request_ends_the_prompt_of_exactly_that_id(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        client.prompt(client.open_session(str(tmp_path)), request_id=1)
        agent_request = await client.until_asked()
        for other in ("1", 1.0, True, 2, None):
            client.send(method="$/cancel_request", params={"requestId": other})
        client.choose(agent_request, "allow")
        assert (await client.until_answered())[-1]["result"] == {"stopReason": "end_turn"}

        client.prompt(client.open_session(str(tmp_path)), request_id="1")
        await client.until_asked()
        client.send(method="$/cancel_request", params={"requestId": "1"})
        assert (await client.until_answered("1"))[-1]["result"] == {"stopReason": "cancelled"}

    converse(conversation)


def test_one_sessions_open_question_does_not_hold_up_another(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        first, second = client.open_session(str(tmp_path)), client.open_session(str(tmp_path))
        assert first != second
        client.prompt(first, request_id=1)
        waiting = await client.until_asked()
        client.prompt(second, request_id=2)
        client.choose(await client.until_asked(), "allow")
        assert (await client.until_answered(2))[-1]["result"] == {"stopReason": "end_turn"}

        client.choose(waiting, "reject")
        assert (await client.until_answered(1))[-1]["result"] == {"stopReason": "end_turn"}

    converse(conversation)


def test_a_second_prompt_in_a_running_turn_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        session_id = client.open_session(str(tmp_path))
        client.prompt(session_id, request_id=1)
        agent_request = await client.until_asked()
        client.prompt(session_id, request_id=2)
        assert (await client.until_answered(2))[-1]["error"]["code"] == -32600

        client.choose(agent_request, "allow")
        assert (await client.until_answered(1))[-1]["result"] == {"stopReason": "end_turn"}

    converse(conversation)


def test_a_session_takes_one_prompt_after_another(tmp_path: Path) -> None:
    async def conversation(client: Client) -> None:
        session_id = client.open_session(str(tmp_path))
        calls = set()
        for request_id in (1, 2):
            client.prompt(session_id, request_id=request_id)
            agent_request = await client.until_asked()
            calls.add(agent_request["params"]["toolCall"]["toolCallId"])
            client.choose(agent_request, "allow")
            assert (await client.until_answered(request_id))[-1]["result"] == {"stopReason": "end_turn"}
        assert len(calls) == 2

    converse(conversation)


def test_a_long_listing_is_cut_and_says_so(tmp_path: Path) -> None:
    for number in range(23):
        (tmp_path / f"file{number:02}").touch()

    async def conversation(client: Client) -> None:
        client.prompt(client.open_session(str(tmp_path)))
        client.choose(await client.until_asked(), "allow")
        after = await client.until_answered()

        listing = updates(after, "tool_call_update")[-1]["content"][0]["content"]["text"]
        assert listing.splitlines()[-2:] == ["file19", "... and 3 more"]

    converse(conversation)


def test_the_program_answers_on_stdout_and_ends_with_its_stdin() -> None:
    ended = subprocess.run(
        [sys.executable, AGENT, "--delay", "0"],
        input=b'not json\r\n\n{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"text":"\xe2\x80\xa8"}}',
        capture_output=True,
        timeout=30,
        check=True,
    )

    [line] = ended.stdout.splitlines()
    assert json.loads(line)["id"] == "a"
    assert ended.stderr == b""


def test_the_end_of_stdin_cancels_a_running_turn(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, AGENT, "--delay", "3600"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def send(method: str, request_id: int, **params: object) -> Message:
            assert process.stdin is not None
            assert process.stdout is not None
            message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            answer: Message = json.loads(process.stdout.readline())
            return answer

        session_id = send("session/new", 1, cwd=str(tmp_path))["result"]["sessionId"]
        first = send("session/prompt", 2, sessionId=session_id, prompt=[{"type": "text", "text": "Hi"}])
        assert first["method"] == "session/update"
        process.stdin.close()

        assert json.loads(process.stdout.readline())["result"] == {"stopReason": "cancelled"}
        assert process.wait(timeout=30) == 0
