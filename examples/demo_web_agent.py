"""A lively ACP agent for `make demo-web`: plan, thoughts, diff, terminal output and a question in each turn.

It plays the same scene whatever it is told, and changes one file of its session's directory, if that is permitted.
With `--protocol 2` it speaks version 2: it has two plans, moves a file and deletes another one, and runs a terminal.
`demo_agent.py` is the agent to start from.
"""

import asyncio
import base64
import difflib
from pathlib import Path
from typing import ClassVar

from examples.demo_agent import (
    UNKNOWN_SESSION,
    DemoAgent,
    Message,
    NewDemoAgent,
    Params,
    Refused,
    RequestFailed,
    Session,
    main,
    text_of,
)

FILE = "basket.py"

BEFORE = '''\
def total(items, discount=0):
    """Return the price of a basket in cents."""
    amount = sum(item.price * item.count for item in items)
    return amount - amount * discount // 100
'''

AFTER = '''\
def total(items, discount=0):
    """Return the price of a basket in cents; never less than nothing."""
    if not 0 <= discount <= 100:
        raise ValueError(f"a discount of {discount} % is not possible")
    amount = sum(item.price * item.count for item in items)
    return max(amount - amount * discount // 100, 0)
'''

TESTS = (
    "\x1b[1m============= test session starts ==============\x1b[0m\r\n",
    "collected 4 items\r\n\r\n",
    "test_basket.py \x1b[32m.\x1b[0m",
    "\x1b[32m.\x1b[0m",
    "\x1b[32m.\x1b[0m",
    "\x1b[32m.\x1b[0m                      \x1b[32m[100%]\x1b[0m\r\n\r\n",
    "\x1b[32m============== \x1b[1m4 passed\x1b[0m\x1b[32m in 0.04s ==============\x1b[0m\r\n",
)

STEPS = ("Read the code", "Correct the total of a basket", "Run the tests")

NOTE = "Tell the shop that discounts are checked"

SUMMARY = """\
The total of a basket is **never below zero** now:

| discount | before | after |
|---|---:|---:|
| 20 % | 80 | 80 |
| 120 % | -20 | refused |

- `total` refuses a discount that is not between 0 and 100;
- the four tests pass.

```python
>>> total(basket, discount=120)
ValueError: a discount of 120 % is not possible
```
"""

COMMANDS: list[Message] = [{"name": "review", "description": "Review the changes", "input": {"hint": "branch"}}]

NEW_COMMANDS: list[Message] = [
    {"type": "command", "name": "review", "description": "Review the changes"}
    | {"input": {"type": "text", "hint": "branch"}}
]

MODES: Message = {
    "currentModeId": "ask",
    "availableModes": [
        {"id": "ask", "name": "Ask", "description": "Asks before each change"},
        {"id": "plan", "name": "Plan", "description": "Changes nothing"},
    ],
}


class LivelyAgent(DemoAgent):
    """The agent without I/O, as `DemoAgent`."""

    commands: ClassVar[list[Message]] = COMMANDS

    def _initialize(self) -> Message:
        about = {"name": "lively-agent", "title": "Lively agent", "version": "1.0.0"}
        return super()._initialize() | {"agentInfo": about}

    def _new_session(self, params: Params) -> Message:
        result = super()._new_session(params)
        session = self._sessions[result["sessionId"]]
        self._update(session, sessionUpdate="available_commands_update", availableCommands=self.commands)
        return result | {"modes": MODES}

    def _handle_request(self, request_id: object, method: str, params: object) -> None:
        if method == "session/set_mode" and isinstance(params, dict):
            session = self._sessions.get(params.get("sessionId", ""))
            if session is None:
                failure = RequestFailed(UNKNOWN_SESSION, "there is no such session")
                self._respond(request_id, error=failure.error)
                return
            self._update(session, sessionUpdate="current_mode_update", currentModeId=params.get("modeId"))
            self._respond(request_id, result={})
            return
        super()._handle_request(request_id, method, params)

    async def _turn(self, session: Session, prompt: list[object]) -> None:
        self._update(session, sessionUpdate="session_info_update", title=text_of(prompt))
        await self._think(session, "A discount of more than 100 % makes the total negative. ")
        await self._think(session, "Let me look at the code first, then at its tests.")
        self._plan(session, 0)
        await self._read(session)
        self._plan(session, 1)
        try:
            await self._edit(session)
        except Refused:
            await self._say(session, "Then I leave `basket.py` as it is. What should I do instead?")
            return
        self._plan(session, 2)
        await self._run_tests(session)
        self._plan(session, 3)
        await self._say(session, SUMMARY)
        cost = {"amount": 0.02, "currency": "USD"}
        self._update(session, sessionUpdate="usage_update", used=18_400, size=200_000, cost=cost)

    async def _think(self, session: Session, text: str) -> None:
        for word in text.split(" "):
            content = {"type": "text", "text": f"{word} "}
            self._update(session, sessionUpdate="agent_thought_chunk", content=content)
            await asyncio.sleep(self._delay)

    def _plan(self, session: Session, done: int) -> None:
        """Tell the plan: so many steps are done and the next one is under way."""
        status = ["completed"] * done + ["in_progress"] + ["pending"] * len(STEPS)
        entries = [{"content": step, "priority": "high", "status": status[i]} for i, step in enumerate(STEPS)]
        self._update(session, sessionUpdate="plan", entries=entries)

    def _begin(self, session: Session, title: str, kind: str, **more: object) -> Message:
        """Begin a tool call, and return it."""
        session.tool_calls += 1
        call: Message = {"toolCallId": f"{session.id}-call-{session.tool_calls}", "title": title, "kind": kind}
        call |= {"status": "pending", **more}
        self._update(session, sessionUpdate="tool_call", **call)
        return call

    def _go_on(self, session: Session, call: Message, **more: object) -> None:
        self._update(session, sessionUpdate="tool_call_update", toolCallId=call["toolCallId"], **more)

    async def _read(self, session: Session) -> None:
        path = str(Path(session.cwd) / FILE)
        call = self._begin(session, f"Read {FILE}", "read", locations=[{"path": path, "line": 1}])
        await asyncio.sleep(10 * self._delay)
        text = {"type": "text", "text": f"```python\n{BEFORE}```"}
        self._go_on(session, call, status="completed", content=[{"type": "content", "content": text}])

    async def _edit(self, session: Session) -> None:
        """Change the file, if that is permitted. Raises Refused."""
        file = Path(session.cwd) / FILE
        diff = {"type": "diff", "path": str(file), "oldText": BEFORE, "newText": AFTER}
        call = self._begin(session, f"Edit {FILE}", "edit", content=[diff], locations=[{"path": str(file), "line": 1}])
        try:
            await self._ask_permission(session, call)
        except (Refused, asyncio.CancelledError):
            self._go_on(session, call, status="failed")
            raise
        await asyncio.to_thread(file.write_text, AFTER, encoding="utf-8")
        self._go_on(session, call, status="completed")

    async def _run_tests(self, session: Session) -> None:
        command = "python -m pytest test_basket.py"
        call = self._begin(session, command, "execute", rawInput={"command": command})
        terminal = {"terminal_id": call["toolCallId"]}
        shown = [{"type": "terminal", "terminalId": call["toolCallId"]}]
        self._go_on(session, call, status="in_progress", content=shown, _meta={"terminal_info": terminal})
        for text in TESTS:
            await asyncio.sleep(5 * self._delay)
            self._go_on(session, call, _meta={"terminal_output": terminal | {"data": text}})
        self._go_on(session, call, status="completed", _meta={"terminal_exit": terminal | {"exit_code": 0}})


