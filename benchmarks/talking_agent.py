"""An agent that says the same bytes in each run, for `benchmarks.compare_bytes`. Standard library only.

Its argument is a file to which it appends each line that it reads. A prompt with `talk` plays a turn with an update of
each kind and a request of each family, `wait` waits for the cancellation, and any other prompt is answered with a word.
"""

import json
import sys
from typing import Any

SESSION = "session-1"

INITIALIZED = (
    '{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"promptCapabilities":{"image":true},"_meta":{"n":1.10}},'
    '"agentInfo":{"name":"talking","version":"1"},"authMethods":[]}'
)
OPENED = (
    '{"sessionId":"session-1","modes":{"currentModeId":"ask","availableModes":[{"id":"ask","name":"Ask"},'
    '{"id":"code","name":"Code"}]},"_meta":{"big":9007199254740993}}'
)

CALL = (
    '{"sessionUpdate":"tool_call","toolCallId":"c","title":"Edit a","kind":"edit","status":"pending",'
    '"locations":[{"path":"/tmp/lib/a.py","line":3}],"rawInput":{"path":"/tmp/lib/a.py","n":1e999}}'
)
UPDATES = (
    '{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hm \\ud83d \\u0041\\/"}}',
    '{ "content" : {"text":"1.10 é\u2028 <b>","type":"text"} , "sessionUpdate" : "agent_message_chunk" }',
    '{"sessionUpdate":"plan","entries":[{"content":"read","priority":"high","status":"pending"}]}',
    CALL,
    '{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"go","description":"Go on"}]}',
    '{"sessionUpdate":"current_mode_update","currentModeId":"code"}',
    '{"sessionUpdate":"usage_update","used":120,"size":1000}',
    '{"sessionUpdate":"session_info_update","title":"A talk"}',
    '{"sessionUpdate":"made_up","_meta":{"x":null}}',
)
ASKED = (
    '{"toolCall":{"toolCallId":"c","title":"Edit a"},"options":[{"optionId":"yes","name":"Yes","kind":"allow_once"},'
    '{"optionId":"no","name":"No","kind":"reject_once"}],"sessionId":"session-1"}'
)
REQUESTS = (
    ("session/request_permission", '"ask-1"', ASKED),
    ("fs/read_text_file", "7", '{"sessionId":"session-1","path":"/tmp/lib/b.py","line":1}'),
    ("terminal/create", "8.0", '{"sessionId":"session-1","command":"true"}'),
    ("_vendor/ask", '"\\u0041"', '{"sessionId":"session-1","n":-0.0}'),
)
LAST = (
    '{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"diff",'
    '"path":"/tmp/lib/a.py","oldText":null,"newText":"x"}],"rawOutput":{"ok":true}}'
)


def write(text: str) -> None:
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


def update(text: str) -> None:
    write(f'{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{SESSION}","update":{text}}}}}')


def main(record: str) -> None:
    """Answer until the end of the input."""
    turn: Any = None
    left: list[tuple[str, str, str]] = []
    with open(record, "ab", buffering=0) as kept:
        for line in sys.stdin.buffer:
            kept.write(line)
            message = json.loads(line)
            method, result = message.get("method"), "{}"
            text = json.dumps(message.get("params"))
            if method == "session/prompt":
                turn = json.dumps(message["id"])
                if "talk" in text:
                    for each in UPDATES:
                        update(each)
                    left = [*REQUESTS]
                elif "wait" in text:
                    update('{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"waiting"}}')
                    continue
                else:
                    update('{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a word"}}')
            if turn is not None and (method is None or method in ("session/prompt", "session/cancel")):
                if left:
                    name, number, params = left.pop(0)
                    write(f'{{"jsonrpc":"2.0","id":{number},"method":"{name}","params":{params}}}')
                    continue
                if method is None:
                    update(LAST)
                    write('{"method":"_vendor/news", "params":{"n":1.10,"s":"\\ud83d"},"jsonrpc":"2.0"}')
                reason = "cancelled" if method == "session/cancel" else "end_turn"
                write(f'{{"jsonrpc":"2.0","id":{turn},"result":{{"stopReason":"{reason}","_meta":{{ }}}}}}')
                turn = None
                continue
            if method is None or "id" not in message:
                continue
            result = {"initialize": INITIALIZED, "session/new": OPENED}.get(method, '{ "ok":true}')
            write(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{result}}}')


if __name__ == "__main__":
    main(sys.argv[1])
