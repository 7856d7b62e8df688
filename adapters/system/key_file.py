"""The file that holds a server's keys: its owner's alone, read whole or not at all, and changed in one step.

It is TOML, one table a key, with the key's SHA-256 and never the key.

    [keys.ci]
    sha256 = "9f86d0..."             # 64 hexadecimal digits
    salt = "..."                     # the tenant's; keys without one share their prefixes
    requests_per_minute = 60
    max_concurrent = 4
    models = ["cairn-demo"]
    priority = "batch"               # its requests wait for those of other keys; "interactive" without it
    admin = false

Only `sha256` is needed. An unknown field is refused: a limit with a typing error would be no limit. Messages name keys
and fields, and repeat no value: it may be a key that was written where its hash belongs.
"""

import fcntl
import json
import os
import re
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from adapters.system.private_file import private_file, read_secret
from domain.client import DEFAULT_NAME, Client, Key
from domain.errors import InvalidKeys, InvalidRequest
from domain.printable import printable
from domain.priority import Priority, named_priority

MAX_BYTES = 4 * 2**20

Stamp: TypeAlias = tuple[int, ...]

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_POSITION = re.compile(r"\(at .*\)$")


class _Table(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One key in the file."""

    sha256: str = ""
    salt: str = ""
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    models: list[str] | None = None
    priority: str = Priority.INTERACTIVE.value
    admin: bool = False


class KeyFile:
    """The key file at a path. Any thread; every method may block for as long as the volume does."""

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
        text = self._text()
        with self._named():
            return parse_keys(text)

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
            with self._named():
                changed = change(text)
                parse_keys(changed)
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

    @contextmanager
    def _named(self) -> Generator[None]:
        """Errors inside name the file."""
        try:
            yield
        except InvalidKeys as error:
            raise InvalidKeys(f"{self.path} {error.message}") from None


def parse_keys(text: str) -> tuple[Key, ...]:
    """Raises InvalidKeys."""
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = _POSITION.search(str(error))
        raise InvalidKeys(f"is not valid TOML {where[0] if where else ''}".rstrip()) from None
    tables = content.get("keys", {})
    if not isinstance(tables, dict) or content.keys() - {"keys"}:
        raise InvalidKeys("must hold tables [keys.NAME] and nothing else")
    return tuple(_key(name, table) for name, table in cast("dict[str, Any]", tables).items())


def with_key(text: str, key: Key) -> str:
    """Returns `text` with a further key. Raises InvalidKeys when there is one of its name."""
    before, client = parse_keys(text), key.client
    if any(known.client.name == client.name for known in before):
        raise InvalidKeys(f"has a key named '{client.name}' already")
    table = _Table(
        sha256=key.digest.hex(),
        salt=client.salt,
        requests_per_minute=client.requests_per_minute,
        max_concurrent=client.max_concurrent,
        models=sorted(client.models) if client.models is not None else None,
        priority=client.priority.value,
        admin=client.is_admin,
    )
    lines = [f"{name} = {_toml(value)}" for name, value in msgspec.to_builtins(table).items()]
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return "\n".join([f"{text}{gap}[keys.{client.name}]", *lines, ""])


def without_key(text: str, name: str) -> str:
    """Returns `text` without a key's table, up to the next table or comment. Raises InvalidKeys when there is no such
    key, or its table is written in another way."""
    left = [key for key in parse_keys(text) if key.client.name != name]
    kept = re.sub(rf"(?m)^\[keys\.{re.escape(name)}\][^\n]*\n(?:(?![\[#])[^\n]*(?:\n|\Z))*", "", text)
    if len(left) == len(parse_keys(text)):
        raise InvalidKeys(f"has no key named '{printable(name)}'")
    if kept == text or list(parse_keys(kept)) != left:
        raise InvalidKeys("is not written as `cairn keys` writes it: change it by hand")
    return kept


def _key(name: str, content: object) -> Key:
    where = f"keys.{printable(name)}"
    if name == DEFAULT_NAME or not name:
        raise InvalidKeys(f"{where}: the name is taken by server.api_key")
    try:
        table = msgspec.convert(content, _Table)
    except msgspec.ValidationError as error:
        raise InvalidKeys(f"{where}: {printable(str(error))}") from None
    if not _HEX.fullmatch(table.sha256):
        raise InvalidKeys(f"{where}.sha256 must be 64 hexadecimal digits: the SHA-256 of the key")
    models = None if table.models is None else frozenset(table.models)
    limits = table.requests_per_minute, table.max_concurrent
    try:
        client = Client(name, table.salt, table.admin, models, *limits, named_priority(table.priority))
    except InvalidRequest as error:
        raise InvalidKeys(f"{where}: {error.message}") from None
    return Key(bytes.fromhex(table.sha256), client)


def _toml(value: Any) -> str:
    """Text, lists of it, whole numbers and truth values are written as in JSON, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
