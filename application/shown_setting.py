"""A setting as it is displayed, with the source that decided it."""

from dataclasses import dataclass
from enum import Enum


class Origin(Enum):
    """The source that decided a value. CODE: the program that embeds Cairn."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting as it is displayed; a secret only as set or unset. `value`: text, number, truth value, list of texts,
    or None for none. `source`: the file, variable or flag by its name; empty for the others."""

    path: str
    value: object
    origin: Origin
    source: str = ""
