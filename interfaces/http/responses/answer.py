"""A response as an answer: one body, which the numbered events of a stream repeat up to the current state, and errors.

    created in_progress+ (output_item.added ... output_item.done)* (completed | incomplete | failed)

`in_progress` is also the keep-alive: codex counts every event, and no comment. There is no `[DONE]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from litestar.openapi.spec import Link
from msgspec import UNSET, Raw

from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.request.document import DocumentKey
from domain.request.request import FinishReason
from domain.request.stream import (
    AnswerPrepared,
    ContentDelta,
    Finished,
    ReasoningDelta,
    ServerCallEnded,
    ServerCallItem,
    ServerCallsBegan,
    StreamItem,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from interfaces.http.answering.collected import (
    Collected,
    is_blank,
    opening,
)
from interfaces.http.answering.dialect import Operation, Started, sse_comment, sse_event
from interfaces.http.answering.token_logprobs import TokenLogprobBody, TopLogprob, token_logprobs
from interfaces.http.fields.sampling_fields import openai_tier
from interfaces.http.responses.bodies import IncompleteBody, ResponseBody, ResponseUsageBody, response_error, usage_body
from interfaces.http.responses.compaction import NoSummary
from interfaces.http.responses.output_items import (
    COMPLETED,
    INCOMPLETE,
    CallOutput,
    CompactionOutput,
    Event,
    MessageOutput,
    OutputItem,
    ReasoningOutput,
)
from interfaces.http.responses.prepared import answering, prepared
from interfaces.http.responses.request import ResponsesRequest, resolved
from interfaces.http.responses.server_items import ApprovalOutput, ServerCallOutput, whole_items
from interfaces.http.responses.server_tools import MCP, SECRETS, call_item_id
from interfaces.http.responses.stored import OUTPUT_ITEM, RESPONSE, TURN, Turn

STORED_LINKS = {
    operation: Link(operation_id=operation, parameters={"response_id": "$response.body#/id"})
    for operation in ("getResponse", "listInputItems", "deleteResponse")
}
"""Links from a response to its operations once it is stored."""


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """The request of a response, and the fields that it determines."""

    request: ResponsesRequest
    started: Started

    def body(
        self,
        status: Literal["in_progress", "completed", "incomplete", "failed"],
        output: Sequence[dict[str, Any]] = (),
        usage: ResponseUsageBody | None = None,
        error: DomainError | None = None,
        limit: str = "",
    ) -> ResponseBody:
        """`limit`: the field that made it incomplete; empty for the length of the answer."""
        request, started = self.request, self.started
        return ResponseBody(
            id=started.id,
            created_at=started.created_s,
            completed_at=started.context.services.clock.unix_ns() // 1_000_000_000 if status == COMPLETED else None,
            status=status,
            model=started.model,
            output=list(output),
            error=None if error is None else response_error(error),
            incomplete_details=IncompleteBody(limit=limit or UNSET) if status == "incomplete" else None,
            usage=usage,
            frequency_penalty=request.frequency_penalty or 0.0,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
            metadata=request.metadata or {},
            parallel_tool_calls=request.parallel_tool_calls is not False,
            presence_penalty=request.presence_penalty or 0.0,
            previous_response_id=request.previous_response_id,
            prompt_cache_key=request.prompt_cache_key,
            reasoning={"effort": request.effort, "summary": request.reasoning and request.reasoning.summary},
            safety_identifier=request.safety_identifier,
            service_tier=openai_tier(started.priority),
            store=request.store is not False,
            temperature=1.0 if request.temperature is None else request.temperature,
            text={"format": request.format or {"type": "text"}},
            tool_choice=request.tool_choice or "auto",
            tools=[_repeated(tool) for tool in request.tools or ()],
            top_logprobs=request.top_logprobs or 0,
            top_p=1.0 if request.top_p is None else request.top_p,
        )

    def item(self, part: ContentDelta, index: int, step: int = 0) -> OutputItem:
        """The item that begins with this part of the answer. `step`: the number of it, where servers' tools are
        called."""
        name = f"{self.started.id}_{index}"
        if self.request.work is not None:
            return CompactionOutput(f"cmp_{name}", index, self.request.work)
        match part:
            case TextDelta():
                return MessageOutput(f"msg_{name}", index)
            case ReasoningDelta():
                id, request = f"rs_{name}", self.request
                is_summary = request.reasoning is not None and request.reasoning.summary not in (None, "none")
                has_handle = "reasoning.encrypted_content" in (request.include or ())
                return ReasoningOutput(id, index, is_summary=is_summary, handle=id if has_handle else None)
            case call:
                tool = self.request.tool_table.wire(call.name)
                if tool.server is not None and tool.server.needs_approval:
                    id = call_item_id("mcpr", self.started.id, step, call.id)
                    return ApprovalOutput(id, index, tool.server)
                if tool.server is not None:
                    id = call_item_id("mcp", self.started.id, step, call.id)
                    return ServerCallOutput(id, index, call.id, tool.server)
                prefix = "ctc" if tool.is_custom else "fc"
                if self.request.servers:
                    return CallOutput(call_item_id(prefix, self.started.id, step, str(index)), index, call.id, tool)
                return CallOutput(f"{prefix}_{name}", index, call.id, tool)

    def keep(self, answer: ResponseBody) -> None:
        """Stores the answer, its turn and its items, unless the client declined that. Returns at once."""
        request, context = self.request, self.started.context
        if request.store is False:
            return
        owner = context.document_owner(request.cache_salt)
        output = [Raw(msgspec.json.encode(item)) for item in answer.output]
        turn = Turn(answer.previous_response_id, request.own_items, output)
        bodies = {
            DocumentKey(owner, RESPONSE, answer.id): msgspec.json.encode(answer),
            DocumentKey(owner, TURN, answer.id): msgspec.json.encode(turn),
        }
        for item, raw in zip(answer.output, output, strict=True):
            bodies[DocumentKey(owner, OUTPUT_ITEM, item["id"])] = bytes(raw)
        context.services.documents.keep(bodies, answer.model, context.arrived_ns)


def _repeated(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as it was sent, without its secrets; a function with all fields that OpenAI's document and Open Responses
    require."""
    if tool.get("type") == MCP:
        return {name: value for name, value in tool.items() if name not in SECRETS}
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


