"""Answers of Ollama's dialect: one object, or a line a piece, and errors. The last line, and a whole answer, report why
it ended and what it took.

    piece* (piece with done | error)

Tool calls are sent whole, so each waits for its end. The keep-alive is an empty piece: clients wait for the next line,
whatever is in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from application.ports.clock import Clock
from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError, PrefillMemoryExceeded
from domain.half_pairs import without_halves
from domain.request.request import FinishReason
from domain.request.stream import (
    ContentDelta,
    Finished,
    ReasoningDelta,
    StreamItem,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from interfaces.http.answering.collected import Collected, PredictionTokens, prediction_counts
from interfaces.http.answering.dialect import Started
from interfaces.http.answering.token_logprobs import TokenLogprobBody, token_logprobs
from interfaces.http.errors import MemoryNumbers, Problem, memory_numbers, overflow_words, problem_of


class OllamaError(Struct):
    """An error; `error` begins with the path of the offending field, where there is one."""

    error: str
    memory: MemoryNumbers | UnsetType = UNSET


def ollama_error(problem: Problem) -> OllamaError:
    message = problem.message
    if problem.overflow is not None:
        message += f"; {overflow_words(problem.overflow)}"
    if problem.param is not None and problem.param not in message:
        message = f"{problem.param}: {message}"
    if isinstance(problem.overflow, PrefillMemoryExceeded):
        message = f"{problem.code}: {message}"
    return OllamaError(message, memory_numbers(problem))


class CallFunction(Struct):
    index: int
    name: str
    arguments: dict[str, Any]


class CallBody(Struct):
    id: str
    function: CallFunction


class AnswerBody(PredictionTokens, kw_only=True):
    """The fields of every answer. `logprobs`: of its tokens, where requested. Durations in nanoseconds, there once
    `done`: `load_duration` until the prompt was ready for the model, then until the first token, then until the last.
    """

    model: str
    created_at: str
    done: bool
    logprobs: list[TokenLogprobBody] | UnsetType = UNSET
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class AnswerMessage(Struct):
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[CallBody] | UnsetType = UNSET
    role: str = "assistant"


class ChatAnswer(AnswerBody, kw_only=True):
    message: AnswerMessage


class GenerateAnswer(AnswerBody, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[CallBody] | UnsetType = UNSET


@dataclass(slots=True)
class Piece:
    """The content of one line."""

    content: str = ""
    thinking: str = ""
    calls: list[CallBody] = field(default_factory=list[CallBody])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def add(self, part: ContentDelta) -> None:
        """Adds a piece of text, or a whole call."""
        self.logprobs += part.logprobs
        match part:
            case TextDelta(text=text):
                self.content += text
            case ReasoningDelta(text=text):
                self.thinking += text
            case ToolCallDelta():
                try:
                    arguments = msgspec.json.decode(
                        without_halves(part.arguments.encode()) or "{}", type=dict[str, Any]
                    )
                    self.calls.append(CallBody(part.id, CallFunction(part.index, part.name, arguments)))
                except (ValueError, RecursionError):  # cut off, so no JSON object: no client runs it
                    self.content += f"{part.name} {part.arguments}"

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.thinking or self.calls or self.logprobs)


MEDIA_TYPE = "application/x-ndjson"

Shape = Callable[[Piece, dict[str, Any]], AnswerBody]
"""Makes an answer of a piece and of the fields that all answers have."""


def chat_answer(piece: Piece, fields: dict[str, Any]) -> ChatAnswer:
    message = AnswerMessage(piece.content, piece.thinking or UNSET, piece.calls or UNSET)
    return ChatAnswer(**fields, message=message)


def generate_answer(piece: Piece, fields: dict[str, Any]) -> GenerateAnswer:
    return GenerateAnswer(
        **fields, response=piece.content, thinking=piece.thinking or UNSET, tool_calls=piece.calls or UNSET
    )


class OllamaAnswer:
    """The answer to one request: a Framing for its choice, or one object. `name`: the model's, as the client wrote
    it."""

    def __init__(self, name: str | None, started: Started, shape: Shape) -> None:
        self._model = name or started.model
        self._shape = shape
        self._clock = started.context.services.clock
        self._tokenizer = started.tokenizer
        self._arrived_ns, self._submitted_ns, self._first_ns = started.context.arrived_ns, started.submitted_ns, 0
        self._call: list[ToolCallDelta] = []
        """The pieces of the call that has not ended yet."""

    def whole(self, choice: Collected) -> AnswerBody:
        piece = Piece()
        for part in choice.parts():
            piece.add(part)
        return self._last(piece, choice.finished, choice.first_ns)

    def begin(self) -> bytes:
        return b""

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._content(item)
            case Finished():
                return self._line(self._ended_call()) + _encoded(self._last(Piece(), item, self._first_ns))
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        return _encoded(self._body(Piece(), done=False))

    def end(self) -> bytes:
        return b""

    def fail(self, error: DomainError) -> bytes:
        return _encoded(ollama_error(problem_of(error)))

    def _content(self, delta: ContentDelta) -> bytes:
        self._first_ns = self._first_ns or self._clock.now_ns()
        if isinstance(delta, ToolCallDelta):
            if self._call and self._call[0].merges_with(delta):
                self._call.append(delta)
                return b""
            ended = self._ended_call()
            self._call = [delta]
            return self._line(ended)
        piece = self._ended_call() if delta.text else Piece()
        piece.add(delta)
        return self._line(piece)

    def _ended_call(self) -> Piece:
        piece = Piece()
        if self._call:
            piece.add(self._call[0].merged(self._call[1:]))
            self._call = []
        return piece

    def _line(self, piece: Piece) -> bytes:
        return b"" if piece.is_empty else _encoded(self._body(piece, done=False))

    def _last(self, piece: Piece, finished: Finished, first_ns: int) -> AnswerBody:
        """The last object. `first_ns`: the time of the first content; 0 without any."""
        now_ns = self._clock.now_ns()
        first_ns = first_ns or now_ns
        usage = finished.usage
        return self._body(
            piece,
            done=True,
            done_reason="length" if finished.reason is FinishReason.LENGTH else "stop",
            total_duration=now_ns - self._arrived_ns,
            load_duration=self._submitted_ns - self._arrived_ns,
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=first_ns - self._submitted_ns,
            eval_count=usage.completion_tokens,
            eval_duration=now_ns - first_ns,
            **prediction_counts(usage),
        )

    def _body(self, piece: Piece, **fields: Any) -> AnswerBody:
        logprobs = token_logprobs(piece.logprobs, self._tokenizer) or UNSET
        about = {"model": self._model, "created_at": created_at(self._clock), "logprobs": logprobs}
        return self._shape(piece, {**about, **fields})


def created_at(clock: Clock) -> str:
    return f"{datetime.fromtimestamp(clock.unix_ns() / 1e9, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _encoded(body: Struct) -> bytes:
    return msgspec.json.encode(body) + b"\n"
