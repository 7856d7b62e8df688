"""The answer to a message: one body, whose pieces a stream sends one after the other."""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from domain.priority import Priority
from domain.request.request import FinishReason, Usage
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, TextDelta
from interfaces.http.answering.collected import Collected, num_reasoning_tokens, visible_parts
from interfaces.http.anthropic.conversation import input_of
from interfaces.http.fields.sampling_fields import anthropic_tier


class TextBody(Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBody(Struct, tag_field="type", tag="thinking"):
    """`signature` names the block; clients return it as it is."""

    thinking: str
    signature: str


class ToolUseBody(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, object]


BlockBody: TypeAlias = TextBody | ThinkingBody | ToolUseBody


class ThinkingTokens(Struct):
    thinking_tokens: int


class MessageUsageBody(Struct):
    """The prompt's tokens are `input_tokens` (computed) plus `cache_read_input_tokens` (reused). What is computed is
    kept as well, and is not counted again as `cache_creation_input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    service_tier: str | UnsetType = UNSET


StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageBody(Struct, kw_only=True):
    """`stop_reason` is null in a stream's first event."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[BlockBody]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsageBody


def message_body(id: str, model: str, choice: Collected, priority: Priority) -> MessageBody:
    return MessageBody(
        id=id,
        model=model,
        content=[block_body(part, signature(id, index)) for index, part in enumerate(visible_parts(choice))],
        stop_reason=stop_reason(choice.finished),
        stop_sequence=choice.finished.stop_text,
        usage=usage_body(choice.finished.usage, num_reasoning_tokens(choice), priority),
    )


def block_body(part: ContentDelta, signature: str) -> BlockBody:
    match part:
        case TextDelta(text=text):
            return TextBody(text)
        case ReasoningDelta(text=text):
            return ThinkingBody(text, signature)
        case call:
            return ToolUseBody(call.id, call.name, input_of(call.arguments))


def signature(id: str, index: int) -> str:
    """The handle of the thinking block number `index` of a message."""
    return f"{id}.{index}"


def stop_reason(finished: Finished) -> StopReason:
    if finished.stop_text is not None:
        return "stop_sequence"
    match finished.reason:
        case FinishReason.LENGTH:
            return "max_tokens"
        case FinishReason.TOOL_CALLS:
            return "tool_use"
        case _:
            return "end_turn"


def usage_body(usage: Usage, num_thinking: int, priority: Priority | None = None) -> MessageUsageBody:
    """`num_thinking`: tokens of the completion that are reasoning. `priority`: None for the end of a stream, whose
    beginning has told it."""
    return MessageUsageBody(
        usage.computed_tokens,
        0,
        usage.reused_tokens,
        usage.completion_tokens,
        ThinkingTokens(num_thinking),
        UNSET if priority is None else anthropic_tier(priority),
    )
