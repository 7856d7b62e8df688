"""Errors as they may be kept: without the frames of the call that failed, whose variables hold its arrays."""

import traceback
from pathlib import PurePath
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def bare(error: E) -> E:
    """The same error without traceback, cause and context, so that keeping it keeps nothing else alive."""
    error.__traceback__ = None
    error.__cause__ = None
    error.__context__ = None
    return error


def described(error: BaseException) -> str:
    """For people who look for a defect. What no UTF-8 has (of file names, for one) is spelled out: it goes to a log,
    and to another process."""
    return f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()


def placed(error: BaseException) -> str:
    """The same of what reads what people said: where it was raised instead of its message, which may quote them."""
    raised = traceback.extract_tb(error.__traceback__)[-3:]
    places = ", ".join(f"{PurePath(one.filename).name}:{one.lineno} in {one.name}" for one in raised)
    return f"{type(error).__name__} ({places})" if places else type(error).__name__
