"""Applications that serve one test after another, for to build one takes ten times as long as all else of a server.

An application holds routes, what the settings say, and the parts it was given. A lent one was given stand-ins: each
passes on to the part of the server that has the application now, and to nothing between two servers. So nothing of a
test is left in it. One whose server failed is not lent again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, cast

from litestar import Litestar

from adapters.fake.environment import FakeClock
from application.settings import ServerSettings
from domain.client import KeyRing
from interfaces.http.app import create_app
from interfaces.http.services import Services

_VERSION = "9.9"
_MAX_KINDS = 8


class _StandIn:
    """For one part of a server: its attributes, and calls of it. At first for nothing, so routes keep neither."""

    def __init__(self) -> None:
        self._part: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._part(*arguments)

    def stands_for(self, part: object) -> None:
        self._part = part


class _LentApp:
    def __init__(self, settings: ServerSettings, default_model: str, names: frozenset[str]) -> None:
        self._parts = {name: _StandIn() for name in names}
        given = {field.name: self._parts.get(field.name) for field in fields(Services)}
        self._parts["clock"].stands_for(FakeClock())  # read once for when the server began, as every such clock tells
        self.app = create_app(
            Services(**{**given, "default_model": default_model}),
            settings,
            version=_VERSION,
            keys=cast(KeyRing, self._parts["keys"]),
        )

    def serves(self, parts: Mapping[str, object]) -> None:
        for name, stand_in in self._parts.items():
            stand_in.stands_for(parts.get(name))


_idle: dict[tuple[ServerSettings, str, frozenset[str]], list[_LentApp]] = {}
"""By all that they are made of: settings, default model, and which parts there are. The last few kinds."""


@contextmanager
def lent_app(services: Services, settings: ServerSettings, keys: KeyRing) -> Iterator[Litestar]:
    """The application for a server of these parts until the block ends."""
    parts = {"keys": keys, **_parts(services)}
    kind = settings, services.default_model, frozenset(parts)
    idle = _idle.pop(kind, [])
    _idle[kind] = idle
    if len(_idle) > _MAX_KINDS:
        del _idle[next(iter(_idle))]
    lent = idle.pop() if idle else _LentApp(*kind)
    lent.serves(parts)
    yield lent.app
    lent.serves({})
    idle.append(lent)


def _parts(whole: Services) -> dict[str, object]:
    named = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return {name: part for name, part in named.items() if not isinstance(part, str | None)}
