"""Lines of output, and the end of a stream."""

import trio

from acp_conformance.processes import LINE_COST, LineSplitter, Tail


def test_lines_are_split_wherever_the_pieces_end() -> None:
    splitter = LineSplitter(100)
    assert [splitter.feed(piece) for piece in (b"a\r", b"\nb\n\n \nc", b"", b"")] == [[], [b"a", b"b"], [b"c"], []]


def test_output_beyond_the_limit_is_an_overflow() -> None:
    splitter = LineSplitter(3 + LINE_COST)
    splitter.feed(b"ab\n")
    assert not splitter.overflow
    splitter.feed(b"c")
    assert splitter.overflow


def test_each_line_counts_as_more_than_its_bytes() -> None:
    splitter = LineSplitter(10 * LINE_COST)
    splitter.feed(b"\n" * 10)
    assert splitter.overflow


async def test_the_end_of_a_stream_is_kept_and_no_more() -> None:
    for size, kept in ((3, "efg"), (0, ""), (100, "abcdefg")):
        ours, theirs = trio.testing.memory_stream_one_way_pair()
        await ours.send_all(b"abcd")
        await ours.send_all(b"efg")
        await ours.aclose()
        tail = Tail(size)
        await tail.read(theirs)
        assert tail.text == kept
