"""The file that holds a server's keys, and the keys of a running server, which follow it.

The file is TOML, one table a key, with the fields of `Client` and the key's SHA-256, never the key.

    [keys.ci]
    sha256 = "9f86d0..."             # 64 hexadecimal digits
    salt = "..."                     # the tenant's; keys without one share their prefixes
    requests_per_minute = 60
    max_concurrent = 4
    models = ["cairn-demo"]
    mcp = ["time"]                   # tool servers; none without it, or all for an admin
    priority = "batch"               # its requests wait for those of other keys; "interactive" without it
    admin = false

Only `sha256` is needed. An unknown field is refused: a limit with a typing error would be no limit. Messages name keys
and fields, and repeat no value: it may be a key that was written where its hash belongs.

Invariant: a running server never uses a file in part. While the file cannot be used, the keys that were read before
stay, and the problem is reported; only a server that has never read its file does not start.
"""

import asyncio
import fcntl
import json
import logging
import os
import re
import secrets
import tomllib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from adapters.system.private_file import private_file, read_secret
from application.events import FaultObserved
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from application.settings import ServerSettings
from domain.client import DEFAULT_NAME, Client, KeyRing, key_digest, own_clients
from domain.errors import InvalidKeys, InvalidRequest
from domain.printable import printable
from domain.priority import Priority, named_priority

MAX_BYTES = 4 * 2**20
LOOK_EVERY_S = 2.0

Stamp: TypeAlias = tuple[int, ...]

_DEFAULTS = {field.name: field.default for field in fields(Client) if field.name != "name"}
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_POSITION = re.compile(r"\(at .*\)$")
_log = logging.getLogger("cairn.keys")


class KeyFile:
    """The key file at a path. Any thread; every method may block for as long as the volume does."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()

    def stamp(self) -> Stamp | None:
        """Returns another value when the file, its content or its mode has changed; None when no file is found."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def read(self) -> list[Client]:
        """Returns the clients of the keys. Raises InvalidKeys."""
        with self._errors("read"):
            if not self.path.exists():
                raise InvalidKeys("does not exist; `cairn keys add NAME` makes one")
            return parse_keys(self._text())

    def change(self, change: Callable[[str], str]) -> None:
        """Replaces the text by `change(text)`; the text is empty if the file is absent. One change at a time, written
        in one step. Raises InvalidKeys, and what `change` raises."""
        with self._errors("written"):
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                changed = change(self._text() if self.path.exists() else "")
                parse_keys(changed)
                with private_file(self.path) as stream:
                    stream.write(changed.encode())
            finally:
                os.close(folder)

    def _text(self) -> str:
        content = read_secret(self.path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InvalidKeys(f"is larger than {MAX_BYTES >> 20} MiB")
        return content.decode()

    @contextmanager
    def _errors(self, done: str) -> Generator[None]:
        """Raises each error inside as an InvalidKeys that names the file."""
        try:
            yield
        except InvalidKeys as error:
            problem = error.message
        except OSError as error:
            problem = f"cannot be {done}: {error.strerror}"
        except UnicodeDecodeError:
            problem = "is not UTF-8 text"
        except ValueError as error:
            problem = str(error)
        else:
            return
        raise InvalidKeys(f"the key file {self.path} {problem}")


class ServerKeys:
    """The ClientKeys of a running server: that of its settings and those of its file. `ring` finds the client of a key.
    Made in any thread, then event loop only. Raises InvalidKeys when the file cannot be used."""

    def __init__(
        self, settings: ServerSettings, events: EventSink, clock: Clock, look_every_s: float = LOOK_EVERY_S
    ) -> None:
        self._own = own_clients(settings.api_key)
        self._lane = Lane("key file", 1)  # a volume that hangs blocks this thread only
        self._file = KeyFile(settings.key_file) if settings.key_file is not None else None
        self._events = events
        self._clock = clock
        self._look_every_s = look_every_s
        self._seen = self._file and self._file.stamp()
        self._is_wanted = asyncio.Event()
        self.ring = KeyRing([*self._own, *(self._file.read() if self._file else ())], is_open=not settings.needs_key)

    def listed(self) -> Sequence[Client]:
        return self.ring.clients

    async def add(self, client: Client) -> str:
        key, client = new_key(client)
        await self._change(lambda text: with_key(text, client))
        return key

    async def remove(self, name: str) -> None:
        await self._change(lambda text: without_key(text, name))

    async def _change(self, change: Callable[[str], str]) -> None:
        if self._file is None:
            raise InvalidRequest("this server has no file of keys: name one in server.key_file and restart it")
        try:
            await self._lane.run(self._file.change, change)
            self.ring.replace([*self._own, *await self._lane.run(self._file.read)])
        except InvalidKeys as error:
            raise InvalidRequest(error.message) from None

    def look_now(self) -> None:
        """Reads the file again, changed or not."""
        self._is_wanted.set()

    @asynccontextmanager
    async def watching(self, _app: object = None) -> AsyncGenerator[None]:
        """Follows changes of the file inside the block."""
        if self._file is None:
            yield
            return
        task = asyncio.create_task(self._watch(self._file))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._lane.close()

    async def _watch(self, file: KeyFile) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_every_s):
                    await self._is_wanted.wait()
            try:
                await self._look(file, self._lane)
            except Exception as error:
                problem = f"{type(error).__name__} while reading the key file"
                self._report(error.message if isinstance(error, InvalidKeys) else problem)

    async def _look(self, file: KeyFile, lane: Lane) -> None:
        is_wanted = self._is_wanted.is_set()
        self._is_wanted.clear()
        stamp = await lane.run(file.stamp)  # before the file is read: a change during the read gives another stamp
        if is_wanted or stamp != self._seen:
            self._seen = stamp
            self.ring.replace([*self._own, *await lane.run(file.read)])
            _log.info("the key file was read again: %d keys", len(self.ring))

    def _report(self, problem: str) -> None:
        _log.error("%s; the previous keys stay valid", problem)
        self._events.emit(FaultObserved("keys.read", problem, self._clock.now_ns()))


