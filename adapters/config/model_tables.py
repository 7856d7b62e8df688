"""The `[models."NAME"]` tables of the configuration file: what is set for single models.

They come from the file only: a model's name fits into no variable. As everywhere, what is not understood is refused.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast, get_type_hints

from adapters.config.fields import plain_type
from adapters.config.values import from_typed
from application.model_table import ModelTable
from domain.errors import InvalidRequest
from domain.request.sampling import SamplingDefaults

SECTION = "models"
SAMPLING = "sampling"
SECRETS = frozenset({"salt"})


def model_tables(section: object) -> Mapping[str, ModelTable]:
    """Tables by the models' names. Raises ValueError, naming the path of what cannot be used."""
    return {name: _table(name, table) for name, table in _dict(section, SECTION).items()}


def table_rows(tables: Mapping[str, ModelTable]) -> Mapping[str, object]:
    """What was set, by path, secrets as `set`; for people."""
    rows: dict[str, object] = {}
    for name, table in tables.items():
        for field in fields(ModelTable):
            value = getattr(table, field.name)
            if field.name != SAMPLING and value != field.default:
                rows[f'{SECTION}."{name}".{field.name}'] = "set" if field.name in SECRETS else value
        for field in fields(SamplingDefaults):
            if (value := getattr(table.sampling, field.name)) is not None:
                rows[f'{SECTION}."{name}".{SAMPLING}.{field.name}'] = value
    return rows


def _table(name: str, table: object) -> ModelTable:
    path = f'{SECTION}."{name}"'
    values = _dict(table, path)
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
    for name, value in _dict(table, path).items():
        if name not in hints:
            raise ValueError(f"{path}.{name} is not a setting; there are: {', '.join(hints)}")
        try:
            values[name] = from_typed(value, *plain_type(hints[name]))
        except ValueError as error:
            shown = "what was given" if name in SECRETS else repr(value)
            raise ValueError(f"{path}.{name} {error}, not {shown}") from None
    return values


def _dict(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a table, written [{path}]")
    return dict(cast(dict[str, object], value))
