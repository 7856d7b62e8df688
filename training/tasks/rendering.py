"""Chats as text: what chat_template.jinja gives, in pieces that are either given or learned."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from training.tasks.episode import Turn


class Piece(NamedTuple):
    """Text of one or more tokens; `is_learned` for what the assistant says."""

    text: str
    is_learned: bool


def system_part(system: str | None, tools: Sequence[dict[str, object]] = ()) -> str:
    """The system message with its tools; empty without either."""
    if tools:
        listed = "".join("\n" + json.dumps(tool) for tool in tools)
        return (
            "<|im_start|>system\n"
            + (system + "\n\n" if system else "")
            + f"# Tools\n<tools>{listed}\n</tools>\nTo call a tool, answer with\n<tool_call>\n"
            + '{"name": NAME, "arguments": ARGUMENTS}\n</tool_call><|im_end|>\n'
        )
    return f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""


def turn_pieces(turn: Turn, *, with_thought: bool) -> list[Piece]:
    """One turn. A tool's result is shown to the model as a user's message."""
    if turn.role == "assistant":
        if with_thought and turn.thought:
            opening = "<|im_start|>assistant\n<think>\n"
            said = f"{turn.thought}\n</think>\n\n{turn.text}<|im_end|>"
        else:
            opening, said = "<|im_start|>assistant\n", turn.text + "<|im_end|>"
        return [Piece(opening, False), Piece(said, True), Piece("\n", False)]
    if turn.role == "tool":
        return [Piece(f"<|im_start|>user\n<tool_response>\n{turn.text}\n</tool_response><|im_end|>\n", False)]
    return [Piece(f"<|im_start|>{turn.role}\n{turn.text}<|im_end|>\n", False)]


__all__ = ("Piece", "system_part", "turn_pieces")
