"""The command `usage`: what sessions have cost."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    connection_options,
    examples,
    plain_option,
    print_json,
    print_table,
    print_warning,
    waiting_for,
)
from acp_gateway.errors import UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from acp_gateway.client.destination import ConnectionOptions

_BY = ("day", "session", "agent", "identity")


def _since(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Parse a duration before now or a day into a day, in ISO 8601."""
    from datetime import UTC, date, datetime, timedelta

    from acp_gateway.config.schema import parse_duration

    try:
        ago = timedelta(seconds=parse_duration(text))
    except UsageError:
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError:
            raise click.BadParameter("expected a duration, such as 7d, or a day, such as 2026-11-22") from None
    return (datetime.now(UTC).astimezone() - ago).date().isoformat()


@click.command(
    epilog=examples(
        "acp-gateway usage                       on the gateway's machine, of all identities",
        "acp-gateway usage box --by session --since 7d",
        "acp-gateway usage --by identity --json | jq '.rows[] | {key, costs}'",
    ),
    short_help="Show what sessions have cost.",
)
@click.argument("target", required=False)
@config_option
@click.option("--by", type=click.Choice(_BY), default="day", show_default=True, help="What to add up by.")
@click.option(
    "--since",
    metavar="DURATION|DAY",
    default="30d",
    show_default=True,
    callback=_since,
    help="Only from this day on: 7d, 2026-11-22.",
)
@connection_options
@connect_timeout_option(help="How long to wait for the answer.")
@plain_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the sums, their total, and how many more there are.")
def usage(
    target: str | None,
    config: Path | None,
    by: str,
    since: str,
    connection: "ConnectionOptions",
    connect_timeout: float,
    *,
    as_json: bool,
) -> None:
    """Show money and tokens that the sessions at TARGET have cost, as far as their agents tell.

    You see those of your token's identity; the gateway's own user, on its machine and without TARGET, those of all.
    Currencies are not added together. TARGET has the same meaning as for `connect`.
    """
    import trio

    from acp_gateway.cli.client.sessions import find_gateway
    from acp_gateway.client import control

    destination = find_gateway(target, config, connection)
    with waiting_for(str(destination.address)):
        answer = trio.run(partial(control.usage, destination, by, since, time_limit=connect_timeout))
    if answer.missing:
        print_warning(f"not in the sums, as they did not answer: {', '.join(map(printable, answer.missing))}")
    if answer.more:
        click.echo(f"Not shown: {answer.more} more, which are in the total", err=True)
    if as_json:
        told = {"by": by, "since": since, "rows": answer.rows, "total": answer.total, "more": answer.more}
        print_json(told | {"missing": list(answer.missing)})
    elif answer.rows:
        _print_rows(by, answer.rows, answer.total)
    else:
        click.echo(f"No agent has told a cost or tokens since {since}.", err=True)


def _print_rows(by: str, rows: "Iterable[Mapping[str, Any]]", total: "Mapping[str, Any]") -> None:
    several = any(row["machine"] for row in rows)
    heads = (by.upper(), "COST", "TURNS", "TOKENS", "INPUT", "OUTPUT", "CACHED")
    cells = [
        (
            printable(row["key"], size=len(row["key"])),
            *_cells(row),
            *((printable(row["machine"] or "-"),) if several else ()),
            *((printable(row["title"] or "-")[:40],) if by == "session" else ()),
        )
        for row in rows
    ]
    further = (("MACHINE",) if several else ()) + (("TITLE",) if by == "session" else ())
    print_table((*heads, *further), [*cells, ("total", *_cells(total), *("" for _ in further))])


def _cells(amounts: "Mapping[str, Any]") -> tuple[str, ...]:
    """Return the cells of a sum."""
    costs = ", ".join(f"{cost:.2f} {printable(currency)}" for currency, cost in amounts["costs"].items())
    cached = amounts["cachedRead"] + amounts["cachedWrite"]
    return costs or "-", *(f"{amounts[name]:,}" for name in ("turns", "tokens", "input", "output")), f"{cached:,}"
