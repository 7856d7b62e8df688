"""What can be set, read off the settings dataclasses: one field a dotted path such as `server.port`.

Adding a field to a settings class is all it takes to make it settable by file, environment and flags, unless it
is FIXED.
"""

import os
import types
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from application.settings import FIXED, Settings

PATH_LISTS = frozenset({"model.dirs"})
"""Lists of paths, separated in variables as in PATH; others are separated by commas."""

SECRETS = frozenset({"server.api_key", "cache.salt"})
"""Shown as set or unset, never as what they are."""


@dataclass(frozen=True, slots=True)
class SettingField:
    """`type` is the plain type (int, ByteSize, tuple ...); `is_optional`: None is allowed as well."""

    path: str
    type: type
    is_optional: bool
    default: object

    @property
    def is_secret(self) -> bool:
        return self.path in SECRETS

    @property
    def separator(self) -> str:
        """Between the items of a list in an environment variable."""
        return os.pathsep if self.path in PATH_LISTS else ","

    @property
    def variable(self) -> str:
        """The environment variable that sets it: `CAIRN_SERVER__PORT`."""
        return "CAIRN_" + self.path.upper().replace(".", "__")


def setting_fields() -> Mapping[str, SettingField]:
    """Every field by path, in the order of the settings classes."""
    found: dict[str, SettingField] = {}
    defaults = Settings()
    for section in sections():
        section_defaults: Any = getattr(defaults, section.name)
        hints = get_type_hints(cast(type, section.type))
        for name in (one.name for one in fields(section_defaults) if not one.metadata.keys() & FIXED):
            path = f"{section.name}.{name}"
            plain, is_optional = plain_type(hints[name])
            found[path] = SettingField(path, plain, is_optional, getattr(section_defaults, name))
    return found


def sections() -> list[Field[Any]]:
    """The settings classes, by the names of their tables."""
    return [field for field in fields(Settings) if is_dataclass(field.type)]


def plain_type(hint: Any) -> tuple[type, bool]:
    """The type without None, and whether None is allowed."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not types.NoneType]
        return plain_type(inner[0])[0], True
    return get_origin(hint) or hint, False
