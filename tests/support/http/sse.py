"""Reading server-sent events the way a strict client would."""

import json
from typing import Any


def events(transcript: str) -> list[Any]:
    """Every event's JSON, after checking that the transcript is well formed and ends with `[DONE]`."""
    blocks = transcript.split("\n\n")
    assert blocks[-1] == "", "the last event is not complete"
    payloads = [block.removeprefix("data: ") for block in blocks[:-1] if not block.startswith(":")]
    assert all(block.startswith(("data: ", ":")) and "\n" not in block for block in blocks[:-1])
    assert payloads[-1] == "[DONE]"
    assert "[DONE]" not in payloads[:-1]
    return [json.loads(payload) for payload in payloads[:-1]]


def comments(transcript: str) -> list[str]:
    return [block.removeprefix(": ") for block in transcript.split("\n\n") if block.startswith(":")]


def chat_text(chunks: list[Any], index: int = 0) -> str:
    """The content of one choice of a streamed chat."""
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ()) if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def completion_text(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a streamed text completion."""
    return "".join(
        choice["text"] for chunk in chunks for choice in chunk.get("choices", ()) if choice["index"] == index
    )
