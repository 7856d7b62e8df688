"""Errors of the domain name the domain's fields; clients want to read the name they sent."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import copy

from domain.errors import InvalidRequest


@contextmanager
def renamed(names: Mapping[str, str]) -> Generator[None, None, None]:
    """Inside, an InvalidRequest about a field in `names` is raised anew under the wire's name for it, with all else
    that it says."""
    try:
        yield
    except InvalidRequest as error:
        param = error.param or ""
        name = names.get(param)
        if name is None:
            raise
        told = copy(error)
        told.message, told.param = error.message.replace(param, name, 1), name
        told.args = (told.message,)
        raise told from None


__all__ = ("renamed",)
