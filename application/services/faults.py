"""Errors in a form that may be kept and logged: without the frames of the failed call, whose variables hold arrays."""

import re
import sys
import traceback
from pathlib import PurePath
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def bare(error: E) -> E:
    """Returns the same error without traceback, cause and context, so that keeping it keeps nothing else alive."""
    error.__traceback__ = None
    error.__cause__ = None
    error.__context__ = None
    return error


def described(error: BaseException) -> str:
    """Returns the type and message for a log or another process. Characters that UTF-8 lacks (in file names, for
    example) are escaped."""
    return f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()


_NO_ROUTE_ON_MACOS = re.compile(r"\bErr(?:no|or) 65\b")
_ALLOW = "macOS may keep Cairn from the local network: System Settings, Privacy & Security, Local Network"


def explained(message: str) -> str:
    """Returns the message of a failed connection. macOS 15 and later answer an agent that tries to reach the local
    network as if there were no route (EHOSTUNREACH, 65 there); the message then says where that is allowed."""
    is_denied = sys.platform == "darwin" and _NO_ROUTE_ON_MACOS.search(message)
    return f"{message} ({_ALLOW})" if is_denied else message


def placed(error: BaseException) -> str:
    """Returns the type and the place where it was raised, for errors whose message may quote a client's text."""
    raised = traceback.extract_tb(error.__traceback__)[-3:]
    places = ", ".join(f"{PurePath(one.filename).name}:{one.lineno} in {one.name}" for one in raised)
    return f"{type(error).__name__} ({places})" if places else type(error).__name__
