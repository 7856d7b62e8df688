"""The settings that exist, derived from the settings dataclasses: one field for each dotted path such as `server.port`;
and their values as written in TOML, environment variables and flags.

Adding a field to a settings class is all it takes to make it settable by file, environment and flags, unless it
is FIXED.
"""

import os
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from application.settings import FIXED, Settings
from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.errors import InvalidRequest

PATH_LISTS = frozenset({"model.dirs"})
"""Lists of paths, separated in variables as in PATH; others are separated by commas."""

SECRETS = frozenset({"server.api_key", "cache.salt", "store.shared_password"})
"""The settings whose values are never printed, only `set` or `unset`."""


@dataclass(frozen=True, slots=True)
class SettingField:
    """A setting that can be set. `type`: the plain type (int, ByteSize, tuple ...); `is_optional`: None is allowed as
    well."""

    path: str
    type: type
    is_optional: bool
    default: object

    @property
    def is_secret(self) -> bool:
        is_of_table = self.path.endswith('".salt') or self.type is Mapping  # of a model, or of a server of tools
        return self.path in SECRETS or is_of_table

    @property
    def separator(self) -> str:
        """The separator of the items of a list in an environment variable."""
        return os.pathsep if self.path in PATH_LISTS else ","

    @property
    def variable(self) -> str:
        """The environment variable that sets it: `CAIRN_SERVER__PORT`."""
        return "CAIRN_" + self.path.upper().replace(".", "__")


def setting_fields() -> Mapping[str, SettingField]:
    """Returns every field of Settings by path, in the order of the settings classes."""
    return fields_of(Settings)


def fields_of(kind: type, prefix: str = "") -> Mapping[str, SettingField]:
    """Returns the fields of a settings class and of those in it, in their order, by path. `prefix`: before each path,
    as `server.`."""
    found: dict[str, SettingField] = {}
    hints = get_type_hints(kind)
    for field in fields(kind):
        path, (plain, is_optional) = prefix + field.name, plain_type(hints[field.name])
        if is_section(plain):
            found |= fields_of(plain, f"{path}.")
        elif plain is Mapping and is_section(get_args(hints[field.name])[1]):
            continue  # tables by name
        elif plain in _NAMES and not field.metadata.keys() & FIXED:
            found[path] = SettingField(path, plain, is_optional, default_of(field))
    return found


def default_of(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def is_section(type: Any) -> bool:
    """True for a settings class, a table of the file; False for a type of values."""
    return is_dataclass(type) and type not in _NAMES


def plain_type(hint: Any) -> tuple[type, bool]:
    """The type without None, and whether None is allowed."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not types.NoneType]
        return plain_type(inner[0])[0], True
    return get_origin(hint) or hint, False


_TRUTH = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
_AUTO = "auto"
"""The name of the default size, where the default is computed."""

_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    ByteSize: "a size such as 16GiB, 500MB, 70% or a number of bytes",
    Duration: "a duration such as 30d or 12h",
    tuple: "a list of texts",
    Mapping: "a table of texts",
}


def from_typed(value: Any, type: type, is_optional: bool) -> object:
    """Returns a checked value that has a type already (TOML, flags). Raises ValueError with the expected type."""
    if is_optional and (value is None or (type is ByteSize and value == _AUTO)):
        return None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if type is ByteSize and is_number and value >= 0:
        return ByteSize(num_bytes=value)
    if type in (ByteSize, Duration) and isinstance(value, str):
        return _parsed(value, type)
    if type is float and is_number:
        return float(value)
    if type is tuple and isinstance(value, list | tuple):
        parts = cast("list[object]", value)
        if all(isinstance(part, str) for part in parts):
            return tuple(parts)
    elif type is Mapping and isinstance(value, dict):
        if all(isinstance(one, str) for one in cast("dict[str, object]", value).values()):
            return cast("dict[str, str]", value)
    elif isinstance(value, type) and (is_number or not isinstance(value, int) or type is bool):
        return value
    raise ValueError(f"must be {_NAMES[type]}")


def from_text(text: str, type: type, is_optional: bool, separator: str = os.pathsep) -> object:
    """Parses a value written as text. Empty means None where None is allowed; `separator`: between the items of a
    list."""
    if is_optional and not text:
        return None
    if type is tuple:
        return tuple(stripped for part in text.split(separator) if (stripped := part.strip()))
    try:
        if type is bool:
            return _TRUTH[text.strip().lower()]
        return from_typed(type(text) if type in (int, float) else text, type, is_optional)
    except (KeyError, ValueError) as error:
        raise ValueError(f"must be {_NAMES[type]}" if type in (bool, int, float) else str(error)) from None


def as_written(value: object) -> object:
    """Returns the value in a TOML-like form in which it could be written."""
    if isinstance(value, ByteSize | Duration):
        return str(value)
    return list(cast(tuple[str, ...], value)) if isinstance(value, tuple) else value


def _parsed(text: str, type: type) -> object:
    try:
        return ByteSize.parse(text) if type is ByteSize else Duration.parse(text)
    except InvalidRequest as error:
        raise ValueError(
            f"must be a size: {error.message}" if type is ByteSize else f"must be {_NAMES[type]}"
        ) from None
