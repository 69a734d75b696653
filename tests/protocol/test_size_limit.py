"""The size limit that a gateway tells."""

import pytest

from acp_gateway.protocol.size_limit import SizeLimit, read_size_limit


def test_a_size_limit_is_read_as_it_is_spelled() -> None:
    limit = SizeLimit(16777216, "max_message_size")
    assert str(limit) == "16777216 max_message_size"
    assert read_size_limit(str(limit)) == limit


@pytest.mark.parametrize("spelled", [None, 7, "", "7", "0 a", "07 a", "7 ", "7  a", "7 A", "7 a\n", "7 " + "a" * 65])
def test_another_text_is_not_a_size_limit(spelled: object) -> None:
    assert read_size_limit(spelled) is None


def test_a_refusal_names_the_size_the_option_and_the_limit() -> None:
    words = "a message of 20,000,000 bytes is larger than max_message_size (16,777,216 bytes) allows"
    assert SizeLimit(16777216, "max_message_size").describe(20_000_000) == words
