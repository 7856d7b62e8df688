"""A message as an answer: one body, whose pieces a stream sends in order, and errors.

    message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

Calls that the server runs are blocks of the same message: a step's calls, then their results, each whole as it arrives.

`message_start` waits for the request's admission, because it reports what was reused, or for the first keep-alive.

Claude Code gives up after 300 s without an event that it counts, and counts neither comments nor `ping`: only deltas of
a block. So a keep-alive is an empty delta of the block that is open, or of a text block opened for it; text continues
in that block, and an empty one that clients send back is dropped. Claude Code compacts a conversation on "prompt is too
long", retries with fewer `max_tokens` where the numbers say so, and gives up on every other 400.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from application.services.text_side.answers.answer import Progress
from domain.errors import ContextOverflow, DomainError, PrefillMemoryExceeded, RequestCancelled
from domain.priority import Priority
from domain.request.request import FinishReason, Usage
from domain.request.server_calls import OfferedTool
from domain.request.stream import (
    Admitted,
    AnswerPrepared,
    ContentDelta,
    Finished,
    ReasoningDelta,
    ServerCallEnded,
    ServerCallItem,
    ServerCallsBegan,
    StreamItem,
    TextDelta,
    ToolCallDelta,
)
from interfaces.http.answering.collected import (
    Collected,
    PredictionTokens,
    is_blank,
    num_reasoning_tokens,
    opening,
    prediction_counts,
    visible_parts,
)
from interfaces.http.answering.dialect import Started, sse_comment, sse_event
from interfaces.http.anthropic.conversation import input_of
from interfaces.http.errors import MemoryNumbers, Problem, memory_numbers, problem_of

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessageErrorDetail(Struct):
    type: str
    message: str
    memory: MemoryNumbers | UnsetType = UNSET


class MessageErrorBody(Struct, tag_field="type", tag="error"):
    """An error; `error.message` begins with the path of the offending field, where there is one."""

    error: MessageErrorDetail


def message_error(problem: Problem) -> MessageErrorBody:
    message = problem.message if problem.overflow is None else _overflow(problem.overflow)
    return MessageErrorBody(MessageErrorDetail(_type(problem), message, memory_numbers(problem)))


def _type(problem: Problem) -> str:
    if problem.code == RequestCancelled.code:  # clients repeat a request after an overload by themselves
        return "api_error"
    default = "api_error" if problem.status >= 500 else "invalid_request_error"
    return _TYPES.get(problem.status, default)


def _overflow(error: ContextOverflow) -> str:
    """Returns the sentence that clients match, followed by the real reason if that is not the context's size."""
    if not error.context_length:
        message = "prompt is too long"
    else:
        message = f"prompt is too long: {error.num_prompt} tokens > {error.context_length} maximum"
    return f"{message} ({error.code}: {error.message})" if isinstance(error, PrefillMemoryExceeded) else message


