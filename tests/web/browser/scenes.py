"""Scenes for the page: a list of sessions, and conversations with everything that a transcript can hold."""

import base64
import struct
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.web.browser.scripted_gateway import Message, Scene, update

CWD = "/home/ann/work/shop"


def text(kind: str, words: str) -> Message:
    return {"sessionUpdate": f"{kind}_chunk", "content": {"type": "text", "text": words}}


def user(words: str) -> Message:
    return text("user_message", words)


def agent(words: str) -> Message:
    return text("agent_message", words)


def thought(words: str) -> Message:
    return text("agent_thought", words)


def tool(call_id: str, title: str, kind: str, **members: Any) -> Message:
    return {"sessionUpdate": "tool_call", "toolCallId": call_id, "title": title, "kind": kind, **members}


def plan(*entries: tuple[str, str]) -> Message:
    steps = [{"content": content, "priority": "medium", "status": status} for content, status in entries]
    return {"sessionUpdate": "plan", "entries": steps}


def output(words: str) -> list[Message]:
    return [{"type": "content", "content": {"type": "text", "text": words}}]


def session(session_id: str, title: str, *, minutes: float = 0, **members: Any) -> Message:
    at = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
    return {
        "id": session_id,
        "agentType": "claude",
        "cwd": CWD,
        "title": title,
        "status": "completed",
        "exitReason": None,
        "createdAt": at,
        "updatedAt": at,
        "workspace": "shop",
        "archived": False,
        "live": True,
        "turn": False,
        "queued": 0,
        "waiting": [],
        "clients": [],
        "mayControl": True,
        "history": None,
        "fence": None,
        **members,
    }


OLD = '''\
def total(items, discount=0):
    """Return the price of a basket, in cents."""
    result = 0
    for item in items:
        result += item.price * item.count
    return result - discount


def describe(items):
    return ", ".join(item.name for item in items)


def is_empty(items):
    return len(items) == 0


def heaviest(items):
    return max(items, key=lambda item: item.weight)
'''

NEW = '''\
def total(items, discount=0):
    """Return the price of a basket, in cents; never below zero."""
    result = sum(item.price * item.count for item in items)
    return max(0, result - discount)


def describe(items):
    return ", ".join(item.name for item in items)


def is_empty(items):
    return len(items) == 0


def heaviest(items):
    if not items:
        raise ValueError("an empty basket has no heaviest item")
    return max(items, key=lambda item: item.weight)
'''

TESTS = (
    "\x1b[1m============ test session starts ============\x1b[0m\n"
    "collected 14 items\n\n"
    "tests/test_basket.py \x1b[32m...........\x1b[0m\x1b[31mF\x1b[0m\x1b[32m..\x1b[0m\n\n"
    "\x1b[31m\x1b[1mFAILED\x1b[0m tests/test_basket.py::test_total_of_nothing - assert -5 == 0\n"
    "\x1b[31m========== 1 failed, 13 passed in 0.41s ==========\x1b[0m\n"
)

ANSWER = """\
The total went **below zero** when a discount was larger than the basket. I changed `total()` so that it stops at zero:

1. The sum is computed by `sum()`, without a loop.
2. `max(0, …)` keeps the result from going negative.
3. `heaviest()` raises a `ValueError` that says what is wrong.

```python
>>> total([], discount=5)
0
```

| case | before | now |
|---|---:|---:|
| empty basket, 5 off | -5 | 0 |
| two apples, none off | 240 | 240 |

> A negative total was also written to the invoice. See [the issue](https://example.org/shop/412).
"""


def on_disk(path: str, status: str, old: str | None, new: str | None, why: str | None = None) -> Message:
    names = {"old": ("0" if status == "added" else "1") * 40, "new": ("0" if status == "deleted" else "2") * 40}
    return {"path": path, "status": status, "executable": None, "oldText": old, "newText": new, "why": why, **names}


ON_DISK: Message = {
    "git": True,
    "why": None,
    "marks": [{"number": 1, "at": 1_790_000_000_000}, {"number": 2, "at": 1_790_000_600_000}],
    "mark": None,
    "present": True,
    "root": CWD,
    "files": [
        on_disk("shop/basket.py", "modified", OLD, NEW),
        on_disk("report.txt", "added", None, "all tests pass\n"),
        on_disk("old.txt", "deleted", "gone\n", None),
        on_disk("model.bin", "added", None, None, "large"),
    ],
    "more": 0,
    "commits": [{"id": "a" * 40, "at": 1_790_000_300, "subject": "Stop at zero"}],
    "worktrees": [
        {"path": "/home/ann/work/shop-try", "branch": "try", "isNew": True},
        {"path": "/home/ann/work/shop-old", "branch": "old", "isNew": False},
    ],
}
"""The answer to `session/changes`."""

GIB = 2**30

