"""The lines that stand for what is missing."""

import json

from acp_gateway.protocol.gaps import GAP, PART_MISSING, gap


def test_a_gap_is_said_by_the_agent_in_its_session() -> None:
    assert json.loads(gap("s/\u00e9")) == {
        "jsonrpc": "2.0",
        "method": "session/update",
        "params": {
            "sessionId": "s/\u00e9",
            "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": GAP}},
        },
    }
    assert PART_MISSING in json.loads(gap("s", PART_MISSING))["params"]["update"]["content"]["text"]
