"""Settings from their sources: defaults, then the configuration file, then CAIRN_* variables, then flags.

Each value remembers where it came from. Nothing is ignored: an unknown name or a wrong type in any source is refused
with its path, since a setting that silently does nothing costs more than one that is refused.
"""

import difflib
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from adapters.config.fields import SettingField, sections, setting_fields
from adapters.config.model_tables import SECTION, model_tables
from adapters.config.values import from_text, from_typed
from application.settings import Settings
from domain.errors import DomainError, InvalidRequest

OTHER_VARIABLES = frozenset({"CAIRN_CONFIG", "CAIRN_BLAS"})
"""Variables of ours that are no settings."""

DEFAULT = "default"


class InvalidSettings(DomainError):
    """Settings that cannot be used; the message names the path and the source."""

    code = "invalid_settings"


@dataclass(frozen=True, slots=True)
class Flag:
    """A value given on the command line. `name` as people type it: `--port`."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """`origins`: for each path, `default`, the file, the variable or the flag that decided it."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    origin: str


def load_settings(environ: Mapping[str, str], flags: Mapping[str, Flag] | None = None) -> LoadedSettings:
    """Read every source once. `flags` by path, only those that were given. Raises InvalidSettings."""
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
    """The file's tables; none without a file."""
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
    return "what was given" if field.is_secret else repr(value)


def _build(given: Mapping[str, _Given], origins: Mapping[str, str]) -> Settings:
    """Sections with their ranges checked; a range error names the source of the value at fault."""
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
    """The file that is read; it need not exist unless CAIRN_CONFIG names it."""
    named = environ.get("CAIRN_CONFIG", "")
    if named:
        return Path(named).expanduser()
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification has relative paths ignored
        base = Path(environ.get("HOME") or Path.home()) / ".config"
    return base / "cairn" / "config.toml"
