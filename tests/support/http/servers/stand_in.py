"""A stand-in for a part of a server, which a lent application keeps in its place."""

from typing import Any


class StandIn:
    """For one part of a server: its attributes, and calls of it. At first for nothing, so routes keep neither."""

    def __init__(self) -> None:
        self._part: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._part(*arguments)

    def stands_for(self, part: object) -> None:
        self._part = part
