"""A gateway as a program, with a listener for chat widgets alone."""

import re
from pathlib import Path

from tests.kit.free_ports import free_port
from tests.kit.running import RunningGateway, prepare, start_gateway


def start_chat_gateway(directory: Path, agents: str, origin: str, more: str = "") -> RunningGateway:
    """Start a gateway where pages of an origin may open `/chat`; its `urls["chat"]` is that address.

    `more` is for `[gateway]`.
    """
    chat = f'[[listen]]\nurl = "ws://127.0.0.1:{free_port()}"\nserves = ["chat"]\nallowed_origins = ["{origin}"]\n'
    gateway = start_gateway(directory, prepare(directory, agents, more=f"{more}\n{chat}"))
    for line in [*gateway.log, gateway.read_log_until("listening on ")]:
        # There are two listeners of one scheme.
        if found := re.search(r"listening on (\S+?)(://.+)", line):
            gateway.urls["chat" if found[2].endswith("/chat") else found[1]] = found[1] + found[2]
    return gateway
