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
from domain.request.request import FinishReason
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, StreamItem, TextDelta, ToolCallDelta
from interfaces.http.answering.dialect import Started
from interfaces.http.errors import MemoryNumbers, Problem, memory_numbers, overflow_words, problem_of


class OllamaError(Struct):
    """`error` begins with the path of the offending field, where there is one."""

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


def error_line(error: DomainError) -> bytes:
    return msgspec.json.encode(ollama_error(problem_of(error))) + b"\n"


class CallFunction(Struct):
    index: int
    name: str
    arguments: dict[str, Any]


class CallBody(Struct):
    id: str
    function: CallFunction


class Answer(Struct, kw_only=True):
    """Durations in nanoseconds, there once `done`: `load_duration` until the prompt was ready for the model, then until
    the first token, then until the last."""

    model: str
    created_at: str
    done: bool
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


class ChatAnswer(Answer, kw_only=True):
    message: AnswerMessage


class GenerateAnswer(Answer, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[CallBody] | UnsetType = UNSET


@dataclass(slots=True)
class Piece:
    """What one line tells."""

    content: str = ""
    thinking: str = ""
    calls: list[CallBody] = field(default_factory=list[CallBody])

    def add(self, part: ContentDelta) -> None:
        """`part`: text as far as it goes, but a call must be whole."""
        match part:
            case TextDelta(text=text):
                self.content += text
            case ReasoningDelta(text=text):
                self.thinking += text
            case ToolCallDelta():
                arguments = _object_of(part.arguments)
                if arguments is None:
                    self.content += f"{part.name} {part.arguments}"
                else:
                    self.calls.append(CallBody(part.id, CallFunction(part.index, part.name, arguments)))

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.thinking or self.calls)


Shape = Callable[[Piece, dict[str, Any]], Answer]
"""An answer with this piece; the fields that all answers have."""


def chat_answer(piece: Piece, fields: dict[str, Any]) -> ChatAnswer:
    message = AnswerMessage(piece.content, piece.thinking or UNSET, piece.calls or UNSET)
    return ChatAnswer(**fields, message=message)


def generate_answer(piece: Piece, fields: dict[str, Any]) -> GenerateAnswer:
    return GenerateAnswer(
        **fields, response=piece.content, thinking=piece.thinking or UNSET, tool_calls=piece.calls or UNSET
    )


@dataclass(frozen=True, slots=True)
class Teller:
    """Makes the objects of one answer. `asked_ns`, `submitted_ns`: as in Started."""

    model: str
    shape: Shape
    clock: Clock
    asked_ns: int
    submitted_ns: int

    @classmethod
    def of(cls, started: Started, name: str | None, shape: Shape) -> "Teller":
        """`name`: what the client called the model."""
        clock = started.context.services.clock
        return cls(name or started.model, shape, clock, started.context.arrived_ns, started.submitted_ns)

    def piece(self, piece: Piece) -> Answer:
        return self.shape(piece, self._fields(done=False))

    def last(self, piece: Piece, finished: Finished, first_ns: int) -> Answer:
        """`first_ns`: when the first content came; 0 if none did."""
        now_ns = self.clock.now_ns()
        first_ns = first_ns or now_ns
        usage = finished.usage
        fields = self._fields(
            done=True,
            done_reason="length" if finished.reason is FinishReason.LENGTH else "stop",
            total_duration=now_ns - self.asked_ns,
            load_duration=self.submitted_ns - self.asked_ns,
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_duration=first_ns - self.submitted_ns,
            eval_count=usage.completion_tokens,
            eval_duration=now_ns - first_ns,
        )
        return self.shape(piece, fields)

    def _fields(self, **fields: Any) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.clock.unix_ns() / 1e9, UTC)
        return {"model": self.model, "created_at": f"{at:%Y-%m-%dT%H:%M:%S.%f}Z", **fields}


def _object_of(arguments: str) -> dict[str, Any] | None:
    """None for what is no JSON object, as where the answer was cut off: it is told as text, so that nobody runs it."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return None


MEDIA_TYPE = "application/x-ndjson"


class LineFraming:
    """A Framing for one choice."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._first_ns = 0
        self._call: list[ToolCallDelta] = []
        """The pieces of the call that has not ended yet."""

    def begin(self) -> bytes:
        return b""

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._content(item)
            case Finished():
                return self._told(self._ended_call()) + _line(self._teller.last(Piece(), item, self._first_ns))
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        return _line(self._teller.piece(Piece()))

    def end(self) -> bytes:
        return b""

    def fail(self, error: DomainError) -> bytes:
        return error_line(error)

    def _content(self, delta: ContentDelta) -> bytes:
        self._first_ns = self._first_ns or self._teller.clock.now_ns()
        if isinstance(delta, ToolCallDelta):
            if self._call and self._call[0].merges_with(delta):
                self._call.append(delta)
                return b""
            ended = self._ended_call()
            self._call = [delta]
            return self._told(ended)
        piece = self._ended_call() if delta.text else Piece()
        piece.add(delta)
        return self._told(piece)

    def _ended_call(self) -> Piece:
        piece = Piece()
        if self._call:
            piece.add(self._call[0].merged(self._call[1:]))
            self._call = []
        return piece

    def _told(self, piece: Piece) -> bytes:
        return b"" if piece.is_empty else _line(self._teller.piece(piece))


def _line(answer: Answer) -> bytes:
    return msgspec.json.encode(answer) + b"\n"