MACHINE: Message = {
    "name": "box",
    "cpus": 64,
    "busy": 12.4,
    "memory": {"total": 512 * GIB, "free": 400 * GIB},
    "disks": [{"path": "/home/ann/work", "total": 4096 * GIB, "free": 1024 * GIB}],
    "gpus": [
        {"name": "NVIDIA H100", "use": 0.97, "total": 80 * GIB, "used": 71 * GIB, "temperature": 66}
        | {
            "holders": [
                {"memory": 70 * GIB, "agentType": "claude", "sessionId": "s1", "title": "Fix the total"},
                {"memory": GIB},
            ]
        },
        {"name": "NVIDIA H100", "use": 0.0, "total": 80 * GIB, "used": GIB, "temperature": 31, "holders": []},
    ],
    "problem": None,
}

COSTS: Message = {
    "by": "day",
    "rows": [
        {"key": "2026-11-30", "costs": {"EUR": 1.5, "USD": 0.125}, "tokens": 1_200_000, "turns": 20},
        {"key": "2026-11-29", "costs": {"USD": 4.375}, "tokens": 1_200_000, "turns": 20},
        {"key": "2026-11-28", "costs": {}, "tokens": 0, "turns": 1},
    ],
    "total": {"costs": {"EUR": 1.5, "USD": 4.5}, "tokens": 2_400_000, "turns": 41},
    "more": 0,
}


def costs(params: Any) -> Message:
    """The result of `gateway/usage`."""
    if params["by"] != "session":
        return COSTS | {"by": params["by"]}
    return COSTS | {"by": "session", "rows": [COSTS["rows"][0] | {"key": "s1", "title": "Fix the total"}]}


PERMISSION: Message = {
    "toolCall": {
        "toolCallId": "t9",
        "title": "git push --force-with-lease origin fix/total",
        "kind": "execute",
        "status": "pending",
        "rawInput": {
            "command": "git push --force-with-lease origin fix/total",
            "description": "Push the rebased branch",
            "cwd": CWD,
        },
    },
    "options": [
        {"optionId": "once", "kind": "allow_once", "name": "Allow once"},
        {"optionId": "always", "kind": "allow_always", "name": "Always allow git push"},
        {"optionId": "no", "kind": "reject_once", "name": "Reject, and say what to do instead"},
    ],
}

EDIT_PERMISSION: Message = {
    "toolCall": {
        "toolCallId": "t3",
        "title": "Edit shop/basket.py",
        "kind": "edit",
        "content": [{"type": "diff", "path": f"{CWD}/shop/basket.py", "oldText": OLD, "newText": NEW}],
        "locations": [{"path": f"{CWD}/shop/basket.py", "line": 1}],
    },
    "options": [
        {"optionId": "once", "kind": "allow_once", "name": "Yes"},
        {"optionId": "always", "kind": "allow_always", "name": "Yes, and don't ask again for edits"},
        {"optionId": "no", "kind": "reject_once", "name": "No"},
    ],
}


