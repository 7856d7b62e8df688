"""Ollama's shape of an error, as a body and as the last line of a stream."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from domain.errors import DomainError
from interfaces.http.errors import MemoryNumbers, Problem, memory_numbers, problem_of


class OllamaError(Struct):
    """`error` begins with the path of the offending field, where there is one."""

    error: str
    memory: MemoryNumbers | UnsetType = UNSET


def error_body(problem: Problem) -> OllamaError:
    message = problem.message
    if problem.overflow is not None:
        message += f"; this model's maximum context length is {problem.overflow.context_length} tokens"
    if problem.param is not None and problem.param not in message:
        message = f"{problem.param}: {message}"
    numbers = memory_numbers(problem)
    return OllamaError(message if numbers is UNSET else f"{problem.code}: {message}", numbers)


def error_line(error: DomainError) -> bytes:
    return msgspec.json.encode(error_body(problem_of(error))) + b"\n"


__all__ = ("OllamaError", "error_body", "error_line")