class AnswerItems:
    """The items of one answer, made of its deltas. `output`: those that have ended."""

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self._open: tuple[ContentDelta, OutputItem] | None = None
        """The part that is being sent, and its item."""
        self._unsent: tuple[TokenLogprob, ...] = ()
        """Log probabilities of tokens that show no text yet."""
        self.output: list[dict[str, Any]] = [*context.request.made]
        self.num_reasoning = 0
        self._calls: dict[str, ServerCallOutput] = {}
        """The calls of servers' tools whose arguments are whole, until they have ended."""
        self._step, self._step_is_over = 0, False

    def note(self, item: ServerCallItem) -> list[Event]:
        """The events of what is made before the first step, and of calls that the server runs."""
        if isinstance(item, AnswerPrepared):
            assert isinstance(item.made, ResponsesRequest)
            made = item.made.made[len(self.output) :]
            events = whole_items(made, len(self.output))
            self.context, self.output = replace(self.context, request=item.made), [*self.output, *made]
            return events
        if isinstance(item, ServerCallsBegan):
            self._step_is_over = True
            return self.close(COMPLETED)
        call = self._calls.pop(item.call_id)
        events, self.output[call.index] = call.ended(item.outcome)
        return events

    def feed(self, delta: ContentDelta) -> list[Event]:
        if isinstance(delta, ReasoningDelta):
            self.num_reasoning += len(delta.token_ids)
        if isinstance(delta, TextDelta) and self.context.request.shows_logprobs:
            self._unsent += delta.logprobs
        if is_blank(delta) or (self.context.request.work is not None and not isinstance(delta, TextDelta)):
            return []
        before: list[Event] = []
        self._step, self._step_is_over = self._step + self._step_is_over, False
        if self._open is None or not self._open[0].merges_with(delta):
            before = self.close(COMPLETED)
            self._open = opening(delta), self.context.item(delta, len(self.output), self._step)
            before += self._open[1].opening()
        logprobs = self._logprobs() if isinstance(delta, TextDelta) else ()
        return before + self._open[1].feed(_piece(delta), logprobs)

    def close(self, status: str) -> list[Event]:
        """The end of the item that is open, if one is."""
        if self._open is None:
            return []
        (part, item), self._open = self._open, None
        rest = self._logprobs() if isinstance(part, TextDelta) else ()
        closing = (item.feed("", rest) if rest else []) + item.closing(status)
        if isinstance(item, ServerCallOutput):
            self._calls[item.call_id] = item
        if status != INCOMPLETE or not isinstance(item, ApprovalOutput):
            self.output.append(item.body(status))
        return closing

    def _logprobs(self) -> list[dict[str, Any]]:
        unsent, self._unsent = self._unsent, ()
        return [_logprob(entry) for entry in token_logprobs(unsent, self.context.started.tokenizer)]


