"""The text of a configuration file: other values in it, its comments and order kept, and what differs between two.

No edit is believed: the result is read again, and must be what was there with the other values.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Array

from application.live_settings import of_model
from application.ports.settings_file import NewValue
from domain.errors import InvalidRequest

_SECRET_NAMES = frozenset({"api_key", "salt", "shared_password"})
_SECRET_TABLES = frozenset({"env", "headers"})
_HEADING = re.compile(r"\s*\[.*\]\s*(#.*)?")


def edited(text: str, changes: Mapping[str, NewValue]) -> str:
    """The text with other values at these paths; None takes one out. Raises InvalidRequest for a text that is written
    in a way that cannot be edited."""
    wanted: dict[str, Any] = tomllib.loads(text)
    found = ""
    with suppress(TOMLKitError, TypeError, ValueError, AttributeError, KeyError, IndexError):
        document = tomlkit.parse(text)
        for path, value in changes.items():
            _put(wanted, keys_of(path), value)
            _put_item(document, keys_of(path), value)
        found = tomlkit.dumps(document)
        found = f"{found}\n" if found and not found.endswith("\n") else found
        if tomllib.loads(found) == wanted:
            return found
    raise InvalidRequest("the configuration file is written in a way that cannot be edited here: edit it by hand")


def keys_of(path: str) -> Sequence[str]:
    """The keys that lead to a setting: `models."a.b".pin` gives models, a.b and pin."""
    model = of_model(path)
    return path.split(".") if model is None else ["models", model[0], *model[1].split(".")]


def difference(old: str, new: str) -> str:
    """The lines that differ, each change below the heading of its table. Values of secrets are left out, also where
    they stand in a line that differs."""
    was, now = _public(old).splitlines(), _public(new).splitlines()
    return "\n".join(_changed(was, now))


def _changed(was: list[str], now: list[str]) -> Iterator[str]:
    last = None
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        is_headed = next((bool(_HEADING.fullmatch(line)) for line in now[j1:j2] if line.strip()), False)
        heading = next((line for line in reversed(now[:j1]) if _HEADING.fullmatch(line)), None)
        if heading is not None and heading != last and not is_headed:
            yield f"  {heading}"
        last = heading
        yield from (f"- {line}" for line in was[i1:i2])
        yield from (f"+ {line}" for line in now[j1:j2])


def _public(text: str) -> str:
    """The text without secrets: their values, and comments that hold one like `api_key = ...`."""
    document = tomlkit.parse(text)
    _mask(document)
    lines = tomlkit.dumps(document).splitlines()
    return "\n".join(re.sub(r"(#.*\b(?:api_key|salt|shared_password)\b).*", r"\1 ...", line) for line in lines)


def _mask(table: Any, *, is_secret: bool = False) -> None:
    for name, value in list(table.items()):
        if isinstance(value, Mapping):
            _mask(value, is_secret=is_secret or name in _SECRET_TABLES)
        elif is_secret or name in _SECRET_NAMES:
            table[name] = "..."


def _put(table: dict[str, Any], keys: Sequence[str], value: NewValue) -> None:
    for key in keys[:-1]:
        table = table.get(key, {}) if value is None else table.setdefault(key, {})
    if value is None:
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = value


def _put_item(table: Any, keys: Sequence[str], value: NewValue) -> None:
    for depth, key in enumerate(keys[:-1]):
        if key not in table:
            if value is None:
                return
            # A table that only holds others is left unwritten: `[models."a"]` needs no `[models]`.
            table[key] = tomlkit.table(is_super_table=depth < len(keys) - 2)
        table = table[key]
    if value is None:
        if keys[-1] in table:
            del table[keys[-1]]
    elif isinstance(value, list) and isinstance(here := table.get(keys[-1]), Array):
        _change_array(here, value)
    else:
        table[keys[-1]] = value


def _change_array(here: Array, wanted: list[str]) -> None:
    """Takes single items out and puts others in: what stays keeps its line and comment."""
    was = [str(one) for one in cast("list[object]", list(here))]
    for tag, i1, i2, j1, j2 in reversed(SequenceMatcher(None, was, wanted, autojunk=False).get_opcodes()):
        if tag != "equal":
            for at in reversed(range(i1, i2)):
                del here[at]
            for at, one in enumerate(wanted[j1:j2]):
                here.insert(i1 + at, one)
