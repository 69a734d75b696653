"""Reads the values of options that say how an agent is reached: its command, its URL, its public key."""

import re

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.schema import Entry
from acp_gateway.errors import UsageError


def read_command(entry: Entry) -> tuple[str, ...]:
    """Read a program and its arguments. Raises `ConfigError`."""
    words = [element.value for element in entry.array('an array of strings, such as ["opencode", "acp"]')]
    if not words or not words[0]:
        raise entry.error("expected the program and its arguments, found no program")
    if any(not isinstance(word, str) or "\0" in word for word in words):
        raise entry.error("expected the program and its arguments as strings")
    return tuple(words)


def read_agent_url(entry: Entry) -> str:
    """Read the URL of an agent that listens, of any scheme that a client connects to except `ssh`.

    Returns it as it was written, because `http` and `https` say that there may be no WebSocket. Raises `ConfigError`.
    """
    if not isinstance(entry.value, str):
        raise entry.expected("a URL")
    if "://" not in entry.value:
        raise entry.error("expected a URL, such as tcp://127.0.0.1:3000 or wss://host.example/acp")
    try:
        address = parse_target(entry.value)
    except UsageError as error:
        raise entry.error(str(error)) from None
    if address.scheme == "ssh":
        raise entry.error("no agent listens at ssh: use a command that begins with ssh")
    return entry.value


def read_pin(entry: Entry) -> str:
    """Read the pin of a public key, in lower case. Raises `ConfigError`."""
    if not (isinstance(entry.value, str) and re.fullmatch(r"sha256:[0-9A-Fa-f]{64}", entry.value)):
        raise entry.error('expected "sha256:" and 64 hexadecimal digits, as "acp-gateway certs create" prints it')
    return entry.value.lower()
