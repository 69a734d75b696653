"""Costs of sessions by day, agent, session, owner and unit: a table of the database file, and its sums."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, TypeAlias

from acp_gateway.errors import Busy
from acp_gateway.gateway.storage.corruption import Corruption, as_number, as_text
from acp_gateway.gateway.storage.records import SpentBy

SPENT: Final = """
    CREATE TABLE IF NOT EXISTS spent (
        day TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, owner TEXT NOT NULL, unit TEXT NOT NULL,
        amount INTEGER NOT NULL, PRIMARY KEY (day, agent, session, owner, unit)
    )
    """
"""The table, for `database`."""

_SUM: Final = "CAST(min(total(amount), 9e15) AS INTEGER)"
"""A number that any program reads: what agents have told may be beyond integers, for which `sum` is an error."""

_WITHOUT_NAMES: Final = f"""
    INSERT INTO spent SELECT day, agent, '', owner, unit, {_SUM} FROM spent WHERE day = ? AND session <> ''
    GROUP BY agent, owner, unit
    ON CONFLICT (day, agent, session, owner, unit) DO UPDATE SET amount = amount + excluded.amount
    """  # noqa: S608 - our own names

DAYS: Final = 400
"""Days that are kept: a year, and the month before it."""

MOST_ROWS: Final = 200_000
"""Maximum rows, some 40 MB, beyond which the earliest days go, and the sessions of the last one are added up without
their names: seventy sessions a day for 400 days have as many."""

_ADDED: Final = MOST_ROWS // 4
"""Rows that are added at most until they are counted again."""

MOST_SUMS: Final = 1000
"""Maximum sums that are told at once, of the latest days, or of those with the most tokens."""

_BUSY: Final = 5.0
"""Seconds to wait while another process has the file locked."""

By: TypeAlias = Literal["day", "session", "agent", "identity"]
"""Words for what amounts are added up by."""

_COLUMNS: Final[Mapping[By, str]] = {"day": "day", "session": "session", "agent": "agent", "identity": "owner"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sums that are wanted."""

    by: By = "day"
    since: str = ""
    """The first day, in ISO 8601."""
    owner: str | None = None
    """The identity whose sessions count; None for all."""
    agents: Collection[str] | None = None
    """The agents that count; None for all."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Amounts by unit, added up by what was wanted."""

    sums: Mapping[str, Counter[str]]
    total: Counter[str]
    """Of all, also those that are left out."""
    more: int = 0
    """Number of sums that are left out."""


def day_of(time: float) -> str:
    """Return the day of a time in seconds since 1970, in ISO 8601, by the clock of this machine."""
    return datetime.fromtimestamp(time, UTC).astimezone().date().isoformat()


class SpendingTable:
    """The table in an open file. Its methods block, and raise as those of `Database`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # The day on which earlier ones were removed, and the most rows that were added since.
        self._pruned = ""
        self._added = 0

    def add(self, by: SpentBy, amounts: Mapping[str, int]) -> None:
        """Add amounts to those of a day."""
        self._added += len(amounts)
        names = [text.encode("utf-8", "surrogatepass") for text in by]
        self._connection.executemany(
            "INSERT INTO spent VALUES (CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), ?, ?) "
            "ON CONFLICT (day, agent, session, owner, unit) DO UPDATE SET amount = amount + excluded.amount",
            [(*names, unit, amount) for unit, amount in amounts.items()],
        )

    def prune(self, day: str, most: int = MOST_ROWS) -> None:
        """Remove what is `DAYS` older than the present day, and the earliest days while there are too many rows, once a
        day and after many additions; of the present day, the names of the sessions."""
        if self._pruned == day and self._added < _ADDED:
            return
        self._pruned, self._added, execute = day, 0, self._connection.execute
        first = date.fromisoformat(day) - timedelta(days=DAYS)
        execute("DELETE FROM spent WHERE day < ?", (first.isoformat(),))
        left = execute("SELECT count(*) FROM spent").fetchone()[0]
        for one, count in execute("SELECT day, count(*) FROM spent GROUP BY day ORDER BY day").fetchall():
            if left <= most:
                break
            if one == day:
                execute(_WITHOUT_NAMES, (one,))
                execute("DELETE FROM spent WHERE day = ? AND session <> ''", (one,))
                break
            execute("DELETE FROM spent WHERE day = ?", (one,))
            left -= count

    def on_day(self, day: str) -> dict[str, Counter[str]]:
        """Return what was spent on a day, by owner."""
        return _sums(self._connection, Wanted("identity", day), until=day)


def read_sums(path: Path, wanted: Wanted) -> Sums:
    """Return sums from the file, also while a gateway runs, as far as it has written them.

    Blocks. Raises `Busy` if the file can't be read now.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY)) as connection:
            connection.text_factory = _decode
            sums = _sums(connection, wanted)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise Busy("what sessions have cost can't be read now; the gateway's log says why") from error
    total = Counter[str]()
    for amounts in sums.values():
        total.update(amounts)
    latest = sorted(sums, reverse=True) if wanted.by == "day" else sorted(sums, key=lambda it: -sums[it]["tokens"])
    return Sums({key: sums[key] for key in latest[:MOST_SUMS]}, total, max(len(sums) - MOST_SUMS, 0))


def _sums(connection: sqlite3.Connection, wanted: Wanted, *, until: str = "~") -> dict[str, Counter[str]]:
    """Return sums of the days between the first wanted and the last one, which are compared as texts."""
    conditions, values = ["day BETWEEN ? AND ?"], [wanted.since, until]
    if wanted.owner is not None:
        conditions.append("owner = ?")
        values.append(wanted.owner)
    if wanted.agents is not None:
        conditions.append(f"agent IN ({', '.join('?' * len(wanted.agents))})")
        values += wanted.agents
    column = _COLUMNS[wanted.by]
    rows = connection.execute(
        f"SELECT {column}, unit, {_SUM} FROM spent WHERE {' AND '.join(conditions)} "  # noqa: S608 - our own names
        f"GROUP BY {column}, unit",
        # sqlite3 refuses lone surrogates.
        [value.encode("utf-8", "replace").decode() for value in values],
    )
    found: dict[str, Counter[str]] = {}
    for key, unit, amount in rows:
        with suppress(Corruption):
            found.setdefault(as_text(key), Counter())[as_text(unit)] = as_number(amount)
    return found


def rows_of(rows: Iterable[Sequence[object]]) -> Iterator[tuple[SpentBy, dict[str, int]]]:
    """Return what is in rows of the table of another file, as far as it is valid."""
    for day, agent, session_id, owner, unit, amount in rows:
        with suppress(Corruption, ValueError):
            date.fromisoformat(as_text(day))
            by = SpentBy(as_text(day), as_text(agent), as_text(session_id), as_text(owner))
            yield by, {as_text(unit): as_number(amount)}


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")
