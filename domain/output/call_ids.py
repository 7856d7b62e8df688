"""Ids of the calls in one answer: unique in the conversation, in the form that the model's family knows."""

import re
from collections.abc import Callable, Iterable

_NUMBERED = re.compile(r"(.*:)[0-9]+")


class CallIds:
    """`taken`: ids in the conversation so far. An id that the model wrote itself is kept, since its template renders
    the id again; where it is taken, one that ends in a number gets another number. `num_chars`: how long others are."""

    __slots__ = ("_new_id", "_next", "_num_chars", "_taken")

    def __init__(self, new_id: Callable[[], str], taken: Iterable[str] = (), num_chars: int | None = None) -> None:
        self._new_id = new_id
        self._taken = set(taken)
        self._next = len(self._taken)
        self._num_chars = num_chars

    def take(self, wanted: str = "") -> str:
        numbered = _NUMBERED.fullmatch(wanted)
        found = wanted or self._new()
        while found in self._taken:
            if numbered:
                found = f"{numbered[1]}{self._next}"
                self._next += 1
            else:
                found = self._new()
        self._taken.add(found)
        return found

    def _new(self) -> str:
        return self._new_id()[-self._num_chars :] if self._num_chars else self._new_id()


__all__ = ("CallIds",)
