"""A stream in memory whose messages are taken at once."""

import pytest
import trio

from acp_gateway.transports.memory import DirectStream


async def test_what_is_sent_is_taken_at_once_and_what_the_peer_sends_is_waited_for_until_it_is_handled() -> None:
    taken: list[bytes] = []
    stream = DirectStream(taken.append, lambda: taken.append(b"ended"))
    stream.send_nowait([b"a", b"b"])
    assert taken == [b"a", b"b"]
    assert stream.pending_bytes == 0
    stream.peer.send_nowait([b"c"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.wait_handled)
        assert await stream.receive_batch() == [b"c"]
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        stream.note_handled()
    await stream.peer.aclose()
    with pytest.raises(trio.EndOfChannel):
        await stream.receive_batch()
    with pytest.raises(trio.BrokenResourceError):
        stream.send_nowait([b"d"])
    await stream.aclose()
    await stream.wait_handled()
    assert taken == [b"a", b"b", b"ended"]
