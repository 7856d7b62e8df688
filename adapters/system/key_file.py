"""The file that holds a server's keys: its owner's alone, read whole or not at all, and changed in one step."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from adapters.system.key_text import parse_keys
from adapters.system.private_file import private_file, read_secret
from domain.errors import InvalidKeys
from domain.key_ring import Key

MAX_BYTES = 4 * 2**20

Stamp: TypeAlias = tuple[int, ...]


class KeyFile:
    """Any thread. Every method may block for as long as the volume does."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()

    def stamp(self) -> Stamp | None:
        """Another one when the file, its content or its mode has changed; None when there is none to be seen."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def read(self) -> tuple[Key, ...]:
        """Raises InvalidKeys."""
        return self._parsed(self._text())

    def change(self, change: Callable[[str], str]) -> None:
        """Write what `change` makes of the text, which is empty where there is no file. One such change at a time.
        Raises InvalidKeys, and what `change` raises."""
        try:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidKeys(f"{self.path.parent}: {error.strerror}") from None
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            text = self._text() if self.path.exists() else ""
            try:
                changed = change(text)
            except InvalidKeys as error:
                raise InvalidKeys(f"{self.path} {error.message}") from None
            self._parsed(changed)
            with private_file(self.path) as stream:
                stream.write(changed.encode())
        except OSError as error:
            raise InvalidKeys(f"{self.path} cannot be written: {error.strerror}") from None
        finally:
            os.close(folder)

    def _text(self) -> str:
        try:
            content = read_secret(self.path, MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ValueError(f"is larger than {MAX_BYTES >> 20} MiB")
            return content.decode()
        except FileNotFoundError:
            raise InvalidKeys(f"there is no key file {self.path}; `cairn keys add NAME` makes one") from None
        except OSError as error:
            raise InvalidKeys(f"{self.path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidKeys(f"{self.path} is not UTF-8 text") from None
        except ValueError as error:
            raise InvalidKeys(f"{self.path} {error}") from None

    def _parsed(self, text: str) -> tuple[Key, ...]:
        try:
            return parse_keys(text)
        except InvalidKeys as error:
            raise InvalidKeys(f"{self.path} {error.message}") from None


__all__ = ("KeyFile", "Stamp")
