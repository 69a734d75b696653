"""An agent that does what a test asks of it. Standard library only, so that it starts fast with `python -I -S`.

It answers every request with what it was asked, but for these:

    initialize        as an agent does
    session/prompt    not before `session/cancel`
    test/process      its pid, its environment as it was started with, its command line
    test/raw          writes `params` to stdout as it is
    test/stderr       writes `params` to stderr as it is
    test/exit         ends with exit code `params`, without an answer

Where FILE is given as an argument, every line that comes in is appended to it. At the end of its input it exits with 0.
"""

import json
import os
import sys


def environment() -> dict[str, str]:
    with open("/proc/self/environ", encoding="utf-8") as file:
        return dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)


def command_line() -> list[str]:
    with open("/proc/self/cmdline", encoding="utf-8") as file:
        return file.read().split("\0")


def main() -> None:
    prompts: list[object] = []

    def answer(to: object, result: object) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": to, "result": result}) + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        if len(sys.argv) > 1:
            with open(sys.argv[1], "a", encoding="utf-8") as file:
                file.write(line)
        message = json.loads(line)
        method, to, params = message.get("method"), message.get("id"), message.get("params")
        if method == "initialize":
            answer(to, {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []})
        elif method == "session/prompt":
            prompts.append(to)
        elif method == "session/cancel":
            while prompts:
                answer(prompts.pop(), {"stopReason": "cancelled"})
        elif method == "test/process":
            answer(to, {"pid": os.getpid(), "environment": environment(), "command": command_line()})
        elif method == "test/raw":
            sys.stdout.write(params)
            sys.stdout.flush()
        elif method == "test/stderr":
            sys.stderr.write(params)
            sys.stderr.flush()
            answer(to, None)
        elif method == "test/exit":
            os._exit(params)
        elif method is not None and to is not None:
            answer(to, {"method": method, "params": params})


main()
