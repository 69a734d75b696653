"""The commands `audit`, `replay` and `export-recording`: the audit log, and the use of recordings."""

import math
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from acp_gateway.cli.common import config_option, examples, print_warning
from acp_gateway.errors import UsageError


def _since(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Parse a duration before now or a point in time into seconds since 1970."""
    import time
    from datetime import datetime

    from acp_gateway.config.schema import parse_duration

    if text is None:
        return None
    try:
        return time.time() - parse_duration(text)
    except UsageError:
        pass
    try:
        # Without a zone, local time.
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            "expected a duration, such as 90s, 15m, 2h or 7d, or a time, such as 2026-11-22 or 2026-11-22T07:30Z"
        ) from None


def _factor(_context: click.Context, _option: click.Parameter, number: float) -> float:
    if not math.isfinite(number):
        raise click.BadParameter("expected a number, such as 1 or 0.5")
    return number


@click.command(
    epilog=examples("acp-gateway audit --since 1d", "acp-gateway audit --event refused --json | jq -r .reason"),
    short_help="Print the audit log.",
)
@click.option(
    "--since",
    metavar="DURATION|TIME",
    callback=_since,
    help="Only entries after this time: 2h, 7d, 2026-11-22, 2026-11-22T07:30Z.",
)
@click.option("--event", "events", multiple=True, metavar="NAME", help="Only entries of this event. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON, one per line.")
@config_option
def audit(since: float | None, events: tuple[str, ...], config: Path | None, *, as_json: bool) -> None:
    """Print the gateway's audit log, oldest entry first: connections and decisions, never content of messages.

    Run this on the gateway's machine.
    """
    from acp_gateway.config.load import load_config
    from acp_gateway.gateway.events.audit import FILE_NAME, entry_line, read_audit

    path = load_config(config).gateway.state_dir / FILE_NAME
    _check_events(events, path)
    reading = read_audit(path, since)
    for entry in reading:
        if not events or entry["event"] in events:
            click.echo(entry_line(entry) if as_json else _readable(entry))
    if reading.damaged:
        print_warning(f"damaged lines in the audit, not shown: {reading.damaged}")


def _check_events(names: Iterable[str], path: Path) -> None:
    """Raise `UsageError` for the first name that is not an event of this version or of the audit log at `path`."""
    from acp_gateway.config.editing.toml_file import suggestion
    from acp_gateway.gateway.events.audit import EVENTS, read_audit

    unknown = [name for name in names if name not in EVENTS]
    if unknown:
        # Another version may have other events.
        known = EVENTS.keys() | {entry["event"] for entry in read_audit(path)}
        for name in unknown:
            if name not in known:
                hint = suggestion(name, known) or f"; there are: {', '.join(sorted(EVENTS))}"
                raise UsageError(f"there is no event {name!r}{hint}")


def _readable(entry: dict[str, Any]) -> str:
    """Format an entry as a line of text: time, event, and each detail with its name."""
    details = [f"{_word(name)}={_word(value)}" for name, value in entry.items() if name not in ("time", "event")]
    return "  ".join([_word(entry["time"]), _word(entry["event"]).ljust(18), " ".join(details)]).rstrip()


def _word(value: object) -> str:
    """Return a plain word as it is, any other value as JSON."""
    from acp_gateway.gateway.events.audit import entry_line

    return value if isinstance(value, str) and re.fullmatch(r"[!#-<>-~]+", value) else entry_line(value)


@click.command(
    epilog=examples(
        "acp-gateway replay recording.jsonl", "acp-gateway replay recording.jsonl --speed 1       in the original time"
    ),
    short_help="Play a recording back to an editor.",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    default=0.0,
    callback=_factor,
    show_default=True,
    metavar="FACTOR",
    help="1: in the original time; 2: in half of it; 0: without delays.",
)
def replay(file: Path, speed: float) -> None:
    """Replay a recording from the gateway's record_dir to an editor, as its agent on stdin and stdout.

    FILE may also be a fixture, as `export-recording` writes them. An editor starts this instead of `acp-gateway
    connect`, and gets the recorded messages without the agent.
    """

    import trio

    from acp_gateway.gateway.events.replay import RecordedConnection, play
    from acp_gateway.transports.pipes import open_stdio

    recording = RecordedConnection.read(file)
    if recording.skipped_lines:
        print_warning(f"lines without a message, left out: {recording.skipped_lines}")
    trio.run(partial(play, open_stdio(), recording, speed=speed))


@click.command(
    "export-recording",
    epilog=examples("acp-gateway export-recording recording.jsonl > fixture.jsonl"),
    short_help="Write a recording as a fixture for tests.",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--message-size",
    type=click.IntRange(min=1024),
    default=4 * 1024 * 1024,
    show_default=True,
    metavar="BYTES",
    help="Maximum bytes of one message; redacting one takes memory in proportion.",
)
def export_recording(file: Path, message_size: int) -> None:
    """Write the messages of a recording to stdout: a JSON object per line, with "direction" beside its members.

    It is "outgoing" from the client, "incoming" from the agent. Known kinds of secrets are redacted, once more. Read
    the result before it is published: a conversation may have others.
    """
    from acp_gateway.gateway.events.replay import RecordedConnection
    from acp_gateway.protocol.fixtures import write_lines

    recording = RecordedConnection.read(file)
    if recording.skipped_lines:
        print_warning(f"lines without a message, left out: {recording.skipped_lines}")
    messages = [(recorded.from_client, recorded.message.text) for recorded in recording.messages]
    click.echo(write_lines(messages, message_size), nl=False)
