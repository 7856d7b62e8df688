"""A row of ids: a prompt as token ids or as key ids (see `prompt_content`), at four bytes an id.

It is made once, where a text is encoded or a client's ids are read. From there on it is sent, hashed, compared, cut and
kept as it lies: 200,000 tokens are one piece of memory, and Python integers are made only of ids that are read one by
one. A part of a row has bytes of its own, so that a block that is kept does not keep its whole prompt.

A row never changes, and is equal to every row, tuple or list of the same ids.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import eq
from typing import cast, overload

MAX_TOKEN_ID = (1 << 32) - 1
ID_BYTES = 4
SHOWN_IDS = 32

_CODE = "I"
assert array(_CODE).itemsize == ID_BYTES, "this platform's unsigned int has another size"


class IdRow(Sequence[int]):
    """Any thread. `ids`: from 0 to MAX_TOKEN_ID; raises ValueError for others."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Iterable[int] = ()) -> None:
        if isinstance(ids, IdRow):
            self._ids: array[int] = ids._ids
            return
        try:
            self._ids = array(_CODE, ids if isinstance(ids, list | tuple) else iter(ids))
        except OverflowError:
            raise ValueError(f"token ids must be in 0..{MAX_TOKEN_ID}") from None

    @classmethod
    def of_bytes(cls, data: "bytes | bytearray | memoryview") -> "IdRow":
        """Returns the row that `to_bytes` encoded. Raises ValueError for an incomplete id."""
        ids = array(_CODE)
        ids.frombytes(data)
        return _row(_little_endian(ids))

    @classmethod
    def joined(cls, rows: "Iterable[IdRow]") -> "IdRow":
        """Returns the concatenation of rows."""
        ids = array(_CODE)
        for row in rows:
            ids += row._ids
        return _row(ids)

    def to_bytes(self) -> bytes:
        """Returns the ids as uint32, little endian: the form in which they are hashed and sent."""
        return _little_endian(self._ids).tobytes()

    def followed_by(self, ids: Iterable[int]) -> "IdRow":
        """Returns the row with more ids appended. Raises as the constructor."""
        return IdRow.joined((self, IdRow(ids)))

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "IdRow": ...
    def __getitem__(self, index: int | slice) -> "int | IdRow":
        if isinstance(index, slice):
            return _row(self._ids[index])
        return self._ids[index]

    def __contains__(self, value: object) -> bool:
        return value in self._ids

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IdRow):
            return self._ids == other._ids
        if isinstance(other, tuple | list):
            ids = cast("Sequence[object]", other)
            return len(self._ids) == len(ids) and all(map(eq, self._ids, ids))
        return NotImplemented

    def __hash__(self) -> int:
        """Returns the hash of the tuple that it is equal to."""
        return hash(tuple(self._ids))

    def __reduce__(self) -> tuple[object, ...]:
        return IdRow.of_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        """Returns a short text, so that a log or a failed comparison holds no whole prompt."""
        rest = "" if len(self) <= SHOWN_IDS else f" and {len(self) - SHOWN_IDS} more"
        return f"IdRow({self._ids[:SHOWN_IDS].tolist()}{rest})"


def _row(ids: "array[int]") -> IdRow:
    """Returns a row that owns the array, which must not change any more."""
    made = IdRow.__new__(IdRow)
    made._ids = ids  # pyright: ignore[reportPrivateUsage]
    return made


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids
