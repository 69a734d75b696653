"""How a batch gets into the file: all of it or nothing, and without keeping others from the interpreter."""

from collections.abc import Mapping
from typing import Final

from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.write_queue import Batch

_AT_ONCE: Final = 4096
"""Messages that are let go of in one step, which takes some tenths of a millisecond."""


def write(file: Database, batch: Batch) -> set[int]:
    """Write a batch in one transaction; return the keys in it of histories that lack their beginning.

    Blocks. Raises sqlite3.Error, after which the batch is unchanged.
    """
    with file.transaction():
        for session in batch.sessions.values():
            file.put_session(session)
        for token_id, use in batch.uses.items():
            file.put_token_use(token_id, use)
        for key, change in batch.changes.items():
            if change.forgets:
                file.forget(key)
            elif change.erases:
                file.histories.forget(key)
            if change.whole is not None and change.anew:
                file.histories.replace(key, change.whole)
            elif change.whole is not None:
                file.histories.renew(key, change.whole)
            if change.runs:
                file.histories.append(key, change.runs)
    for change in batch.changes.values():
        for run in (*(change.whole.runs if change.whole is not None else ()), *change.runs):
            _free(run.messages)
    return {key for key in batch.changes if file.histories.is_truncated(key)}


def cut(file: Database, sizes: Mapping[int, int]) -> None:
    """Cut histories to these sizes in bytes, by key, in one transaction. Blocks; raises sqlite3.Error."""
    with file.transaction():
        for key, size in sizes.items():
            file.histories.cut(key, size)


def _free(messages: list[bytes]) -> None:
    """Let go of messages, some at a time: all at once would take milliseconds, and the interpreter's lock with them."""
    while messages:
        del messages[-_AT_ONCE:]
