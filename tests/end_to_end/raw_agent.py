"""An agent that keeps to the bytes: what it is asked comes back inside of its answer, verbatim. For tests.

It answers every request with `{"id": <the id's own text>, "result": {"line": <the line it read, as a string>}}`, and
`pid`, the id of its process, in the result.
Before the answer to `raw/ask` it makes requests of its own, one under each id that is there in `params.ids` as text,
and waits for the answers, which it returns as `answers`. A notification `raw/say` makes it print `params.line`.
"""

import json
import os
import re
import sys

ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\.)*"|[^,}\s]+)')


def id_text(line: str) -> str | None:
    found = ID.search(line)
    return None if found is None else found[1]


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer

    def write(text: str) -> None:
        stdout.write(text.encode() + b"\n")
        stdout.flush()

    for raw in iter(stdin.readline, b""):
        line = raw.decode().rstrip("\n")
        message = json.loads(line)
        if message.get("method") == "raw/say":
            write(message["params"]["line"])
            continue
        if "id" not in message or "method" not in message:
            continue
        answers = []
        if message["method"] == "raw/ask":
            for text in message["params"]["ids"]:
                write(f'{{"jsonrpc":"2.0","id":{text},"method":"raw/asked","params":{{}}}}')
            answers = [stdin.readline().decode().rstrip("\n") for _ in message["params"]["ids"]]
        result = {"protocolVersion": 1, "line": line, "answers": answers, "pid": os.getpid()}
        write(f'{{"jsonrpc":"2.0","id":{id_text(line)},"result":{json.dumps(result)}}}')


if __name__ == "__main__":
    main()
