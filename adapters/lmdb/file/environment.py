"""The open database: its trees, one writer at a time, and readers that can be waited for.

A reader never sees the map go away: closing and reopening wait until no transaction is open. Every access first looks
whether the file is still the one that was opened and still as long as it was, because touching mapped memory that the
file no longer backs would kill the process.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from errno import EAGAIN, ENODEV
from mmap import PAGESIZE
from threading import Condition, RLock
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

import lmdb

from adapters.lmdb.faults import Damaged
from adapters.lmdb.file.directory import StoreDirectory
from adapters.lmdb.file.notes import READ, WRITE, Notes
from adapters.lmdb.format.pages import PageGeometry

TREES = ("sys", "ns", "rec", "kid", "lru", "dat")

_META_PAGES = 2
_MAX_READERS = 256
_SPARE_READERS = 8
_SAME_PID_WAIT_S, _SAME_PID_POLL_S = 2.0, 0.05
_SAME_PID = (
    "a process with the same process id (%d) in another pid namespace has it open, and LMDB tells its readers by"
    " process id: run this in the namespace of the other (docker exec, --pid=container:NAME, --pid=host), or stop it"
)
_RESIZE_WAIT_S = 10.0

_Txn = TypeVar("_Txn")

Tree = Any  # lmdb's database handles have a private type


class Trees(NamedTuple):
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


class SamePidError(OSError):
    """A process with our process id, in another pid namespace, has the database open: LMDB tells readers by that."""


class Environment:
    """`map_bytes`: how large the file may become; 0 with `read_only`, to take what the writer set.

    A file that is larger already stays as large and grows no further.
    """

    def __init__(self, directory: StoreDirectory, *, map_bytes: int, read_only: bool) -> None:
        self._directory = directory
        self._map_bytes = map_bytes // PAGESIZE * PAGESIZE
        self._read_only = read_only
        self._write_lock = RLock()
        self._gate = Condition()
        self._num_readers = 0
        self._env: lmdb.Environment | None = None
        self._known_file = ((0, 0), 0)
        self.notes = Notes(directory.notes)
        self.trees = Trees(None, None, None, None, None, None)
        self.geometry = PageGeometry(4096)

    def open(self) -> None:
        """Raises Damaged, SamePidError, lmdb.Error or OSError; nothing is open then."""
        self._directory.inspect()
        env = self._open_patiently()
        try:
            env.reader_check()
            self.geometry = PageGeometry(env.stat()["psize"])
            with self.notes.of(READ):
                self.trees = self._open_trees(env)
            with env.begin() as txn:
                if txn.stat(self.trees.dat)["psize"] != self.geometry.page_bytes:
                    raise Damaged("trees of different page sizes")
            self._note_file(env)
            self._env = env  # readers may come from here on
        except BaseException:
            env.close()
            raise

    def _open_patiently(self) -> lmdb.Environment:
        """LMDB locks the byte of our process id in its table of readers. Raises SamePidError while another holds it."""
        until_s = monotonic() + _SAME_PID_WAIT_S
        while True:
            try:
                return lmdb.open(
                    str(self._directory.path),
                    map_size=self._map_size(),
                    max_dbs=len(TREES),
                    max_readers=_MAX_READERS,
                    max_spare_txns=_SPARE_READERS,
                    mode=0o600,
                    readonly=self._read_only,
                    create=not self._read_only,
                    writemap=False,
                    metasync=False,
                    lib_version=0,
                )
            except lmdb.Error as failure:
                if failure.code != EAGAIN:
                    raise
                if monotonic() > until_s:
                    raise SamePidError(EAGAIN, _SAME_PID % os.getpid()) from None
                sleep(_SAME_PID_POLL_S)

    def _open_trees(self, env: lmdb.Environment) -> Trees:
        """All are made in one transaction, so that a file has all of them or was never used."""
        if not self._read_only and env.stat()["entries"] == 0:
            with env.begin(write=True) as txn:
                for name in TREES:
                    env.open_db(name.encode(), txn=txn)
        return Trees(*(env.open_db(name.encode(), create=False) for name in TREES))

    def close(self, *, sync: bool = False) -> None:
        """Waits for readers and the writer. `sync`: make all that was written durable; closed in any case.

        Raises lmdb.Error or OSError when syncing failed, or when the file is not the one that was opened.
        """
        with self._write_lock, self._gate:
            env, self._env = self._env, None
            while self._num_readers:
                self._gate.wait()
            if env is None:
                return
            try:
                if sync:
                    self._check_file()
                    env.sync(True)
            finally:
                env.close()

    @property
    def is_open(self) -> bool:
        return self._env is not None

    @contextmanager
    def reading(self) -> Generator["lmdb.Transaction[bytes]"]:
        """A snapshot whose values are bytes."""
        with self._entered() as env, self.notes.of(READ), self._begun(env, env.begin) as txn:
            yield txn

    @contextmanager
    def viewing(self) -> Generator["lmdb.Transaction[memoryview]"]:
        """A snapshot whose values are views into the map: they end with it."""
        with self._entered() as env, self._begun(env, lambda: env.begin(buffers=True)) as txn:
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
            with self.notes.of(WRITE), env.begin(write=True) as txn:
                yield txn
            self.notes.settle()
            self._note_file(env)

    def info(self) -> tuple[int, int]:
        """(bytes of the file in pages ever used, bytes of the map)."""
        with self._entered() as env:
            info = env.info()
            return (info["last_pgno"] + 1) * self.geometry.page_bytes, info["map_size"]

    def resize(self, spare_bytes: int = 0) -> None:
        """Let a file that is larger than the map grow by `spare_bytes`, which evicting from it takes; 0: no further."""
        with self._write_lock, self._gate:
            if self._gate.wait_for(lambda: not self._num_readers, _RESIZE_WAIT_S) and self._env is not None:
                self._env.set_mapsize(self._map_size(spare_bytes))

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
        """Make the last commit durable; all others are."""
        with self._entered() as env:
            env.sync(True)

    def live_bytes(self) -> int:
        """What a compact copy takes."""
        with self.reading() as txn:
            return self.trees.used_pages(txn) * self.geometry.page_bytes

    def _begun(self, env: lmdb.Environment, begin: Callable[[], _Txn]) -> _Txn:
        """A read transaction, inside of `_entered`. A map that another process outgrew is replaced first."""
        try:
            return begin()
        except lmdb.MapResizedError:
            self._adopt_map(env)
            return begin()

    def _adopt_map(self, env: lmdb.Environment) -> None:
        """Steps out of `_entered` while it waits for the others: a map in use must not go. Raises ClosedError."""
        with self._gate:
            self._num_readers -= 1
            self._gate.notify_all()
            try:
                if self._gate.wait_for(lambda: not self._num_readers, _RESIZE_WAIT_S) and self._env is env:
                    env.set_mapsize(0)
            finally:
                self._num_readers += 1
            if self._env is not env:
                raise ClosedError

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

    def _map_size(self, spare_bytes: int = 0) -> int:
        """0: what the writer set."""
        return 0 if self._read_only else max(self._map_bytes, self._directory.size_bytes + spare_bytes)

    def _note_file(self, env: lmdb.Environment) -> None:
        status = os.stat(self._directory.data)
        needed_bytes = (env.info()["last_pgno"] + 1) * self.geometry.page_bytes
        if status.st_size < needed_bytes and not self._read_only:
            # Free pages at the end that were never written: whoever opens the file beside us would miss them.
            os.truncate(self._directory.data, needed_bytes)
            status = os.stat(self._directory.data)
        self._known_file = ((status.st_dev, status.st_ino), min(status.st_size, needed_bytes))

    def _check_file(self) -> None:
        # Read before the file is looked at: the writer may make both larger in between.
        identity, sound_bytes = self._known_file
        status = os.stat(self._directory.data)
        if (status.st_dev, status.st_ino) != identity:
            raise OSError(ENODEV, "the database was replaced", str(self._directory.data))
        if status.st_size < sound_bytes:
            raise Damaged(f"the database shrank from {sound_bytes} to {status.st_size} bytes")