class NewLivelyAgent(LivelyAgent, NewDemoAgent):
    """The agent in version 2."""

    commands: ClassVar[list[Message]] = NEW_COMMANDS

    def _initialize(self) -> Message:
        about = super()._initialize()
        return about | {"info": about.pop("agentInfo")}

    def _new_session(self, params: Params) -> Message:
        result = super()._new_session(params)
        del result["modes"]
        return result | {"configOptions": self._options("ask")}

    def _options(self, mode: object) -> list[Message]:
        choices = [
            {"value": each["id"], "name": each["name"], "description": each["description"]}
            for each in MODES["availableModes"]
        ]
        option = {"configId": "mode", "name": "Mode", "category": "mode", "type": "select"}
        return [option | {"currentValue": mode, "options": choices}]

    def _handle_request(self, request_id: object, method: str, params: object) -> None:
        if method == "session/set_config_option" and isinstance(params, dict):
            self._respond(request_id, result={"configOptions": self._options(params.get("value"))})
        else:
            super()._handle_request(request_id, method, params)

    def _plan(self, session: Session, done: int) -> None:
        """Tell the plan, and one of what is to be told to others, which ends when all is done."""
        status = ["completed"] * done + ["in_progress"] + ["pending"] * len(STEPS)
        entries = [{"content": step, "priority": "high", "status": status[i]} for i, step in enumerate(STEPS)]
        self._tell_plan(session, "work", entries)
        if done == len(STEPS):
            self._update(session, sessionUpdate="plan_removed", planId="notes")
        elif done == 1:
            self._tell_plan(session, "notes", [{"content": NOTE, "priority": "low", "status": "pending"}])

    def _tell_plan(self, session: Session, plan_id: str, entries: list[Message]) -> None:
        plan = {"type": "items", "planId": plan_id, "entries": entries}
        self._update(session, sessionUpdate="plan_update", plan=plan)

    def _begin(self, session: Session, title: str, kind: str, **more: object) -> Message:
        if kind == "edit":
            more["content"] = [changes(Path(session.cwd))]
        return super()._begin(session, title, kind, **more)

    async def _run_tests(self, session: Session) -> None:
        command = "python -m pytest test_basket.py"
        call = self._begin(session, command, "execute", rawInput={"command": command})
        terminal = {"terminalId": f"{call['toolCallId']}-terminal"}
        self._update(session, sessionUpdate="terminal_update", **terminal, command=command, cwd=session.cwd)
        self._go_on(session, call, status="in_progress", content=[{"type": "terminal", **terminal}])
        for text in TESTS:
            await asyncio.sleep(5 * self._delay)
            data = base64.b64encode(text.encode()).decode()
            self._update(session, sessionUpdate="terminal_output_chunk", **terminal, data=data)
        self._update(session, sessionUpdate="terminal_update", **terminal, exitStatus={"exitCode": 0})
        self._go_on(session, call, status="completed")


def changes(folder: Path) -> Message:
    """Return the change of the file as version 2 shows it, with others that this agent only tells."""
    path = str(folder / FILE)
    lines = difflib.unified_diff(BEFORE.splitlines(True), AFTER.splitlines(True), path, path)
    found = [
        {"operation": "modify", "path": path},
        {"operation": "move", "oldPath": str(folder / "test.py"), "path": str(folder / "test_basket.py")},
        {"operation": "delete", "path": str(folder / "old_basket.py")},
        {"operation": "add", "path": str(folder / "basket.png"), "fileType": "binary", "mimeType": "image/png"},
    ]
    patch = {"format": "git_patch", "text": f"diff --git {path} {path}\n{''.join(lines)}"}
    return {"type": "diff", "changes": found, "patch": patch}


if __name__ == "__main__":
    main(LivelyAgent, NewLivelyAgent, "A lively ACP agent", delay=0.06)
