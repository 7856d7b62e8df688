"""Anthropic's shape of an error, as a body and as an event in a stream, in the words that its clients act on.

Claude Code compacts a conversation on "prompt is too long", asks again with fewer `max_tokens` where the numbers say
so, and gives up on every other 400.
"""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from domain.errors import ContextOverflow, DomainError, PrefillMemoryExceeded, RequestCancelled
from interfaces.http.answering import sse
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
    """`error.message` begins with the path of the offending field, where there is one."""

    error: MessageErrorDetail


def error_body(problem: Problem) -> MessageErrorBody:
    message = problem.message if problem.overflow is None else _overflow(problem.overflow)
    return MessageErrorBody(MessageErrorDetail(_type(problem), message, memory_numbers(problem)))


def error_event(error: DomainError) -> bytes:
    """The last event of a stream that failed."""
    return sse.event(msgspec.json.encode(error_body(problem_of(error))), "error")


def _type(problem: Problem) -> str:
    if problem.code == RequestCancelled.code:  # who hears of an overload asks again by itself
        return "api_error"
    default = "api_error" if problem.status >= 500 else "invalid_request_error"
    return _TYPES.get(problem.status, default)


def _overflow(error: ContextOverflow) -> str:
    """The words first, then what is behind them where it is not the context that is too small."""
    if not error.context_length:
        told = "prompt is too long"
    elif error.num_wanted:
        told = (
            f"input length and `max_tokens` exceed context limit: {error.num_prompt} + {error.num_wanted} >"
            f" {error.context_length}, decrease input length or `max_tokens` and try again"
        )
    else:
        told = f"prompt is too long: {error.num_prompt} tokens > {error.context_length} maximum"
    return f"{told} ({error.code}: {error.message})" if isinstance(error, PrefillMemoryExceeded) else told
