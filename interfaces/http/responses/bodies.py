"""The parts of a response's body: the whole one, its usage, and its errors.

Agents compact a conversation on the code `context_length_exceeded` and "maximum context length is N tokens", codex on
the code alone. So every overflow has that code here, and its own code begins the message. codex repeats a
`server_error`, waits on a `rate_limit_exceeded` as long as the message says, and gives up on the others.
"""

from dataclasses import replace
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from domain.errors import ContextOverflow, DomainError, InvalidRequest, QueueFull
from domain.request.request import Usage
from interfaces.http.answering.collected import PredictionTokens, prediction_counts
from interfaces.http.errors import ErrorBody, Problem, openai_error, problem_of


class ResponseError(Struct):
    code: str
    message: str


def responses_error(problem: Problem) -> ErrorBody:
    """OpenAI's shape of an error; every overflow has the one code that agents act on."""
    if problem.overflow is None or problem.code == ContextOverflow.code:
        return openai_error(problem)
    message = f"{problem.code}: {problem.message}"
    return openai_error(replace(problem, code=ContextOverflow.code, message=message))


def response_error(error: DomainError) -> ResponseError:
    message = responses_error(problem_of(error)).error.message
    match error:
        case ContextOverflow():
            return ResponseError(ContextOverflow.code, message)
        case InvalidRequest():
            return ResponseError("invalid_prompt", message)
        case QueueFull(retry_after_s=wait_s):
            return ResponseError("rate_limit_exceeded", f"{message}; try again in {wait_s}s")
        case _:
            return ResponseError("server_error", message)


class CachedTokens(Struct):
    """Parts of a prompt. `cached_tokens`: reused and not computed. What is computed is kept, and not counted as
    written. `image_tokens`: of images; left out without any."""

    cached_tokens: int
    cache_write_tokens: int = 0
    image_tokens: int | UnsetType = UNSET


class ReasoningTokens(PredictionTokens):
    reasoning_tokens: int


class ResponseUsageBody(Struct):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteBody(Struct):
    """`limit`: Cairn's own, where an answer that calls tools of servers reached one: `max_steps` or `max_tool_calls`;
    OpenAI's clients know no reason of that name."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"
    limit: str | UnsetType = UNSET


class ResponseBody(Struct, kw_only=True):
    """A response, whole or in progress. `output`: items of type `reasoning`, `message`, `function_call`,
    `custom_tool_call`, `compaction`, `mcp_list_tools`, `mcp_call` and `mcp_approval_request`. `completed_at`: null
    unless it is completed. The request's fields are repeated."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[dict[str, Any]]
    error: ResponseError | None
    incomplete_details: IncompleteBody | None
    usage: ResponseUsageBody | None
    background: Literal[False] = False
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"


def usage_body(usage: Usage, num_reasoning: int) -> ResponseUsageBody:
    return ResponseUsageBody(
        usage.prompt_tokens,
        CachedTokens(usage.reused_tokens, image_tokens=usage.image_tokens or UNSET),
        usage.completion_tokens,
        ReasoningTokens(num_reasoning, **prediction_counts(usage)),
        usage.prompt_tokens + usage.completion_tokens,
    )
