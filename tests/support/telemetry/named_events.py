"""Reading server-sent events that have names, the way a strict client would."""

import json
from typing import Any


def named_events(reported: bytes | str) -> list[dict[str, Any]]:
    """Every event's JSON, after checking that each has an `event:` line that says its `type`, and one line of data."""
    text = reported if isinstance(reported, str) else reported.decode()
    blocks = text.split("\n\n")
    assert blocks[-1] == "", "the last event is not complete"
    found: list[dict[str, Any]] = []
    for block in blocks[:-1]:
        if block.startswith(":"):
            assert "\n" not in block
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found
