"""The configuration file of a running server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from application.settings import Settings
from application.shown_setting import ShownSetting

NewValue: TypeAlias = str | bool | int | float | list[str] | None
"""A value as the file has it; None to take it out of the file."""


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of the file at one moment. `text`: None where there is no file. `digest`: another one for another
    text."""

    text: str | None
    digest: str


@dataclass(frozen=True, slots=True)
class Before:
    """The state of the file before the last change. `text`: None where there was no file. `written`: the digest of what
    the change wrote."""

    text: str | None
    written: str


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings that a start would have, what decided each, and both as they are displayed."""

    settings: Settings
    origins: Mapping[str, str]
    shown: Mapping[str, ShownSetting]


class SettingsFile(Protocol):
    """Any thread; every method but `shown` may block for as long as the volume does, and raises SettingsUnwritable for
    a file that cannot be read or written."""

    @property
    def path(self) -> str: ...

    def shown(self, settings: Settings, origins: Mapping[str, str]) -> Sequence[ShownSetting]:
        """Returns the settings as they are displayed."""
        ...

    def read(self) -> FileText: ...

    def understood(self, text: str | None) -> ReadSettings:
        """Returns the settings that a start with this text, and with this process's variables and flags, would have.
        Raises InvalidRequest, which names the setting at fault, where it would not start."""
        ...

    def edited(self, text: str | None, changes: Mapping[str, NewValue]) -> str:
        """Returns the text with other values at these paths, and its comments and order as they are. Raises
        InvalidRequest for a text that no program can edit so."""
        ...

    def difference(self, old: str | None, new: str | None) -> str:
        """Returns the lines that differ, each change below the heading of its table; without secrets."""
        ...

    def write(self, new: str | None, expected: FileText, *, undoable: bool) -> None:
        """Replaces the file in one step, or removes it for None, and keeps what it was for `before`, unless it is not
        `undoable`: then nothing is kept. Raises SettingsChanged, and changes nothing, where the file is not as
        expected."""
        ...

    def before(self) -> Before | None:
        """Returns the state before the last change; None without one."""
        ...
