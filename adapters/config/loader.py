"""Settings from their sources: defaults, then the configuration file, then CAIRN_* variables, then flags.

The source of each value is recorded. An unknown name or a wrong type in any source is refused with its path.
"""

import difflib
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

from adapters.config.fields import SettingField, as_written, from_text, from_typed, plain_type, sections, setting_fields
from application.ports.shown_setting import Origin, ShownSetting
from application.settings import ModelTable, Settings
from domain.errors import DomainError, InvalidRequest
from domain.request.sampling import SamplingDefaults

OTHER_VARIABLES = frozenset({"CAIRN_CONFIG", "CAIRN_BLAS"})
"""Variables of Cairn that are not settings."""

DEFAULT = "default"

MODEL_ARGUMENT = "MODEL"
"""The only positional argument of commands that is a setting."""

SECTION = "models"
SAMPLING = "sampling"
TABLE_SECRETS = frozenset({"salt"})


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
    decided it."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    origin: str


def load_settings(environ: Mapping[str, str], flags: Mapping[str, Flag] | None = None) -> LoadedSettings:
    """Reads every source once. `flags` by path, only those that were given. Raises InvalidSettings."""
    known = setting_fields()
    file = config_file(environ)
    tables = _read(environ, file)
    try:
        models = model_tables(tables.pop(SECTION, {}))
    except ValueError as error:
        raise InvalidSettings(f"{error} ({file})") from None
    given: dict[str, _Given] = {}
    given.update(_from_file(tables, file, known))
    given.update(_from_environment(environ, known))
    given.update(_from_flags(flags or {}, known))
    origins = {path: given[path].origin if path in given else DEFAULT for path in known}
    return LoadedSettings(replace(_build(given, origins), models=models), origins)


def _read(environ: Mapping[str, str], file: Path) -> dict[str, object]:
    """Returns the file's tables; none without a file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if environ.get("CAIRN_CONFIG"):
            raise InvalidSettings(f"CAIRN_CONFIG names {file}, which does not exist") from None
        return {}
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{file}: {error}") from error


def _from_file(
    tables: Mapping[str, object], file: Path, known: Mapping[str, SettingField]
) -> Iterator[tuple[str, _Given]]:
    names = {section.name for section in sections()}
    for section, table in tables.items():
        if section not in names:
            raise _unknown(section, {*names, SECTION}, str(file))
        if not isinstance(table, dict):
            raise InvalidSettings(f"{section} must be a table, written [{section}], in {file}")
        for name, value in cast(dict[str, object], table).items():
            path = f"{section}.{name}"
            if path not in known:
                raise _unknown(path, known, str(file))
            yield path, _typed(known[path], value, str(file))


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


def _build(given: Mapping[str, _Given], origins: Mapping[str, str]) -> Settings:
    """Builds the sections and checks ranges; a range error names the source of the value at fault."""
    try:
        made = {section.name: _section(section.name, section.type, given) for section in sections()}
        return Settings(**made)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    except InvalidRequest as error:
        origin = origins.get(error.param or "", DEFAULT)
        raise InvalidSettings(error.message if origin == DEFAULT else f"{error.message} ({origin})") from None


def _section(name: str, section: object, given: Mapping[str, _Given]) -> object:
    values = {path.partition(".")[2]: item.value for path, item in given.items() if path.startswith(f"{name}.")}
    return cast(type, section)(**values)


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


def model_tables(section: object) -> Mapping[str, ModelTable]:
    """Returns the tables by the models' names. Raises ValueError with the path of an invalid value."""
    return {name: _table(name, table) for name, table in _as_dict(section, SECTION).items()}


def table_rows(tables: Mapping[str, ModelTable]) -> Mapping[str, object]:
    """Yields the values that tables set, by path; secrets as `set`."""
    rows: dict[str, object] = {}
    for name, table in tables.items():
        for field in fields(ModelTable):
            value = getattr(table, field.name)
            if field.name != SAMPLING and value != field.default:
                rows[f'{SECTION}."{name}".{field.name}'] = "set" if field.name in TABLE_SECRETS else value
        for field in fields(SamplingDefaults):
            if (value := getattr(table.sampling, field.name)) is not None:
                rows[f'{SECTION}."{name}".{SAMPLING}.{field.name}'] = value
    return rows


def _table(name: str, table: object) -> ModelTable:
    path = f'{SECTION}."{name}"'
    values = _as_dict(table, path)
    sampling = _values(SamplingDefaults, values.pop(SAMPLING, {}), f"{path}.{SAMPLING}")
    try:
        defaults = SamplingDefaults(**sampling)
    except InvalidRequest as error:
        raise ValueError(f"{path}.{SAMPLING}.{error.message}") from None
    try:
        return ModelTable(**_values(ModelTable, values, path), sampling=defaults)
    except InvalidRequest as error:
        raise ValueError(f"{path}.{error.message}") from None


def _values(kind: type, table: object, path: str) -> dict[str, Any]:
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != SAMPLING}
    values: dict[str, Any] = {}
    for name, value in _as_dict(table, path).items():
        if name not in hints:
            raise ValueError(f"{path}.{name} is not a setting; the settings are: {', '.join(hints)}")
        try:
            values[name] = from_typed(value, *plain_type(hints[name]))
        except ValueError as error:
            shown = "the value given" if name in TABLE_SECRETS else repr(value)
            raise ValueError(f"{path}.{name} {error}, not {shown}") from None
    return values


def _as_dict(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a table, written [{path}]")
    return dict(cast(dict[str, object], value))


def shown_settings(settings: Settings, origins: Mapping[str, str], file: str) -> Sequence[ShownSetting]:
    """Returns the settings in the order of their classes, those of single models last. `origins`: as in LoadedSettings;
    empty for settings that were made in code. `file`: the file of the models' tables."""
    return [*_fields(settings, origins), *_tables(settings, file)]


def _fields(settings: Settings, origins: Mapping[str, str]) -> Iterator[ShownSetting]:
    for path, field in setting_fields().items():
        section, name = path.split(".")
        value: object = getattr(getattr(settings, section), name)
        is_default = value == field.default
        source = origins.get(path, DEFAULT if is_default else "")
        origin = _origin(source, field)
        text = ("set" if value else "unset") if field.is_secret else as_written(value)
        yield ShownSetting(path, text, origin, "" if origin is Origin.DEFAULT else source)


def _tables(settings: Settings, file: str) -> Iterator[ShownSetting]:
    for path, value in table_rows(settings.models).items():
        yield ShownSetting(path, as_written(value), Origin.FILE if file else Origin.CODE, file)


def _origin(source: str, field: SettingField) -> Origin:
    if source in ("", DEFAULT):
        return Origin.DEFAULT if source else Origin.CODE
    if source == field.variable:
        return Origin.ENVIRONMENT
    return Origin.FLAG if source.startswith("-") or source == MODEL_ARGUMENT else Origin.FILE
