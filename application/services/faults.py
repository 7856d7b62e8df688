"""Errors as they may be kept: without the frames of the call that failed, whose variables hold its arrays."""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def bare(error: E) -> E:
    """The same error without traceback, cause and context, so that keeping it keeps nothing else alive."""
    error.__traceback__ = None
    error.__cause__ = None
    error.__context__ = None
    return error


def described(error: BaseException) -> str:
    """For people who look for a defect."""
    return f"{type(error).__name__}: {error}"


__all__ = ("bare", "described")
