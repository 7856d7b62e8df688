"""A setting as it is displayed: its value and the source that decided it; a secret only as set or unset."""

from dataclasses import dataclass
from enum import Enum


class Origin(Enum):
    """CODE: the program that embeds Cairn chose the value."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """`value`: text, number, truth value, list of texts, or None for none. `source`: the file, variable or flag by its
    name; empty for the others."""

    path: str
    value: object
    origin: Origin
    source: str = ""