def picture() -> str:
    """Return a small PNG in base64."""
    width, height = 320, 120
    rows = b"".join(
        b"\0" + b"".join(bytes((40 + x // 3, 70 + y, 200 - x // 4)) for x in range(width)) for y in range(height)
    )
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    data = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


IMAGE: Message = {
    "sessionUpdate": "agent_message_chunk",
    "content": {"type": "image", "mimeType": "image/png", "data": picture()},
}

CONVERSATION: list[Message] = [
    user("The total of a basket can be negative. Please find out why, fix it and run the tests."),
    thought("The user says that totals are negative. I should look at how discounts are applied first.\n\nThen tests."),
    agent("I'll look at how the total is computed first."),
    plan(
        ("Find where discounts are applied", "completed"),
        ("Stop the total at zero", "completed"),
        ("Run the tests", "in_progress"),
        ("Push the branch", "pending"),
    ),
    tool("t1", "Read shop/basket.py", "read", status="completed", locations=[{"path": f"{CWD}/shop/basket.py"}]),
    tool("t2", "grep -rn 'discount' shop", "search", status="completed", content=output("shop/basket.py:1: discount")),
    tool(
        "t3",
        "Edit shop/basket.py",
        "edit",
        status="completed",
        locations=[{"path": f"{CWD}/shop/basket.py", "line": 1}],
        content=[{"type": "diff", "path": f"{CWD}/shop/basket.py", "oldText": OLD, "newText": NEW}],
    ),
    tool(
        "t4",
        "python -m pytest -q tests",
        "execute",
        status="failed",
        rawInput={"command": "python -m pytest -q tests", "description": "Run the tests", "cwd": CWD},
        content=output(TESTS),
        rawOutput={"exit_code": 1},
    ),
    agent(ANSWER),
    IMAGE,
    {"sessionUpdate": "usage_update", "used": 62000, "size": 200000, "cost": {"amount": 0.42, "currency": "USD"}},
    {
        "sessionUpdate": "available_commands_update",
        "availableCommands": [
            {"name": "review", "description": "Review the changes on this branch", "input": {"hint": "branch"}},
            {"name": "compact", "description": "Shorten the conversation so far"},
            {"name": "init", "description": "Write a file with instructions for agents"},
        ],
    },
    user("Looks good. Push it, please."),
]

OPTIONS: list[Message] = [
    {
        "id": "mode",
        "name": "Mode",
        "category": "mode",
        "type": "select",
        "currentValue": "ask",
        "options": [{"value": "ask", "name": "Ask first"}, {"value": "plan", "name": "Plan only"}],
    },
    {
        "id": "model",
        "name": "Model",
        "category": "model",
        "type": "select",
        "currentValue": "large",
        "options": [{"value": "large", "name": "Large 5"}, {"value": "small", "name": "Small 5"}],
    },
]


def numbered(payloads: list[Message]) -> list[Message]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        update(i, payload, (start + timedelta(seconds=2 * i)).isoformat())
        for i, payload in enumerate(payloads, start=1)
    ]


def client(identity: str, role: str, via: str, *, you: bool = False) -> Message:
    return {"identity": identity, "role": role, "presence": "connected", "since": None, "via": via, "you": you}


def shop() -> Scene:
    """Return a gateway with a session that works, one that waits, and some others."""
    clients = [
        client("ann", "controller", "browser", you=True),
        client("ann", "controller", "editor"),
        client("bob", "observer", "browser"),
    ]
    waiting = [{"requestId": 4, "method": "session/request_permission", "title": "rm -rf build", "since": None}]
    past: Message = {"live": False, "status": "exited"}
    sessions = [
        session("s1", "Totals of a basket below zero", turn=True, status="running", clients=clients),
        session(
            "s2", "Remove the old build", minutes=3, status="waiting", turn=True, waiting=waiting, workspace="site"
        ),
        session("s3", "Move the settings page to the new form library", minutes=14, agentType="opencode"),
        session("s4", "Why is the nightly build slow?", minutes=50, status="error"),
        session("s5", "Upgrade the linter", minutes=60 * 5, **past),
        session("s6", "Draft the release notes for 2.4", minutes=60 * 26, **past, workspace="site"),
        session("s7", "Flaky test in checkout", minutes=60 * 80, **past, exitReason="process_exit"),
        session("s8", "First steps", minutes=60 * 800, **past, archived=True),
    ]
    scene = Scene(sessions, {"s1": numbered(CONVERSATION), "s2": numbered([user("Clean up, please.")])})
    scene.requests["s2"] = [{"requestId": 4, "requestType": "session/request_permission", "payload": PERMISSION}]
    workspaces = [{"name": "shop", "path": CWD}, {"name": "site", "path": "/home/ann/work/site"}]
    scene.agents = [
        {"name": "claude", "title": "Claude Code", "default": True, "workspaces": workspaces},
        {"name": "opencode", "title": "OpenCode", "default": False, "workspaces": workspaces},
    ]
    scene.extra["s1"] = {"configOptions": OPTIONS}
    scene.files = ["shop/basket.py", "shop/invoice.py", "tests/test_basket.py", "README.md"]
    return scene


def fleet() -> Scene:
    """Return a gateway that leads to two machines, and has an agent of its own."""
    there: Message = {"machine": "gpu1", "agentType": "gpu1/opencode", "workspace": None, "cwd": "/data/train"}
    other: Message = {**there, "machine": "gpu2", "agentType": "gpu2/opencode"}
    waiting = [{"requestId": None, "method": "session/request_permission", "title": "make", "since": None}]
    sessions = [
        session("1", "Totals of a basket below zero"),
        session("gpu1/1", "Train with a larger batch", minutes=1, turn=True, status="running", **there),
        session("gpu1/7/f", "Why does the loss jump?", minutes=30, **there),
        session("gpu2/1", "Sweep the learning rate", minutes=9, status="waiting", waiting=waiting, turn=True, **other),
        session("gpu2/2", "Clean the data", minutes=600, live=False, status="exited", **other),
    ]
    said = {it["id"]: numbered([user(f"Of {it['id']}."), agent("Done.")]) for it in sessions}
    scene = Scene(sessions, said)
    scene.agents = [
        {"name": "claude", "title": "Claude Code", "default": True, "machine": None, "workspaces": []},
        {"name": "gpu1/opencode", "title": "gpu1/opencode", "default": False, "machine": "gpu1", "workspaces": []},
        {"name": "gpu1/claude", "title": "gpu1/claude", "default": False, "machine": "gpu1", "workspaces": []},
        {"name": "gpu2/opencode", "title": "gpu2/opencode", "default": False, "machine": "gpu2", "workspaces": []},
    ]
    scene.agents[1]["workspaces"] = [{"name": None, "path": "/data/train"}]
    return scene


def long(count: int) -> Scene:
    """Return a gateway with one session of this many updates, of all kinds."""
    payloads: list[Message] = []
    turn = 0
    while len(payloads) < count:
        turn += 1
        payloads.append(user(f"Prompt {turn}: what about part {turn}?"))
        payloads.append(thought(f"Part {turn} needs a look."))
        for i in range(4):
            call = f"c{turn}-{i}"
            payloads.append(tool(call, f"Read part_{turn}_{i}.py", "read", status="in_progress"))
            payloads.append({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed"})
        payloads += [agent(f"Words {turn}.{i} of a longer answer. ") for i in range(10)]
    scene = Scene([session("long", "A long session")], {"long": numbered(payloads[:count])})
    scene.agents = [{"name": "claude", "title": "Claude Code", "default": True, "workspaces": []}]
    return scene
