"""Settings from their sources: defaults, then the configuration file, then CAIRN_* variables, then flags.

The source of each value is recorded. An unknown name or a wrong type in any source is refused with its path.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from adapters.config.fields import (
    SettingField,
    as_written,
    fields_of,
    from_text,
    from_typed,
    is_section,
    setting_fields,
)
from adapters.config.mcp_file import InvalidMcpFile, read_mcp_file
from application.settings import McpSettings, ModelTable, Settings, ToolServerSettings
from application.shown_setting import Origin, ShownSetting
from domain.errors import DomainError, InvalidRequest

T = TypeVar("T")

OTHER_VARIABLES = frozenset({"CAIRN_CONFIG", "CAIRN_BLAS"})
"""Variables of Cairn that are not settings."""

DEFAULT = "default"

MODEL_ARGUMENT = "MODEL"
"""The only positional argument of commands that is a setting."""

SECTION = "models"
SERVERS = "mcp.servers"


class InvalidSettings(DomainError):
    """Invalid settings; the message names the path and the source."""

    code = "invalid_settings"


@dataclass(frozen=True, slots=True)
class Flag:
    """A value given on the command line. `name`: as it is typed, `--port`."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings and the source of each. `origins`: for each path, `default`, the file, the variable or the flag that
    decided it. `overridden`: the file or variable that gave another value than the flag, by path. `environ`, `flags`:
    the variables and flags among the sources."""

    settings: Settings
    origins: Mapping[str, str]
    overridden: Mapping[str, str]
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False)
    flags: Mapping[str, Flag] = dataclasses.field(default_factory=dict[str, Flag], repr=False)

    def with_text(self, text: str) -> "LoadedSettings":
        """The settings from the same sources with another text of the file. Raises InvalidSettings."""
        return load_settings(self.environ, self.flags, text)


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    origin: str


def load_settings(
    environ: Mapping[str, str], flags: Mapping[str, Flag] | None = None, text: str | None = None
) -> LoadedSettings:
    """Reads every source once. `flags` by path, only those that were given. `text`: of the file, which is not read
    then. Raises InvalidSettings."""
    known = setting_fields()
    file, flags = config_file(environ), flags or {}
    tables = _read(environ, file, text)
    models = _tables(ModelTable, SECTION, tables.pop(SECTION, {}), str(file))
    servers = _tables(ToolServerSettings, SERVERS, _taken_out(tables, SERVERS, file), str(file))
    given: dict[str, _Given] = {}
    given.update(_from_table(tables, "", known, str(file)))
    given.update(_from_environment(environ, known))
    flagged = dict(_from_flags(flags, known))
    overridden = {
        path: given[path].origin for path in flagged.keys() & given.keys() if given[path].value != flagged[path].value
    }
    given.update(flagged)
    origins = {path: given[path].origin if path in given else DEFAULT for path in known}
    settings = replace(_built(Settings, "", given), models=models)
    settings = replace(settings, mcp=_with_servers(settings.mcp, servers))
    origins |= {f"{SERVERS}.{name}": settings.mcp.config for name in settings.mcp.servers.keys() - servers.keys()}
    return LoadedSettings(settings, origins, overridden, environ, flags)


def _read(environ: Mapping[str, str], file: Path, text: str | None) -> dict[str, object]:
    """Returns the file's tables; none without a file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8") if text is None else text)
    except FileNotFoundError:
        if environ.get("CAIRN_CONFIG"):
            raise InvalidSettings(f"CAIRN_CONFIG names {file}, which does not exist") from None
        return {}
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{file}: {error}") from error


def _from_table(
    table: object, prefix: str, known: Mapping[str, SettingField], file: str
) -> Iterator[tuple[str, _Given]]:
    """Yields the values of a table of the file, and of the tables in it. `prefix`: the table's path with a dot; empty
    for the whole file."""
    for name, value in _as_dict(table, prefix.removesuffix("."), file).items():
        path = prefix + name
        if path in known:
            yield path, _typed(known[path], value, file)
        elif any(one.startswith(f"{path}.") for one in known):
            yield from _from_table(value, f"{path}.", known, file)
        else:
            tables = {one.rpartition(".")[0] for one in known}
            raise _unknown(path, {*known, *tables, SECTION, SERVERS}, file)


def _taken_out(tables: dict[str, object], path: str, file: Path) -> object:
    """Returns the table at `path`, SECTION.NAME, and takes it out of the others."""
    section, _, name = path.partition(".")
    if section not in tables:
        return {}
    rest = {**_as_dict(tables[section], section, str(file))}
    found = rest.pop(name, {})
    tables[section] = rest
    return found


def _tables(kind: type[T], section: str, tables: object, origin: str) -> Mapping[str, T]:
    """Returns the tables of single models or servers by their names."""
    found: dict[str, T] = {}
    for name, table in _as_dict(tables, section, origin).items():
        prefix = _prefix(section, name)
        given = dict(_from_table(table, prefix, fields_of(kind, prefix), origin))
        found[name] = _built(kind, prefix, given)
    return found


def _prefix(section: str, name: str) -> str:
    return f"{section}.{name}." if section == SERVERS else f'{section}."{name}".'


