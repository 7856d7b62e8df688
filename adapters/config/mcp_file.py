"""A file of tool servers in the form that other programs share: JSON, a table for each server by name below `servers`
or `mcpServers`. Its values become those of `[mcp.servers.NAME]`; no error repeats one, which may be a secret."""

import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from application.mcp_settings import NAME_FORM
from domain.tool_server_names import is_server_name

MAX_BYTES = 1 << 20

TABLES = ("servers", "mcpServers")
"""The names of the table of all servers; the first one that is there is taken."""

_TIMEOUT = "default_timeout"
_SAME = frozenset({"command", "args", "env", "url", "headers", "tools", "approval"})
_KINDS = {"stdio": "command", "http": "url", "streamable-http": "url", "streamable_http": "url"}
_KNOWN = _SAME | {"name", "type", "transport", "timeout", "enabled", "disabled"}


class InvalidMcpFile(ValueError):
    """An invalid file; the message begins with the path of what is wrong in it."""


def read_mcp_file(path: str) -> Mapping[str, dict[str, object]]:
    """Returns the table of each server, with the names and types that `[mcp.servers.NAME]` has. Raises
    InvalidMcpFile."""
    content = _content(path)
    above: dict[str, object] = {"timeout": content[_TIMEOUT]} if _TIMEOUT in content else {}
    if above:
        _seconds(above["timeout"], _TIMEOUT)
    section = next((one for one in TABLES if one in content), TABLES[0])
    tables = _object(content.get(section, {}), section)
    for name in tables:
        if not is_server_name(name):
            raise InvalidMcpFile(f"{section} has the name {name!r}: {NAME_FORM}")
    return {name: dict(_settings(above, table, f"{section}.{name}")) for name, table in tables.items()}


def _content(path: str) -> dict[str, object]:
    try:
        with Path(path).expanduser().open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
            mode = stat.S_IMODE(Path(path).expanduser().stat().st_mode)
        if len(text) > MAX_BYTES:
            raise InvalidMcpFile("the file is larger than 1 MiB")
        if mode & stat.S_IWOTH:
            raise InvalidMcpFile("everybody may write the file, whose commands are run: chmod o-w")
        content = _object(json.loads(text, object_pairs_hook=_unique), "the file")
    except OSError as error:
        raise InvalidMcpFile(f"the file cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InvalidMcpFile("the file is nested too deeply") from None
    except InvalidMcpFile:
        raise
    except ValueError as error:
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "the file"
        raise InvalidMcpFile(f"{where} is not valid JSON") from None
    for name in content.keys() - {*TABLES, _TIMEOUT}:
        raise InvalidMcpFile(f"{name} is not a key of it: use {TABLES[1]}")
    return content


def _settings(above: dict[str, object], found: object, path: str) -> Iterator[tuple[str, object]]:
    table = {**above, **_object(found, path)}
    for unknown in table.keys() - _KNOWN:
        raise InvalidMcpFile(f"{path}.{unknown} is not a key of a server: use {', '.join(sorted(_KNOWN))}")
    for key in ("type", "transport"):
        kind = table.get(key, "stdio" if "command" in table else "http")
        if not isinstance(kind, str) or kind not in _KINDS:
            raise InvalidMcpFile(f"{path}.{key} must be stdio, http or streamable-http")
        if _KINDS[kind] not in table:
            raise InvalidMcpFile(f"{path}.{_KINDS[kind]} must be given: {key} is {kind}")
    flags = {key: table[key] for key in ("enabled", "disabled") if key in table}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidMcpFile(f"{path}.{key} must be true or false")
    yield "enabled", bool(flags.get("enabled", True)) and not flags.get("disabled", False)
    if "timeout" in table:
        yield "timeout_s", _seconds(table["timeout"], f"{path}.timeout")
    yield from ((key, table[key]) for key in _SAME & table.keys())


def _seconds(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.1 <= value <= 3600:
        raise InvalidMcpFile(f"{path} must be in 0.1..3600 seconds")
    return float(value)


def _object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidMcpFile(f"{path} must be an object")
    return cast("dict[str, object]", value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, _ in pairs if [one for one, _ in pairs].count(name) > 1)
        raise InvalidMcpFile(f"{twice} is given twice in one object")
    return found
