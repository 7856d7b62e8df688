"""The fields of one entry's JSON, each read as what it must be: anything else is InvalidExport, by entry and field."""

import json
from collections.abc import Collection
from typing import cast

from application.ports.record_transfer import InvalidExport
from domain.record import ID_BYTES

_HEX = frozenset("0123456789abcdef")


class Fields:
    """`number`: of the entry, from 1 on, for messages."""

    def __init__(self, text: bytes, number: int) -> None:
        self._number = number
        try:
            content: object = json.loads(text)
        except (ValueError, RecursionError):
            raise self.wrong("JSON", "cannot be read") from None
        if not isinstance(content, dict):
            raise self.wrong("JSON", "is not an object")
        self._content = cast("dict[str, object]", content)

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def wrong(self, name: str, why: str) -> InvalidExport:
        """The error to raise."""
        return InvalidExport(f"entry {self._number} of the export: {name} {why}")

    def expect(self, names: Collection[str]) -> None:
        """Exactly these are here."""
        for name in names:
            if name not in self._content:
                raise self.wrong(name, "is missing")
        if unknown := sorted(self._content.keys() - set(names)):
            raise self.wrong(repr(unknown[0][:40]), "is no field of an entry")

    def text(self, name: str, max_bytes: int) -> str:
        value = self._content.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "is not a text")
        try:
            size_bytes = len(value.encode())
        except UnicodeEncodeError:
            raise self.wrong(name, "is not Unicode") from None
        if size_bytes > max_bytes:
            raise self.wrong(name, f"exceeds {max_bytes} bytes")
        return value

    def identifier(self, name: str) -> bytes:
        """A namespace, a hash or a digest."""
        value = self._content.get(name)
        if not isinstance(value, str) or len(value) != 2 * ID_BYTES or not set(value) <= _HEX:
            raise self.wrong(name, f"is not {ID_BYTES} bytes in hexadecimal digits")
        return bytes.fromhex(value)

    def whole(self, name: str, low: int, high: int) -> int:
        return self._whole(name, self._content.get(name), low, high)

    def wholes(self, name: str, max_count: int, low: int, high: int) -> list[int]:
        return [self._whole(name, item, low, high) for item in self._list(name, max_count)]

    def rows(self, name: str, max_count: int, width: int, high: int) -> list[list[int]]:
        """A list of lists of `width` whole numbers from 0 to `high`."""
        found: list[list[int]] = []
        for row in self._list(name, max_count):
            if not isinstance(row, list) or len(cast("list[object]", row)) != width:
                raise self.wrong(name, f"has an item that is not {width} numbers")
            found.append([self._whole(name, item, 0, high) for item in cast("list[object]", row)])
        return found

    def _list(self, name: str, max_count: int) -> list[object]:
        value = self._content.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "is not a list")
        items = cast("list[object]", value)
        if len(items) > max_count:
            raise self.wrong(name, f"has {len(items)} items and may have {max_count}")
        return items

    def _whole(self, name: str, value: object, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"has {str(value)[:40]} where a whole number from {low} to {high} belongs")
        return value


__all__ = ("Fields",)
