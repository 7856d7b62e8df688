"""The open database: its trees, one writer at a time, and readers that can be waited for.

A reader never sees the map go away: closing and reopening wait until no transaction is open. Every access first looks
whether the file is still the one that was opened and still as long as it was, because touching mapped memory that the
file no longer backs would kill the process.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENODEV
from threading import Condition, RLock
from typing import Any

import lmdb

from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.faults import Damaged
from adapters.lmdb.pages import PageGeometry
from adapters.lmdb.verification import Verification

_TREES = ("sys", "ns", "rec", "kid", "lru", "dat")
_META_PAGES = 2
_MAX_READERS = 256
_SPARE_READERS = 8

Tree = Any  # lmdb's database handles have a private type


@dataclass(frozen=True, slots=True)
class Trees:
    """The named trees of docs/store-format.md."""

    sys: Tree
    ns: Tree
    rec: Tree
    kid: Tree
    lru: Tree
    dat: Tree

    def used_pages(self, txn: "lmdb.Transaction[bytes]") -> int:
        """Pages in use, as LMDB counts them inside this very transaction."""
        stats = [txn.stat(tree) for tree in (None, self.sys, self.ns, self.rec, self.kid, self.lru, self.dat)]
        return _META_PAGES + sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)


class ClosedError(Exception):
    """The environment is not open."""


class Environment:
    """`map_bytes`: how large the file may become; 0 with `read_only`, to take what the writer set."""

    def __init__(self, directory: StoreDirectory, *, map_bytes: int, sync: bool, read_only: bool) -> None:
        self._directory = directory
        self._map_bytes = map_bytes
        self._sync = sync
        self._read_only = read_only
        self._write_lock = RLock()
        self._gate = Condition()
        self._num_readers = 0
        self._env: lmdb.Environment | None = None
        self._known_file = ((0, 0), 0)
        self._verification = Verification(directory.data, 4096, is_needed=False)
        self.trees = Trees(None, None, None, None, None, None)
        self.geometry = PageGeometry(4096)

    def open(self, *, spare_bytes: int = 0) -> None:
        """Raises Damaged, lmdb.Error or OSError; nothing is open then.

        `spare_bytes`: let a file that is larger than the map grow by that much, which shrinking it takes.
        """
        self._directory.inspect()
        # Nobody may walk a file that another process writes to.
        is_new = not self._directory.size_bytes
        spare_bytes += self._directory.data.stat().st_size if spare_bytes else 0
        env = lmdb.open(
            str(self._directory.path),
            map_size=max(self._map_bytes, spare_bytes),
            max_dbs=len(_TREES),
            max_readers=_MAX_READERS,
            max_spare_txns=_SPARE_READERS,
            mode=0o600,
            readonly=self._read_only,
            create=not self._read_only,
            writemap=False,
            sync=self._sync,
            metasync=False,
            lib_version=0,
        )
        try:
            env.reader_check()
            self.trees = self._open_trees(env)
            self.geometry = PageGeometry(env.stat()["psize"])
            with env.begin() as txn:
                if txn.stat(self.trees.dat)["psize"] != self.geometry.page_bytes:
                    raise Damaged("trees of different page sizes")
            self._verification = Verification(
                self._directory.data, self.geometry.page_bytes, is_needed=not is_new and not self._read_only
            )
            self._verification.start()
            self._env = env
            self._note_file()
        except BaseException:
            self._env = None
            env.close()
            raise

    def _open_trees(self, env: lmdb.Environment) -> Trees:
        """All are made in one transaction, so that a file has all of them or was never used."""
        if not self._read_only and env.stat()["entries"] == 0:
            with env.begin(write=True) as txn:
                for name in _TREES:
                    env.open_db(name.encode(), txn=txn)
        return Trees(*(env.open_db(name.encode(), create=False) for name in _TREES))

    def close(self) -> None:
        """Waits for readers and the writer."""
        with self._write_lock, self._gate:
            env, self._env = self._env, None
            while self._num_readers:
                self._gate.wait()
            if env is not None:
                env.close()

    @property
    def is_open(self) -> bool:
        return self._env is not None

    @contextmanager
    def reading(self) -> Generator["lmdb.Transaction[bytes]"]:
        """A snapshot whose values are bytes."""
        with self._entered() as env, env.begin() as txn:
            yield txn

    @contextmanager
    def viewing(self) -> Generator["lmdb.Transaction[memoryview]"]:
        """A snapshot whose values are views into the map: they end with it."""
        with self._entered() as env:
            self._verification.wait()
            with env.begin(buffers=True) as txn:
                yield txn

    @contextmanager
    def exclusive(self) -> Generator[None]:
        """Keeps other writers away."""
        with self._write_lock:
            yield

    @contextmanager
    def writing(self) -> Generator["lmdb.Transaction[bytes]"]:
        """The one write transaction: committed on leaving, aborted by an exception."""
        with self._write_lock, self._entered() as env:
            self._verification.wait()
            with env.begin(write=True) as txn:
                yield txn
            self._note_file()

    def info(self) -> tuple[int, int]:
        """(bytes of the file in pages ever used, bytes of the map)."""
        with self._entered() as env:
            info = env.info()
            return (info["last_pgno"] + 1) * self.geometry.page_bytes, info["map_size"]

    def has_lagging_reader(self) -> bool:
        """Whether a living reader, here or in another process, holds a snapshot so old that freed pages wait for it.

        Slots of dead ones are cleared first.
        """
        with self._entered() as env:
            env.reader_check()
            snapshots = [line.split()[-1] for line in env.readers().splitlines() if line.strip()]
            oldest = min((int(text) for text in snapshots if text.isdecimal()), default=None)
            return oldest is not None and oldest < env.info()["last_txnid"] - 1

    def sync(self) -> None:
        with self._entered() as env:
            env.sync(True)

    def copy_compact(self, path: str) -> None:
        with self._write_lock, self._entered() as env:
            self._verification.wait()
            env.copy(path, compact=True)

    @contextmanager
    def _entered(self) -> Generator[lmdb.Environment]:
        with self._gate:
            env = self._env
            if env is None:
                raise ClosedError
            self._num_readers += 1
        try:
            self._check_file()
            yield env
        finally:
            with self._gate:
                self._num_readers -= 1
                if not self._num_readers:
                    self._gate.notify_all()

    def _note_file(self) -> None:
        env = self._env
        assert env is not None  # only called while entered or opening
        status = os.stat(self._directory.data)
        sound_bytes = min(status.st_size, (env.info()["last_pgno"] + 1) * self.geometry.page_bytes)
        self._known_file = ((status.st_dev, status.st_ino), sound_bytes)

    def _check_file(self) -> None:
        # Read before the file is looked at: the writer may make both larger in between.
        identity, sound_bytes = self._known_file
        status = os.stat(self._directory.data)
        if (status.st_dev, status.st_ino) != identity:
            raise OSError(ENODEV, "the database was replaced", str(self._directory.data))
        if status.st_size < sound_bytes:
            raise Damaged(f"the database shrank from {sound_bytes} to {status.st_size} bytes")


__all__ = ("ClosedError", "Environment", "Trees")