def new_key(client: Client) -> tuple[str, Client]:
    """Returns a key, and the client with its digest; with a random salt, unless the client has one."""
    key = f"cairn_{secrets.token_urlsafe(32)}"
    return key, replace(client, sha256=key_digest(key.encode()), salt=client.salt or secrets.token_urlsafe(16))


def parse_keys(text: str) -> list[Client]:
    """Returns the clients in a file's text. Raises InvalidKeys."""
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = _POSITION.search(str(error))
        raise InvalidKeys(f"is not valid TOML {where[0] if where else ''}".rstrip()) from None
    tables = content.get("keys", {})
    if not isinstance(tables, dict) or content.keys() - {"keys"}:
        raise InvalidKeys("must have tables [keys.NAME] and nothing else")
    return [_client(name, table) for name, table in cast("dict[str, object]", tables).items()]


def key_fields(client: Client) -> dict[str, Any]:
    """Returns the fields of a client as plain values, with the names that the file gives them."""
    return cast("dict[str, Any]", msgspec.to_builtins(client, order="deterministic"))


def with_key(text: str, client: Client) -> str:
    """Returns `text` with a further key. Raises InvalidKeys when there is one of its name."""
    if any(known.name == client.name for known in parse_keys(text)):
        raise InvalidKeys(f"already has a key named '{client.name}'; remove it first or choose another name")
    values = key_fields(client)
    # Text, lists of it, whole numbers and truth values are written as in JSON, but for one character.
    lines = [
        f"{name} = {json.dumps(values[name], ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, default in _DEFAULTS.items()
        if getattr(client, name) != default
    ]
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return "\n".join([f"{text}{gap}[keys.{client.name}]", *lines, ""])


def without_key(text: str, name: str) -> str:
    """Returns `text` without a key's table, up to the next table or comment. Raises InvalidKeys when there is no such
    key, or its table is written in another way."""
    known = parse_keys(text)
    left = [client for client in known if client.name != name]
    kept = re.sub(rf"(?m)^\[keys\.{re.escape(name)}\][^\n]*\n(?:(?![\[#])[^\n]*(?:\n|\Z))*", "", text)
    if left == known:
        raise InvalidKeys(f"has no key named '{printable(name)}'")
    if kept == text or parse_keys(kept) != left:
        raise InvalidKeys("has this key in a form that `cairn keys` does not write; edit the file by hand")
    return kept


def _client(name: str, table: object) -> Client:
    where = f"keys.{printable(name)}"
    if name in ("", DEFAULT_NAME):
        raise InvalidKeys(f"{where}: the name is taken by server.api_key; choose another")
    try:
        given = msgspec.convert(table, dict[str, Any])
        for unknown in given.keys() - _DEFAULTS.keys():
            raise InvalidKeys(f"{where}: unknown field `{printable(unknown)}`")
        priority = named_priority(given.pop("priority", Priority.INTERACTIVE.value))
        client = msgspec.convert({**given, "name": name, "priority": priority}, Client)
    except msgspec.ValidationError as error:
        raise InvalidKeys(f"{where}: {printable(str(error))}") from None
    except InvalidRequest as error:
        raise InvalidKeys(f"{where}: {error.message}") from None
    if not _HEX.fullmatch(client.sha256):
        raise InvalidKeys(f"{where}.sha256 must be 64 hexadecimal digits: the SHA-256 of the key")
    return replace(client, sha256=client.sha256.lower())
