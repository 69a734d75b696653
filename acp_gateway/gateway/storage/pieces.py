"""The pieces in which a history is stored: many messages each, and an outline of them.

The outline is a JSON text, a list with the length and the kind of state of each message.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec

from acp_gateway.gateway.storage.records import Run


def split(lengths: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Messages of these lengths in order, so many together as are within the limit, or one that is not: from, to."""
    ends = list(accumulate(lengths, initial=0))
    start = 0
    while start < len(lengths):
        end = max(start + 1, bisect_right(ends, ends[start] + limit) - 1)
        yield start, end
        start = end


def outline(lengths: Sequence[int], kinds: Sequence[str | None]) -> bytes:
    """The outline of messages, one at least, of these lengths and these kinds of state, None for those of none."""
    if kinds.count(None) < len(kinds):
        return msgspec.json.encode(list(zip(lengths, kinds, strict=True)))
    # The same, without thousands of objects that are made and looked at by the collector of garbage for this alone.
    return b"[[%b,null]]" % msgspec.json.encode(lengths)[1:-1].replace(b",", b",null],[")


def unpack(outlined: object, messages: object) -> Run:
    """The messages of a piece with this outline; none where the two do not fit together."""
    if not isinstance(outlined, bytes) or not isinstance(messages, bytes):
        return Run()
    try:
        shape = msgspec.json.decode(outlined, type=list[tuple[int, str | None]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Run()
    if any(length < 0 for length, _ in shape) or sum(length for length, _ in shape) != len(messages):
        return Run()
    ends = list(accumulate((length for length, _ in shape), initial=0))
    states = {index: state for index, (_, state) in enumerate(shape) if state is not None}
    return Run([messages[start:end] for start, end in pairwise(ends)], states)
