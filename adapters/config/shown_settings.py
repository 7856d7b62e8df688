"""Settings as people are shown them, in the order of the settings classes, those of single models last."""

from collections.abc import Iterator, Mapping, Sequence

from adapters.config.fields import SettingField, setting_fields
from adapters.config.loader import DEFAULT
from adapters.config.model_tables import table_rows
from adapters.config.values import shown
from application.ports.shown_setting import Origin, ShownSetting
from application.settings import Settings


def shown_settings(settings: Settings, origins: Mapping[str, str], file: str) -> Sequence[ShownSetting]:
    """`origins`: as in LoadedSettings; empty where nobody loaded them. `file`: where models' tables come from."""
    return [*_fields(settings, origins), *_tables(settings, file)]


def _fields(settings: Settings, origins: Mapping[str, str]) -> Iterator[ShownSetting]:
    for path, field in setting_fields().items():
        section, name = path.split(".")
        value: object = getattr(getattr(settings, section), name)
        is_default = value == field.default
        source = origins.get(path, DEFAULT if is_default else "")
        origin = _origin(source, field)
        told = ("set" if value else "unset") if field.is_secret else shown(value)
        yield ShownSetting(path, told, origin, "" if origin is Origin.DEFAULT else source)


def _tables(settings: Settings, file: str) -> Iterator[ShownSetting]:
    for path, value in table_rows(settings.models).items():
        yield ShownSetting(path, shown(value), Origin.FILE if file else Origin.CODE, file)


def _origin(source: str, field: SettingField) -> Origin:
    if source in ("", DEFAULT):
        return Origin.DEFAULT if source else Origin.CODE
    if source == field.variable:
        return Origin.ENVIRONMENT
    return Origin.FLAG if source.startswith("-") or source == MODEL_ARGUMENT else Origin.FILE


MODEL_ARGUMENT = "MODEL"
"""The one argument of commands that is a setting and no flag."""
