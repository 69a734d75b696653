"""Places in the history of a session, as its clients count."""

import pytest

from acp_gateway.core.sessions.places import Begun, begun_message
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal


@pytest.mark.parametrize(
    ("epoch", "got", "begun"),
    [
        ("e/1/2/3", 1, Begun(1, 2)),
        ("e/1/2/3", 3, None),
        ("e", 1, None),
        ("e/2/3/3", 1, None),
        ("other/1/2/3", 1, None),
    ],
)
def test_of_a_message_that_a_client_has_begun_the_rest_is_there_if_the_history_has_it(
    epoch: str, got: int, begun: Begun | None
) -> None:
    session = Session("agent", "s", "me", Journal(1000, "e"))
    session.journal.extend([b"one", b"two"])
    assert begun_message(session, epoch, got) == begun
