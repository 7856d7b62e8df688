"""Ollama's shape of an error, as a body and as the last line of a stream."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from domain.errors import DomainError, PrefillMemoryExceeded
from interfaces.http.errors import MemoryNumbers, Problem, memory_numbers, overflow_words, problem_of


class OllamaError(Struct):
    """`error` begins with the path of the offending field, where there is one."""

    error: str
    memory: MemoryNumbers | UnsetType = UNSET


def error_body(problem: Problem) -> OllamaError:
    message = problem.message
    if problem.overflow is not None:
        message += f"; {overflow_words(problem.overflow)}"
    if problem.param is not None and problem.param not in message:
        message = f"{problem.param}: {message}"
    if isinstance(problem.overflow, PrefillMemoryExceeded):
        message = f"{problem.code}: {message}"
    return OllamaError(message, memory_numbers(problem))


def error_line(error: DomainError) -> bytes:
    return msgspec.json.encode(error_body(problem_of(error))) + b"\n"