def _with_servers(mcp: McpSettings, servers: Mapping[str, ToolServerSettings]) -> McpSettings:
    """Returns the settings with the servers of the configuration file and of the one that `config` names."""
    try:
        tables: Mapping[str, object] = read_mcp_file(mcp.config) if mcp.config else {}
        for name in tables.keys() & servers.keys():
            raise InvalidMcpFile(f"the server {name} is in the configuration file too: rename one")
        more = _tables(ToolServerSettings, SERVERS, tables, mcp.config)
        return replace(mcp, servers={**servers, **more})
    except InvalidMcpFile as error:
        raise InvalidSettings(f"{error} ({mcp.config})") from None
    except InvalidSettings as error:
        place = f" ({mcp.config})"
        raise InvalidSettings(error.message.removesuffix(place) + place) from None
    except InvalidRequest as error:
        raise InvalidSettings(error.message) from None


def _as_dict(value: object, path: str, file: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidSettings(f"{path} must be a table, written [{path}], in {file}")
    return cast(dict[str, object], value)


def _from_environment(environ: Mapping[str, str], known: Mapping[str, SettingField]) -> Iterator[tuple[str, _Given]]:
    by_variable = {field.variable: field for field in known.values()}
    for variable in sorted(name for name in environ if name.startswith("CAIRN_") and name not in OTHER_VARIABLES):
        field = by_variable.get(variable)
        if field is None:
            raise _unknown(variable, by_variable, "the environment")
        try:
            value = from_text(environ[variable], field.type, field.is_optional, field.separator)
        except ValueError as error:
            raise InvalidSettings(
                f"{field.path} {error}, not {_quoted(environ[variable], field)} ({variable})"
            ) from None
        yield field.path, _Given(value, variable)


def _from_flags(flags: Mapping[str, Flag], known: Mapping[str, SettingField]) -> Iterator[tuple[str, _Given]]:
    for path, flag in flags.items():
        yield path, _typed(known[path], flag.value, flag.name)


def _typed(field: SettingField, value: object, origin: str) -> _Given:
    try:
        return _Given(from_typed(value, field.type, field.is_optional), origin)
    except ValueError as error:
        raise InvalidSettings(f"{field.path} {error}, not {_quoted(value, field)} ({origin})") from None


def _quoted(value: object, field: SettingField) -> str:
    return "the value given" if field.is_secret else repr(value)


def _built(kind: type[T], prefix: str, given: Mapping[str, _Given]) -> T:
    """Makes a settings class and those in it, and checks ranges; a range error names the source of the value at
    fault."""
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        path = prefix + name
        if path in given:
            values[name] = given[path].value
        elif is_section(hint):
            values[name] = _built(hint, f"{path}.", given)
    try:
        return kind(**values)
    except InvalidRequest as error:
        path, message = error.param or "", error.message
        if not path.startswith(prefix):
            path, message = prefix + path, prefix + message
        raise InvalidSettings(f"{message} ({given[path].origin})" if path in given else message) from None


def _unknown(name: str, known: Collection[str], origin: str) -> InvalidSettings:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return InvalidSettings(f"{name} is not a setting ({origin}){hint}")


def config_file(environ: Mapping[str, str]) -> Path:
    """Returns the path of the configuration file, which need not exist unless CAIRN_CONFIG names it."""
    named = environ.get("CAIRN_CONFIG", "")
    if named:
        return Path(named).expanduser()
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification has relative paths ignored
        base = Path(environ.get("HOME") or Path.home()) / ".config"
    return base / "cairn" / "config.toml"


def shown_settings(settings: Settings, origins: Mapping[str, str], file: str) -> Sequence[ShownSetting]:
    """Returns the settings in the order of their classes, then what the tables of models and servers set. `origins`:
    as in LoadedSettings; empty for settings that were made in code. `file`: the file of the tables."""
    found: list[ShownSetting] = []
    for path, field in setting_fields().items():
        value = _value(settings, path)
        source = origins.get(path, DEFAULT if value == field.default else "")
        origin = _origin(source, field)
        found.append(ShownSetting(path, _shown(value, field), origin, "" if origin is Origin.DEFAULT else source))
    for name, table in settings.models.items():
        found += _shown_table(ModelTable, table, _prefix(SECTION, name), file)
    for name, server in settings.mcp.servers.items():
        named = origins.get(f"{SERVERS}.{name}", file)
        found += _shown_table(ToolServerSettings, server, _prefix(SERVERS, name), named)
    return found


def _shown_table(kind: type, table: object, prefix: str, file: str) -> Iterator[ShownSetting]:
    """Yields what a table sets. `file`: it is in; empty for one that was made in code."""
    for path, field in fields_of(kind, prefix).items():
        if (value := _value(table, path.removeprefix(prefix))) != field.default:
            yield ShownSetting(path, _shown(value, field), Origin.FILE if file else Origin.CODE, file)


def _value(settings: object, path: str) -> object:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


def _shown(value: object, field: SettingField) -> object:
    return ("set" if value else "unset") if field.is_secret else as_written(value)


def _origin(source: str, field: SettingField) -> Origin:
    if source in ("", DEFAULT):
        return Origin.DEFAULT if source else Origin.CODE
    if source == field.variable:
        return Origin.ENVIRONMENT
    return Origin.FLAG if source.startswith("-") or source == MODEL_ARGUMENT else Origin.FILE
