"""OpenAI's shape of an error as a body, and as the `error` of a response that failed, in the words its clients act on.

Agents compact a conversation on the code `context_length_exceeded` and "maximum context length is N tokens", codex on
nothing but the code: so it is the code of every overflow here, and what else it is begins the message. codex
repeats a `server_error`, waits on a `rate_limit_exceeded` as long as the message says, and gives up on the others.
"""

from msgspec import UNSET, Struct, UnsetType

from domain.errors import ContextOverflow, DomainError, InvalidRequest, QueueFull
from interfaces.http.errors import MemoryNumbers, Problem, memory_numbers, overflow_words, problem_of

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ResponseProblemDetail(Struct):
    """`param` is the path of the offending request field, where there is one."""

    message: str
    type: str
    param: str | None
    code: str
    memory: MemoryNumbers | UnsetType = UNSET


class ResponseProblem(Struct):
    error: ResponseProblemDetail


class ResponseError(Struct):
    code: str
    message: str


def error_body(problem: Problem) -> ResponseProblem:
    default = "server_error" if problem.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(problem.status, default)
    code = problem.code if problem.overflow is None else ContextOverflow.code
    return ResponseProblem(ResponseProblemDetail(_message(problem), kind, problem.param, code, memory_numbers(problem)))


def response_error(error: DomainError) -> ResponseError:
    message = _message(problem_of(error))
    match error:
        case ContextOverflow():
            return ResponseError(ContextOverflow.code, message)
        case InvalidRequest():
            return ResponseError("invalid_prompt", message)
        case QueueFull(retry_after_s=wait_s):
            return ResponseError("rate_limit_exceeded", f"{message}; try again in {wait_s}s")
        case _:
            return ResponseError("server_error", message)


def _message(problem: Problem) -> str:
    if problem.overflow is None:
        return problem.message
    told = problem.message if problem.code == ContextOverflow.code else f"{problem.code}: {problem.message}"
    return f"{told}; {overflow_words(problem.overflow)}"
