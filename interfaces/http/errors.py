"""The status of each error, one table for every dialect; a dialect only shapes the body (see `Problem`).

No request is answered with a 5xx other than 503 because of its content; 500 is a failed computation or a defect.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import cast

from litestar.exceptions import HTTPException, ValidationException
from msgspec import UNSET, Struct, UnsetType

from domain.errors import (
    MAX_MESSAGE_CHARS,
    ComputeFailed,
    ContextOverflow,
    DocumentNotFound,
    DomainError,
    InvalidRequest,
    LimitReached,
    ModelLoadFailed,
    ModelNotFound,
    NotAllowed,
    PrefillMemoryExceeded,
    QueueFull,
    RequestNotFound,
    ServerUnavailable,
    SettingsChanged,
    TemplateFailed,
    ToolCallFailed,
    ToolNotFound,
)
from domain.printable import printable

CLIENT_LEFT_STATUS = 499
"""Never read by a client; it keeps clients that left out of the server's own errors."""

STATUS: Mapping[type[DomainError], int] = {
    InvalidRequest: 400,
    ContextOverflow: 400,
    TemplateFailed: 400,
    NotAllowed: 403,
    ModelNotFound: 404,
    DocumentNotFound: 404,
    RequestNotFound: 404,
    ToolNotFound: 404,
    SettingsChanged: 409,
    LimitReached: 429,
    ModelLoadFailed: 503,
    QueueFull: 503,
    ServerUnavailable: 503,
    ToolCallFailed: 503,
    ComputeFailed: 500,
    DomainError: 500,
}

_HTTP_CODES: Mapping[int, str] = {
    400: "invalid_request",
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    CLIENT_LEFT_STATUS: "client_left",
}

_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}

_FOLDERS = re.compile(r"(?<![\w.:/-])~?/(?:[^\s/'\":,()]+/)+")
"""Absolute paths up to their last part: which folders this machine has is for its log, not for clients."""

_LEFT_WHILE_SENDING = "client disconnected prematurely"
"""Litestar's message, in a server error, when a client disconnects before its body is complete."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as clients see it. `is_defect`: it was not foreseen, so it is logged and counted. `overflow`: the
    error itself if it is one, for dialects with clients that read its numbers."""

    status: int
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    is_defect: bool = False
    overflow: ContextOverflow | None = None


def overflow_words(error: ContextOverflow) -> str:
    """Returns the sentence on which agents of any dialect shorten a conversation; without numbers if the engine does
    not know them."""
    if not error.context_length:
        return "the prompt is too long"
    return f"this model's maximum context length is {error.context_length} tokens"


class MemoryNumbers(Struct):
    """The numbers of a refusal for memory: bytes needed at the worst moment, those there for one request when no other
    runs, the mark that nothing crosses; and in tokens, the longest prompt that would fit with an answer as long."""

    estimated_bytes: int
    available_bytes: int
    limit_bytes: int
    largest_prompt_tokens: int


def memory_numbers(problem: Problem) -> MemoryNumbers | UnsetType:
    """The numbers of a refusal for memory; left out of the body of every other error."""
    error = problem.overflow
    if not isinstance(error, PrefillMemoryExceeded):
        return UNSET
    return MemoryNumbers(error.estimated_bytes, error.available_bytes, error.limit_bytes, error.largest_prompt)


class ClientLeft(HTTPException):
    """The client closed its connection before its answer was ready."""

    status_code = CLIENT_LEFT_STATUS


def problem_of(error: Exception) -> Problem:
    """Returns any exception as a Problem, without a stack trace or the text of an unforeseen exception."""
    if isinstance(error, DomainError):
        return _domain_problem(error)
    if isinstance(error, HTTPException):
        return _http_problem(error)
    return Problem(500, "internal_error", "internal error; the server's log has the details", is_defect=True)


def _domain_problem(error: DomainError) -> Problem:
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers: dict[str, str] = {}
    if error.retryable:  # agents give up unless a header permits a retry
        headers["Retry-After"] = str(error.retry_after_s if isinstance(error, QueueFull | ServerUnavailable) else 1)
    elif status >= 500:
        headers["x-should-retry"] = "false"  # OpenAI's clients retry every other 5xx
    overflow = error if isinstance(error, ContextOverflow) else None
    message = error.message if status < 500 else _FOLDERS.sub("", error.message)
    return Problem(status, error.code, message, error.param, headers, overflow=overflow)


def _http_problem(error: HTTPException) -> Problem:
    if error.detail == _LEFT_WHILE_SENDING:
        return Problem(CLIENT_LEFT_STATUS, "client_left", error.detail)
    if error.status_code >= 500:
        return Problem(500, "internal_error", "internal error; the server's log has the details", is_defect=True)
    if isinstance(error, ValidationException):
        return _invalid(error)
    code = _HTTP_CODES.get(error.status_code, "invalid_request")
    return Problem(
        error.status_code, code, printable(error.detail, MAX_MESSAGE_CHARS), headers=dict(error.headers or {})
    )


def _invalid(error: ValidationException) -> Problem:
    """A parameter of the address; bodies are decoded elsewhere, so that all that is left of them is an absent one."""
    problems = cast("list[dict[str, object]]", error.extra if isinstance(error.extra, list) else [])
    found = next((one for one in problems if one.get("source") == "query"), None)
    if found is None:
        return Problem(400, "invalid_request", "the body is empty; it must be a JSON object")
    name, reason = printable(str(found.get("key"))), printable(str(found.get("message")), MAX_MESSAGE_CHARS)
    return Problem(400, "invalid_request", f"{name}: {reason}", name)


@contextmanager
def renamed(names: Mapping[str, str]) -> Generator[None, None, None]:
    """Names fields in errors as the client sent them: inside, an InvalidRequest about a domain field in `names` is
    raised anew under the wire's name for it, with all else that it says."""
    try:
        yield
    except InvalidRequest as error:
        param = error.param or ""
        name = names.get(param)
        if name is None:
            raise
        renamed_error = copy(error)
        renamed_error.message, renamed_error.param = error.message.replace(param, name, 1), name
        renamed_error.args = (renamed_error.message,)
        raise renamed_error from None


class ErrorDetail(Struct):
    """An error. `param` is the path of the offending request field, where there is one."""

    message: str
    type: str
    param: str | None
    code: str
    memory: MemoryNumbers | UnsetType = UNSET


class ErrorBody(Struct):
    error: ErrorDetail


def openai_error(problem: Problem) -> ErrorBody:
    """OpenAI's shape of an error, which Cairn's own routes have too. An overflow of the context is described in the
    words on which agents compact a conversation."""
    message = problem.message
    if problem.overflow is not None:
        message += f"; {overflow_words(problem.overflow)}"
    default = "server_error" if problem.status >= 500 else "invalid_request_error"
    kind = _OPENAI_TYPES.get(problem.status, default)
    return ErrorBody(ErrorDetail(message, kind, problem.param, problem.code, memory_numbers(problem)))
