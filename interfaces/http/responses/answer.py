"""The answer to a response request: one body, which a stream repeats as far as it has come."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from domain.errors import DomainError
from domain.priority import Priority
from domain.request.request import FinishReason, Usage
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, TextDelta
from interfaces.http.answering.collected import Collected, num_reasoning_tokens, visible_parts
from interfaces.http.fields.sampling_fields import openai_tier
from interfaces.http.responses.errors import ResponseError, response_error
from interfaces.http.responses.output_items import (
    COMPLETED,
    INCOMPLETE,
    CustomCallOutput,
    FunctionCallOutput,
    MessageOutput,
    OutputItem,
    ReasoningOutput,
)
from interfaces.http.responses.request import ResponsesRequest


class CachedTokens(Struct):
    """`cached_tokens`: of the prompt, reused and not computed. What is computed is kept, and not counted as written."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ReasoningTokens(Struct):
    reasoning_tokens: int


class ResponseUsageBody(Struct):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteBody(Struct):
    reason: Literal["max_output_tokens"]


class ResponseBody(Struct, kw_only=True):
    """`output`: items of type `reasoning`, `message`, `function_call` and `custom_tool_call`. What the request said is
    told again."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[dict[str, Any]]
    error: ResponseError | None
    incomplete_details: IncompleteBody | None
    usage: ResponseUsageBody | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: str
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What an answer has to know of its request."""

    id: str
    created_s: int
    model: str
    request: ResponsesRequest
    priority: Priority = Priority.INTERACTIVE

    def body(
        self,
        status: Literal["in_progress", "completed", "incomplete", "failed"],
        output: Sequence[dict[str, Any]] = (),
        usage: ResponseUsageBody | None = None,
        error: DomainError | None = None,
    ) -> ResponseBody:
        request = self.request
        return ResponseBody(
            id=self.id,
            created_at=self.created_s,
            status=status,
            model=self.model,
            output=list(output),
            error=None if error is None else response_error(error),
            incomplete_details=IncompleteBody("max_output_tokens") if status == "incomplete" else None,
            usage=usage,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            previous_response_id=request.previous_response_id,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            reasoning={"effort": request.effort, "summary": request.reasoning and request.reasoning.summary},
            service_tier=openai_tier(self.priority),
            temperature=1.0 if request.temperature is None else request.temperature,
            text={"format": request.format or {"type": "text"}},
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            top_p=1.0 if request.top_p is None else request.top_p,
        )

    def item(self, part: ContentDelta, index: int) -> OutputItem:
        """The item that begins with this part of the answer."""
        match part:
            case TextDelta():
                return MessageOutput(f"msg_{self.id}_{index}", index)
            case ReasoningDelta():
                id, request = f"rs_{self.id}_{index}", self.request
                is_summary = request.reasoning is not None and request.reasoning.summary not in (None, "none")
                has_handle = "reasoning.encrypted_content" in (request.include or ())
                return ReasoningOutput(id, index, is_summary=is_summary, handle=id if has_handle else None)
            case call:
                tool = self.request.tool_table.wire(call.name)
                if tool.is_custom:
                    return CustomCallOutput(f"ctc_{self.id}_{index}", index, call.id, tool)
                return FunctionCallOutput(f"fc_{self.id}_{index}", index, call.id, tool)


def response_body(context: AnswerContext, choice: Collected) -> ResponseBody:
    """A whole answer."""
    parts = visible_parts(choice)
    status = final_status(choice.finished)
    output: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        item_status = status if index == len(parts) - 1 else COMPLETED
        item = context.item(part, index)
        item.feed(piece(part))
        item.closing(item_status)
        output.append(item.body(item_status))
    return context.body(status, output, usage_body(choice.finished.usage, num_reasoning_tokens(choice)))


def piece(delta: ContentDelta) -> str:
    """What it adds to its item."""
    return delta.text if isinstance(delta, TextDelta | ReasoningDelta) else delta.arguments


def final_status(finished: Finished) -> Literal["completed", "incomplete"]:
    return INCOMPLETE if finished.reason is FinishReason.LENGTH else COMPLETED


def usage_body(usage: Usage, num_reasoning: int) -> ResponseUsageBody:
    return ResponseUsageBody(
        usage.prompt_tokens,
        CachedTokens(usage.reused_tokens),
        usage.completion_tokens,
        ReasoningTokens(num_reasoning),
        usage.prompt_tokens + usage.completion_tokens,
    )
