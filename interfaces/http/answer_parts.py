"""The parts of an answer (texts, reasoning, calls) as dialects with blocks or items tell them, streamed or whole.

A part goes on as long as deltas merge with it. Deltas that show nothing yet (undecided text) belong to none: they
neither open a part nor end one, so that both ways of answering find the same parts.
"""

from dataclasses import replace

from domain.stream import ContentDelta, ReasoningDelta, TextDelta, ToolCallDelta
from interfaces.http.collected import Collected


def shows_nothing(delta: ContentDelta) -> bool:
    if isinstance(delta, ToolCallDelta):
        return not (delta.id or delta.arguments)
    return not delta.text


def visible_parts(choice: Collected) -> list[ContentDelta]:
    """Each whole, in their order."""
    return replace(choice, deltas=tuple(delta for delta in choice.deltas if not shows_nothing(delta))).parts()


def opening(delta: ContentDelta) -> ContentDelta:
    """The part that begins with this delta, while nothing of it is told."""
    match delta:
        case TextDelta():
            return TextDelta("")
        case ReasoningDelta():
            return ReasoningDelta("")
        case ToolCallDelta():
            return ToolCallDelta(delta.index, delta.id, delta.name)


def num_reasoning_tokens(choice: Collected) -> int:
    return sum(len(delta.token_ids) for delta in choice.deltas if isinstance(delta, ReasoningDelta))


__all__ = ("num_reasoning_tokens", "opening", "shows_nothing", "visible_parts")
