"""The configuration file of a running server: read, checked as a start checks it, replaced in one step, and undone.

Beside FILE lies FILE.undo while the last change can be undone: the text before it, below a line with the digest of what
was written. So an undo works after a restart as well, and never takes away what another program wrote since.
"""

import os
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeAlias

from adapters.config.loader import InvalidSettings, LoadedSettings, shown_settings
from application.ports.settings_file import Before, FileText, NewValue, ReadSettings
from application.settings import Settings
from application.shown_setting import ShownSetting
from domain.errors import InvalidRequest, SettingsChanged, SettingsUnwritable

MAX_BYTES = 1 << 20
_ABSENT = "-"
_MARK = "# cairn: before "

NewFile: TypeAlias = Callable[[Path, int], AbstractContextManager[BinaryIO]]
"""Yields a new file of a mode that takes a name when its block succeeds."""


class TomlSettingsFile:
    """A SettingsFile. `load`: the settings that a start with a text would have. `new_file`: writes a file whole."""

    def __init__(self, path: Path, load: Callable[[str], LoadedSettings], new_file: NewFile) -> None:
        self._path = path
        self._load = load
        self._new_file = new_file

    @property
    def path(self) -> str:
        return str(self._path)

    def shown(self, settings: Settings, origins: Mapping[str, str]) -> Sequence[ShownSetting]:
        return shown_settings(settings, origins, self.path if settings.models or settings.mcp.servers else "")

    def read(self) -> FileText:
        with self._errors("read"):
            return _as_text(_content(self._path))

    def understood(self, text: str | None) -> ReadSettings:
        try:
            loaded = self._load(text or "")
        except InvalidSettings as error:
            raise InvalidRequest(error.message) from None
        shown = {one.path: one for one in self.shown(loaded.settings, loaded.origins)}
        return ReadSettings(loaded.settings, loaded.origins, shown)

    def edited(self, text: str | None, changes: Mapping[str, NewValue]) -> str:
        from adapters.config.toml_text import edited  # here: its library takes time to import

        return edited(text or "", changes)

    def difference(self, old: str | None, new: str | None) -> str:
        from adapters.config.toml_text import difference

        return difference(old or "", new or "")

    def write(self, new: str | None, expected: FileText, *, undoable: bool) -> None:
        if new is not None and len(new.encode()) > MAX_BYTES:
            raise InvalidRequest(f"the configuration file would be larger than {MAX_BYTES >> 20} MiB")
        with self._errors("written"):
            target = self._path.resolve()  # a link stays one
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept = _content(self._undo)
            if undoable:
                mark = f"{_MARK}{_as_text(new.encode() if new is not None else None).digest}\n"
                self._put(self._undo, mark + (_ABSENT if expected.text is None else f"+\n{expected.text}"), 0o600)
            try:
                if _as_text(_content(target)).digest != expected.digest:
                    raise SettingsChanged(f"{self.path} was changed by another program meanwhile: look at it again")
                self._replace(target, new)
            except BaseException:
                self._put(self._undo, kept.decode() if kept is not None else None, 0o600)
                raise
            if not undoable:
                self._undo.unlink(missing_ok=True)

    def before(self) -> Before | None:
        with self._errors("read"):
            content = _content(self._undo)
        mark, _, rest = (content or b"").decode(errors="replace").partition("\n")
        if not mark.startswith(_MARK):
            return None
        text = None if rest == _ABSENT else rest.removeprefix("+\n")
        return Before(text, mark.removeprefix(_MARK))

    @property
    def _undo(self) -> Path:
        return self._path.with_name(f"{self._path.name}.undo")

    def _replace(self, target: Path, new: str | None) -> None:
        mode = 0o600
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(target.stat().st_mode)
            if not os.access(target, os.W_OK):  # a new file could take its place all the same
                raise PermissionError(13, "it is read-only")
        self._put(target, new, mode)

    def _put(self, path: Path, text: str | None, mode: int) -> None:
        if text is None:
            path.unlink(missing_ok=True)
            return
        with self._new_file(path, mode) as stream:
            stream.write(text.encode())

    @contextmanager
    def _errors(self, done: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise SettingsUnwritable(f"{self.path} cannot be {done}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise SettingsUnwritable(f"{self.path} cannot be {done}: it is not UTF-8 text") from None


def _content(path: Path) -> bytes | None:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_BYTES:
        raise OSError(27, f"it is larger than {MAX_BYTES >> 20} MiB")
    return content


def _as_text(content: bytes | None) -> FileText:
    if content is None:
        return FileText(None, _ABSENT)
    return FileText(content.decode(), sha256(content).hexdigest())