class TextBody(Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBody(Struct, tag_field="type", tag="thinking"):
    """Reasoning; `signature` names the block; clients return it as it is."""

    thinking: str
    signature: str


class ToolUseBody(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, object]


class McpToolUseBody(Struct, tag_field="type", tag="mcp_tool_use"):
    """A call that the server runs."""

    id: str
    name: str
    server_name: str
    input: dict[str, object]


class McpToolResultBody(Struct, tag_field="type", tag="mcp_tool_result"):
    """The result of such a call, or why there is none. Images are notes: this block holds texts only."""

    tool_use_id: str
    is_error: bool
    content: list[TextBody]


BlockBody: TypeAlias = TextBody | ThinkingBody | ToolUseBody | McpToolUseBody | McpToolResultBody


class ThinkingTokens(PredictionTokens):
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


StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn"]


class MessageBody(Struct, kw_only=True):
    """A whole answer, or the message of a stream's first event, in which `stop_reason` is null."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[BlockBody]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsageBody


def message_body(_body: object, started: Started, choices: Sequence[Collected]) -> MessageBody:
    """Returns the whole answer: that of the only choice."""
    choice, blocks = choices[0], _Blocks(started.id)
    content: list[BlockBody] = []
    for is_of_calls, run in groupby(choice.items or choice.deltas, lambda item: isinstance(item, ServerCallItem)):
        if is_of_calls:
            content += [block for item in run if (block := blocks.note(item)) is not None]
            continue
        deltas = tuple(item for item in run if isinstance(item, ContentDelta))
        for part in visible_parts(replace(choice, deltas=deltas)):
            content.append(blocks.body(part, len(content)))
    return MessageBody(
        id=started.id,
        model=started.model,
        content=content,
        stop_reason=stop_reason(choice.finished, blocks.num_own_calls > 0),
        stop_sequence=choice.finished.stop_text,
        usage=usage_body(choice.finished.usage, num_reasoning_tokens(choice), started.priority),
    )


class _Blocks:
    """The blocks that parts of an answer become. `num_own_calls`: of the client's own tools, so far."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._tools: Mapping[str, OfferedTool] = {}
        self.num_own_calls = 0

    def note(self, item: object) -> McpToolResultBody | None:
        """Takes the tools that the server calls; the block of a call that has ended."""
        if isinstance(item, AnswerPrepared):
            self._tools = cast(Mapping[str, OfferedTool], item.made)
        if not isinstance(item, ServerCallEnded):
            return None
        outcome = item.outcome
        return McpToolResultBody(item.call_id, outcome.fault is not None, [TextBody(outcome.text)])

    def body(self, part: ContentDelta, index: int, *, is_signed: bool = True) -> BlockBody:
        """The block number `index`, which this part makes."""
        match part:
            case TextDelta(text=text):
                return TextBody(text)
            case ReasoningDelta(text=text):
                return ThinkingBody(text, signature(self._id, index) if is_signed else "")
            case call if (tool := self._tools.get(call.name)) is not None:
                return McpToolUseBody(call.id, tool.name, tool.server, input_of(call.arguments))
            case call:
                self.num_own_calls += 1
                return ToolUseBody(call.id, call.name, input_of(call.arguments))


def signature(id: str, index: int) -> str:
    """The handle of the thinking block number `index` of a message."""
    return f"{id}.{index}"


def stop_reason(finished: Finished, has_own_calls: bool) -> StopReason:
    """The reason of the end. `has_own_calls`: the client has to answer calls. At a limit of the server's own calls, the
    client sends the answer back to have it continued."""
    if finished.stop_text is not None:
        return "stop_sequence"
    if finished.limit:
        return "tool_use" if has_own_calls else "pause_turn"
    match finished.reason:
        case FinishReason.LENGTH:
            return "max_tokens"
        case FinishReason.TOOL_CALLS:
            return "tool_use"
        case _:
            return "end_turn"


def usage_body(usage: Usage, num_thinking: int, priority: Priority | None = None) -> MessageUsageBody:
    """The token counts of an answer. `num_thinking`: tokens of the completion that are reasoning. `priority`: None for
    the end of a stream, whose beginning has reported it."""
    tier: str | UnsetType = UNSET
    if priority is not None:
        tier = "batch" if priority is Priority.BATCH else "standard"
    return MessageUsageBody(
        usage.computed_tokens,
        0,
        usage.reused_tokens,
        usage.completion_tokens,
        ThinkingTokens(num_thinking, **prediction_counts(usage)),
        tier,
    )


class MessageFraming:
    """A Framing for one choice."""

    def __init__(self, _body: object, started: Started) -> None:
        self._started = started
        self._blocks = _Blocks(started.id)
        self._has_started = False
        self._open: ContentDelta | None = None
        """An empty delta of the block that is open."""
        self._index = -1
        self._num_thinking = 0

    def begin(self) -> bytes:
        return b""

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case Admitted(explanation=explanation):
                return self._start(explanation.stopped_at)
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._start() + self._content(item)
            case AnswerPrepared() | ServerCallsBegan() | ServerCallEnded():
                block = self._blocks.note(item)
                return self._close() + (b"" if block is None else self._begin_block(block) + self._stop_block())
            case Finished():
                return self._start() + self._close() + self._finish(item)
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        alive = sse_comment(progress.text) + self._start()
        still = self._open or TextDelta("")
        return alive + (b"" if self._open else self._begin(still)) + self._delta(still)

    def end(self) -> bytes:
        return _event("message_stop")

    def fail(self, error: DomainError) -> bytes:
        return sse_event(msgspec.json.encode(message_error(problem_of(error))), "error")

    def _start(self, num_reused: int = 0) -> bytes:
        """The first event; empty after the first call."""
        if self._has_started:
            return b""
        self._has_started = True
        usage = usage_body(
            Usage(sum(map(len, self._started.prompts)), 0, {"all": num_reused}), 0, self._started.priority
        )
        message = MessageBody(
            id=self._started.id,
            model=self._started.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
        )
        return _event("message_start", message=message) + _event("ping")

    def _content(self, delta: ContentDelta) -> bytes:
        if isinstance(delta, ReasoningDelta):
            self._num_thinking += len(delta.token_ids)
        if is_blank(delta):
            return b""
        if self._open is not None and self._open.merges_with(delta):
            return self._delta(delta)
        return self._close() + self._begin(delta) + self._delta(delta)

    def _begin(self, delta: ContentDelta) -> bytes:
        self._open = opening(delta)
        return self._begin_block(self._blocks.body(self._open, self._index + 1, is_signed=False))

    def _begin_block(self, block: BlockBody) -> bytes:
        self._index += 1
        return _event("content_block_start", index=self._index, content_block=block)

    def _stop_block(self) -> bytes:
        return _event("content_block_stop", index=self._index)

    def _delta(self, delta: ContentDelta) -> bytes:
        match delta:
            case TextDelta(text=text):
                body = {"type": "text_delta", "text": text}
            case ReasoningDelta(text=text):
                body = {"type": "thinking_delta", "thinking": text}
            case ToolCallDelta(arguments=arguments):
                body = {"type": "input_json_delta", "partial_json": arguments}
        return _event("content_block_delta", index=self._index, delta=body)

    def _close(self) -> bytes:
        """The block that is open, if one is."""
        closed, self._open = self._open, None
        if closed is None:
            return b""
        events = b""
        if isinstance(closed, ReasoningDelta):
            signed = {"type": "signature_delta", "signature": signature(self._started.id, self._index)}
            events = _event("content_block_delta", index=self._index, delta=signed)
        return events + self._stop_block()

    def _finish(self, finished: Finished) -> bytes:
        ended = stop_reason(finished, self._blocks.num_own_calls > 0)
        reason = {"stop_reason": ended, "stop_sequence": finished.stop_text}
        return _event("message_delta", delta=reason, usage=usage_body(finished.usage, self._num_thinking))


def _event(type: str, **fields: Any) -> bytes:
    return sse_event(msgspec.json.encode({"type": type, **fields}), type)
