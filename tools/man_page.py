#!/usr/bin/env python3
"""Print the manual page of the program, made from its commands: python -m tools.man_page | man -l -

The wheel gets it when it is built (`hatch_build.py`).
"""

import re
from collections.abc import Iterator

import click

from acp_gateway import __version__
from acp_gateway.cli.main import main

EXIT_STATUS = {
    0: ("Success; of connect: the editor closed the connection.", ""),
    1: (
        "A bug; of check-agent and check-client: a rule of level MUST is broken.",
        "Run it with `--log-file FILE`, and report the bug.",
    ),
    2: ("Wrong command line.", "`acp-gateway help COMMAND` explains it."),
    3: (
        "A configuration file, a token file, or a file or folder that they name. Of service status: it does not run.",
        "The line names the file and the key. A token file needs mode 600.",
    ),
    4: (
        "The gateway refused the connection, or a prompt.",
        "401: create a new token. 403, 404: name another `--agent`, use a token that allows it, or open the session.",
    ),
    5: (
        "TLS: the certificate or the pin does not match.",
        "Compare the pin with the output of `acp-gateway certs show`.",
    ),
    6: (
        "No answer for 15 s, or for 5 minutes from a gateway that was reached before.",
        "Is `serve` running, is the port open, is the address right?",
    ),
    7: (
        "The server is not an acp-gateway, another ACP server refuses the connection, or a message was too large.",
        "Look at the address or the token; or the line names the setting.",
    ),
    8: (
        "The agent could not be started, or has failed.",
        "The error has its exit code, and for the owner of its process its last output; the log of `serve` has more.",
    ),
    9: ("`serve` can't listen at an address.", "Is another gateway running, is the network up?"),
    10: ("The agent refuses the prompt.", "The answer says why."),
    11: ("The turn has ended at a limit of the agent.", "Prompt the session again: it goes on."),
    12: ("The turn was stopped, or its session was closed.", ""),
    13: ("The agent asks, and no answer has come within `--timeout`.", "`watch`, `chat` and the page answer it."),
    124: ("The turn has not ended within `--timeout`.", "It goes on; `watch` shows it."),
    130: ("Ctrl-C has ended the wait for a turn.", "It goes on; `watch` shows it."),
    141: ("The reader of the output closed it, as in `acp-gateway audit | head -1`.", ""),
}
"""Cause of each exit code, and what to do about it."""

ENVIRONMENT = {
    "ACP_GATEWAY_TOKEN_FILE": "A file with the token, for a host of hosts.toml or a URL without one.",
    "ACP_GATEWAY_TOKEN": "The token itself, if there is no file.",
    "XDG_CONFIG_HOME, XDG_STATE_HOME": "Folders in place of ~/.config and ~/.local/state.",
    "NO_COLOR": "If it is not empty, nothing is printed in colour.",
    "HTTPS_PROXY": "A proxy for the downloads of agents add and update.",
}

FILES = {
    "~/.config/acp-gateway/config.toml, /etc/acp-gateway/config.toml": "The gateway's configuration.",
    "~/.config/acp-gateway/hosts.toml": "The gateways that this machine connects to.",
    "~/.local/state/acp-gateway": "Tokens, sessions, the audit log and the agents of the registry.",
}


def escape(text: str) -> str:
    """Return text as roff has it: backslashes and hyphens, and words between backquotes in bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)


def line(text: str) -> str:
    """Return a line of text that is not a request of roff."""
    escaped = escape(text)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text; blocks that begin with click's mark are kept as they are."""
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        rows = block.strip("\n").splitlines()
        if rows and rows[0].strip() == "\b":
            yield from (".nf", *(line(row.strip()) if row == row.lstrip() else line(row) for row in rows[1:]), ".fi")
        else:
            yield line(" ".join(row.strip() for row in rows))


def value_of(param: click.Option) -> str:
    """Return the name of an option's value, or its choices; an empty string for a flag."""
    if param.is_flag or param.count:
        return ""
    choices = "|".join(map(str, param.type.choices)) if isinstance(param.type, click.Choice) else None
    return param.metavar or choices or param.type.name.upper()


def default_of(param: click.Option) -> str | None:
    """Return the default of an option, if its help shows one."""
    return str(param.default) if param.show_default and isinstance(param.default, str | int | float) else None


def option_names(param: click.Option) -> str:
    """Return the names of an option, with the name of its value."""
    names = ", ".join(f"\\fB{escape(name)}\\fR" for name in (*param.opts, *param.secondary_opts))
    value = value_of(param)
    return f"{names} \\fI{escape(value)}\\fR" if value else names


def argument_name(param: click.Argument) -> str:
    """Return an argument as in a usage line."""
    name = param.metavar or (param.name or "").upper()
    if name.startswith("["):
        return escape(name)
    more = "..." if param.nargs == -1 else ""
    return escape(f"{name}{more}" if param.required else f"[{name}]{more}")


def describe(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines about one command: usage, help, options, examples."""
    arguments = [f"\\fI{argument_name(param)}\\fR" for param in command.params if isinstance(param, click.Argument)]
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    usage = ["[\\fIOPTIONS\\fR]"] if options else []
    end = ["\\fICOMMAND\\fR"] if isinstance(command, click.Group) else arguments
    yield f'.SS "{escape(" ".join(words))}"'
    yield " ".join(["\\fBacp\\-gateway " + escape(" ".join(words)) + "\\fR", *usage, *end])
    yield ".PP"
    yield from paragraphs(command.help or "")
    for param in options:
        yield ".TP"
        yield option_names(param)
        default = default_of(param)
        yield line((param.help or "") + (f" Default: {default}." if default is not None else ""))
    if command.epilog:
        yield ".PP"
        yield from paragraphs(command.epilog)


def walk(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[click.Command, tuple[str, ...]]]:
    """Yield each command that is not hidden, in alphabetical order, with the words that name it."""
    if words:
        yield command, words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from walk(below, (*words, name))


def definitions(items: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a list of names and their meanings."""
    for name, meaning in items.items():
        yield from (".TP", f"\\fB{escape(name)}\\fR", line(meaning))


def make_page() -> str:
    """Return the manual page."""
    lines = [
        f'.TH ACP\\-GATEWAY 1 "" "acp\\-gateway {escape(__version__)}" "User Commands"',
        ".SH NAME",
        "acp\\-gateway \\- run coding agents on a remote machine and use them from the editor",
        ".SH SYNOPSIS",
        "\\fBacp\\-gateway\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]",
        ".SH DESCRIPTION",
        *paragraphs(main.help or ""),
        ".PP",
        *paragraphs(main.epilog or ""),
        ".SH COMMANDS",
    ]
    for command, words in walk(main):
        lines += describe(command, words)
    lines += [
        ".SH EXIT STATUS",
        *definitions({str(code): " ".join(texts).strip() for code, texts in EXIT_STATUS.items()}),
        ".SH ENVIRONMENT",
        *definitions(ENVIRONMENT),
        ".SH FILES",
        *definitions(FILES),
        ".PP",
        line("`acp-gateway paths` lists all of them, `acp-gateway files` the documents that come with the program."),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(make_page(), end="")