def _logprob(entry: TokenLogprobBody | TopLogprob) -> dict[str, Any]:
    """A log probability as this dialect has it: the bytes of a token that is no whole character are empty, not null."""
    top = {"top_logprobs": [_logprob(one) for one in entry.top_logprobs]} if isinstance(entry, TokenLogprobBody) else {}
    return {"token": entry.token, "logprob": entry.logprob, "bytes": entry.bytes or [], **top}


def response_body(request: ResponsesRequest, started: Started, choices: Sequence[Collected]) -> ResponseBody:
    """Returns the whole answer, that of the only choice, and stores it."""
    items, choice = AnswerItems(AnswerContext(request, started)), choices[0]
    for item in choice.items or choice.deltas:
        if isinstance(item, ServerCallItem):
            items.note(item)
        else:
            items.feed(item)
    return final_body(items, choice.finished)


def final_body(items: AnswerItems, finished: Finished) -> ResponseBody:
    """Returns the answer of a request that has finished well, and stores it. Closes the last item if it is open. Raises
    NoSummary for a compaction without one."""
    status, context = final_status(finished), items.context
    items.close(status)
    if context.request.work is not None:
        status = COMPLETED  # the item says what was cut off; clients go on from a completed response only
        if not items.output:
            raise NoSummary
    answer = context.body(status, items.output, usage_body(finished.usage, items.num_reasoning), limit=finished.limit)
    context.keep(answer)
    return answer


def _piece(delta: ContentDelta) -> str:
    """The text that a delta adds to its item."""
    return delta.text if isinstance(delta, TextDelta | ReasoningDelta) else delta.arguments


def final_status(finished: Finished) -> Literal["completed", "incomplete"]:
    return INCOMPLETE if finished.reason is FinishReason.LENGTH else COMPLETED


class ResponseFraming:
    """A Framing for one choice. `answer`: the whole one, once it has finished well."""

    def __init__(self, request: ResponsesRequest, started: Started) -> None:
        self._items = AnswerItems(AnswerContext(request, started))
        self._num_events = 0
        self.answer: ResponseBody | None = None

    def begin(self) -> bytes:
        body = self._context.body("in_progress")
        opening = self._response("created", body) + self._response("in_progress", body)
        return opening + self._events(whole_items(self._items.output))

    @property
    def _context(self) -> AnswerContext:
        return self._items.context

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._events(self._items.feed(item))
            case AnswerPrepared() | ServerCallsBegan() | ServerCallEnded():
                return self._events(self._items.note(item))
            case Finished():
                closing = self._events(self._items.close(final_status(item)))
                self.answer = final_body(self._items, item)
                return closing + self._response(self.answer.status, self.answer)
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        body = self._context.body("in_progress", self._items.output)
        return sse_comment(progress.text) + self._response("in_progress", body)

    def end(self) -> bytes:
        return b""

    def fail(self, error: DomainError) -> bytes:
        return self._response("failed", self._context.body("failed", self._items.output, error=error))

    def _response(self, what: str, body: ResponseBody) -> bytes:
        return self._events([{"type": f"response.{what}", "response": body}])

    def _events(self, events: list[Event]) -> bytes:
        return b"".join(self._event(event) for event in events)

    def _event(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._num_events}
        self._num_events += 1
        return sse_event(msgspec.json.encode(numbered), event["type"])


CREATE_RESPONSE = Operation(
    path="/v1/responses",
    operation_id="createResponse",
    body_type=ResponsesRequest,
    answer_type=ResponseBody,
    answer=response_body,
    framing=ResponseFraming,
    resolved=resolved,
    prepared=prepared,
    answering=answering,
    discriminator="input",
    noun="a response",
    links=STORED_LINKS,
)
