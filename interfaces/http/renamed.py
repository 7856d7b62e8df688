"""Errors of the domain name the domain's fields; clients want to read the name they sent."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from domain.errors import InvalidRequest


@contextmanager
def renamed(names: Mapping[str, str]) -> Generator[None, None, None]:
    """Inside, an InvalidRequest about a field in `names` is raised anew under the wire's name for it."""
    try:
        yield
    except InvalidRequest as error:
        name = names.get(error.param or "")
        if name is None:
            raise
        raise type(error)(error.message.replace(error.param or "", name, 1), param=name) from None


__all__ = ("renamed",)
