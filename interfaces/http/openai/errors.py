"""OpenAI's shape of an error, as a body and as an event in a stream."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from domain.errors import DomainError
from interfaces.http.answering import sse
from interfaces.http.errors import MemoryNumbers, Problem, memory_numbers, overflow_words, problem_of

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ErrorDetail(Struct):
    """`param` is the path of the offending request field, where there is one."""

    message: str
    type: str
    param: str | None
    code: str
    memory: MemoryNumbers | UnsetType = UNSET


class ErrorBody(Struct):
    error: ErrorDetail


def error_body(problem: Problem) -> ErrorBody:
    message = problem.message
    if problem.overflow is not None:  # in the words on which agents compact a conversation
        message += f"; {overflow_words(problem.overflow)}"
    detail = ErrorDetail(message, _type(problem.status), problem.param, problem.code, memory_numbers(problem))
    return ErrorBody(detail)


def error_event(error: DomainError) -> bytes:
    """The last event but one of a stream that failed; the stream still ends with `[DONE]`."""
    return sse.event(msgspec.json.encode(error_body(problem_of(error)))) + sse.DONE


def _type(status: int) -> str:
    if status in _TYPES:
        return _TYPES[status]
    return "server_error" if status >= 500 else "invalid_request_error"
