"""The settings of a running server, in one holder that its parts read where they need a value, and keep no copy of.

Only what CHANGEABLE and the fields of a model's table name changes while a server runs; everything else is read at the
start. Nothing among them names a folder, an address, a key or a program.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from application.settings import NOTHING_SET, ModelTable, Settings
from domain.ids import ModelId

CHANGEABLE = ("server.aliases", "server.image_hosts", "server.log_level", "model.idle_ttl")

_OF_MODEL = re.compile(r'models\."(.{1,256})"\.(pin|idle_ttl|sampling\.[a-z_]+)')


def of_model(path: str) -> tuple[ModelId, str] | None:
    """The model and the field of a setting of a model's table that may change, such as `sampling.top_p`; None for any
    other path."""
    found = _OF_MODEL.fullmatch(path)
    return None if found is None else (ModelId(found[1]), found[2])


def is_changeable(path: str) -> bool:
    return path in CHANGEABLE or of_model(path) is not None


class LiveSettings:
    """`now`: the settings, and `origins`: what decided each, as LoadedSettings has it. Replaced as a whole, in the
    event loop; read from any thread."""

    def __init__(self, settings: Settings, origins: Mapping[str, str] | None = None) -> None:
        self.now = settings
        self.origins: Mapping[str, str] = origins or {}
        self._followers: list[Callable[[], object]] = []

    def follow(self, call: Callable[[], object]) -> None:
        """Has `call` run after each change, for a part that must act on it."""
        self._followers.append(call)

    def table(self, id: ModelId) -> ModelTable:
        """The table of a model; without any value if it has none."""
        return self.now.models.get(id, NOTHING_SET)

    def take(self, read: Settings, origins: Mapping[str, str], paths: Iterable[str]) -> None:
        """Takes the values of these paths, all of them changeable, from settings that were read, and leaves the
        others."""
        changed, paths = self.now, list(paths)
        for path in paths:
            changed = _with_value(changed, read, path)
        self.now = changed
        self.origins = {**self.origins, **{path: origins[path] for path in paths if path in origins}}
        for call in self._followers:
            call()


def _with_value(settings: Settings, read: Settings, path: str) -> Settings:
    if (found := of_model(path)) is not None:
        name, (field, _, _) = found[0], found[1].partition(".")
        value: dict[str, Any] = {field: getattr(read.models.get(name, NOTHING_SET), field)}
        table = replace(settings.models.get(name, NOTHING_SET), **value)
        return replace(settings, models={**settings.models, name: table})
    section, _, field = path.partition(".")
    value = {field: getattr(getattr(read, section), field)}
    return replace(settings, **{section: replace(getattr(settings, section), **value)})
