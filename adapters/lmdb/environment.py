"""The open database: its trees, one writer at a time, and readers that can be waited for.

A reader never sees the map go away: closing and reopening wait until no transaction is open. Every access first checks
that the file is still the one that was opened and as long as it was, because touching mapped memory that the file no
longer backs would kill the process. For the same reason the file's headers are read before LMDB opens it.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from errno import EAGAIN, ENODEV
from mmap import PAGESIZE
from pathlib import Path
from struct import Struct
from threading import Condition, RLock
from time import monotonic, sleep
from typing import Any, NamedTuple

import lmdb

from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.faults import Damaged
from adapters.lmdb.notes import READ, WRITE, Notes
from adapters.lmdb.payload import PageGeometry
from adapters.lmdb.private_files import open_private

TREES = ("sys", "ns", "rec", "kid", "lru", "dat")

_META_PAGES = 2
_MAX_READERS = 256
_SPARE_READERS = 8
# LMDB maps its table of readers and writes to it: on a full volume a page that is not there would kill the process.
_READERS_BYTES = 20 << 10
# The last pages of a transaction may be free ones that were never written; more than this is a truncated file.
_UNWRITTEN_BYTES = 1 << 20
_SAME_PID_WAIT_S, _SAME_PID_POLL_S = 2.0, 0.05
_SAME_PID = (
    "a process with the same process id (%d) in another pid namespace has it open, and LMDB tells its readers by"
    " process id: run this in the namespace of the other (docker exec, --pid=container:NAME, --pid=host), or stop it"
)
_RESIZE_WAIT_S = 10.0

_PAGE_HEADER = Struct("<QHHI")
_META = Struct("<IIQQ")
_TREE = Struct("<IHHQQQQQ")
_LAST = Struct("<QQ")
_META_FLAG, _MAGIC, _DATA_VERSION, _INTEGER_KEYS, _NO_FOLDER = 0x08, 0xBEEFC0DE, 1, 0x08, 0x4000
_NO_ROOT = (1 << 64) - 1
_MAX_DEPTH = 32

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
        """Returns the pages in use, as LMDB counts them inside this very transaction."""
        stats = [txn.stat(tree) for tree in (None, *self)]
        return _META_PAGES + sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)


class ClosedError(Exception):
    """The environment is not open."""


class SamePidError(OSError):
    """Another process with the same process id, in another pid namespace, has the database open."""


class Environment:
    """The LMDB environment of a store. `map_bytes`: the limit on the file's size; 0 with `read_only`, for the writer's
    limit. A file that is larger already grows no further. `exclusive`: the lock of this process's writers."""

    def __init__(self, directory: StoreDirectory, *, map_bytes: int, read_only: bool) -> None:
        self.exclusive = RLock()
        self.notes = Notes(directory.notes)
        self.trees = Trees(None, None, None, None, None, None)
        self.geometry = PageGeometry(4096)
        self._directory = directory
        self._map_bytes = map_bytes // PAGESIZE * PAGESIZE
        self._read_only = read_only
        self._gate = Condition()
        self._num_readers = 0
        self._env: lmdb.Environment | None = None
        self._synced = -1  # the last transaction that `sync` made durable
        self._known_file = ((0, 0), 0)

    def open(self) -> None:
        """Opens the database. Raises Damaged, SamePidError, lmdb.Error or OSError; nothing is open then."""
        if self._directory.is_claimed:
            _reserve_readers(self._directory.readers)
        inspect(self._directory.data, may_fill=self._directory.is_claimed)
        env = self._open_patiently()
        try:
            env.reader_check()
            self.geometry = PageGeometry(env.stat()["psize"])
            with self.notes.of(READ):
                self.trees = self._open_trees(env)
            with env.begin() as txn:
                if txn.stat(self.trees.dat)["psize"] != self.geometry.page_bytes:
                    raise Damaged("the trees of the database have different page sizes")
            self._note_file(env)
            self._synced = -1
            self._env = env  # from here on readers may enter
        except BaseException:
            env.close()
            raise

    def _open_patiently(self) -> lmdb.Environment:
        """Opens LMDB, which locks the byte of our process id in its table of readers. Raises SamePidError while another
        process holds it."""
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
        """Creates all in one transaction, so that a file has all of them or was never used."""
        if not self._read_only and env.stat()["entries"] == 0:
            with env.begin(write=True) as txn:
                for name in TREES:
                    env.open_db(name.encode(), txn=txn)
        return Trees(*(env.open_db(name.encode(), create=False) for name in TREES))

    def close(self, *, sync: bool = False) -> None:
        """Waits for readers and the writer. `sync`: make all that was written durable; closed in any case.

        Raises lmdb.Error or OSError when syncing failed, or when the file is not the one that was opened.
        """
        with self.exclusive, self._gate:
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
        with self._entered() as env, self.notes.of(READ), env.begin() as txn:
            yield txn

    @contextmanager
    def viewing(self) -> Generator["lmdb.Transaction[memoryview]"]:
        """A snapshot whose values are views into the map: they end with it."""
        with self._entered() as env, env.begin(buffers=True) as txn:
            yield txn

    @contextmanager
    def writing(self) -> Generator["lmdb.Transaction[bytes]"]:
        """The one write transaction: committed on leaving, aborted by an exception."""
        with self.exclusive, self._entered() as env:
            with self.notes.of(WRITE), env.begin(write=True) as txn:
                yield txn
            self.notes.settle()
            self._note_file(env)

    def info(self) -> tuple[int, int]:
        """Returns (bytes of the file in pages ever used, bytes of the map)."""
        with self._entered() as env:
            info = env.info()
            return (info["last_pgno"] + 1) * self.geometry.page_bytes, info["map_size"]

    def resize(self, spare_bytes: int = 0) -> None:
        """Lets a file that is larger than the map grow by `spare_bytes`, which evicting from it takes; 0: no more."""
        with self.exclusive, self._gate:
            if self._gate.wait_for(lambda: not self._num_readers, _RESIZE_WAIT_S) and self._env is not None:
                self._env.set_mapsize(self._map_size(spare_bytes))

    def has_lagging_reader(self) -> bool:
        """Returns whether a living reader, here or in another process, holds a snapshot so old that freed pages wait
        for it. Slots of dead readers are cleared first."""
        with self._entered() as env:
            env.reader_check()
            snapshots = [line.split()[-1] for line in env.readers().splitlines() if line.strip()]
            oldest = min((int(text) for text in snapshots if text.isdecimal()), default=None)
            return oldest is not None and oldest < env.info()["last_txnid"] - 1

    def reader_pids(self) -> Sequence[int]:
        """Returns the other processes that have read the database and still have it open."""
        with self._entered() as env:
            words = (line.split() for line in env.readers().splitlines())
            return sorted({int(first) for first, *_ in filter(None, words) if first.isdecimal()} - {os.getpid()})

    def sync(self) -> None:
        """Makes the last commit durable; all others are. Costs nothing where nothing was committed since."""
        with self._entered() as env:
            last = env.info()["last_txnid"]
            if last != self._synced:
                env.sync(True)
                self._synced = last

    def used_pages(self) -> int:
        """Returns the pages in use: those that a compact copy takes."""
        with self.reading() as txn:
            return self.trees.used_pages(txn)

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
        """Returns the size of the map in bytes; 0 for the writer's."""
        return 0 if self._read_only else max(self._map_bytes, self._directory.size_bytes + spare_bytes)

    def _note_file(self, env: lmdb.Environment) -> None:
        status = os.stat(self._directory.data)
        needed_bytes = (env.info()["last_pgno"] + 1) * self.geometry.page_bytes
        if status.st_size < needed_bytes and not self._read_only:
            # Free pages at the end that were never written: a process that opens the file beside us would miss them.
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


def inspect(data: Path, *, may_fill: bool) -> None:
    """Raises Damaged when LMDB would fail on the file, or fault on memory that the file does not back. Raises OSError.

    `may_fill`: fill a short missing tail with zeros. Where it was in use after all, checks and LMDB's own tests of a
    page refuse it. The file's size is read last: a process that writes makes the file longer before its header.
    """
    if not data.exists():
        return
    with data.open("rb") as file:
        handle = file.fileno()
        if not os.fstat(handle).st_size:
            return
        page_bytes, *first = _read_meta(os.pread(handle, 4096, 0))
        other_page_bytes, *second = _read_meta(os.pread(handle, 4096, page_bytes))
        if other_page_bytes != page_bytes:
            raise Damaged("the headers of the database differ in their page size")
        _, last_page = max(first, second)
        size_bytes, needed_bytes = os.fstat(handle).st_size, (last_page + 1) * page_bytes
    missing_bytes = needed_bytes - size_bytes
    if missing_bytes > (_UNWRITTEN_BYTES if may_fill else 0):
        raise Damaged(f"the database has {size_bytes} bytes and needs {needed_bytes}")
    if missing_bytes > 0:
        os.truncate(data, needed_bytes)


def _read_meta(page: bytes) -> tuple[int, int, int]:
    """Returns (page size in bytes, transaction, last page) of one of the file's two headers. Raises Damaged."""
    trees = _PAGE_HEADER.size + _META.size
    last = trees + 2 * _TREE.size
    if len(page) < last + _LAST.size:
        raise Damaged("the database is shorter than its header")
    flags = _PAGE_HEADER.unpack_from(page)[2]
    magic, version, address, _ = _META.unpack_from(page, _PAGE_HEADER.size)
    if not flags & _META_FLAG or magic != _MAGIC or version != _DATA_VERSION:
        raise Damaged("the database does not begin with an LMDB header")
    # A fixed address, or flags that this store never sets, would make LMDB map the file elsewhere or sort it anew.
    if address:
        raise Damaged("the database header requests a fixed mapping address")
    last_page, transaction = _LAST.unpack_from(page, last)
    for offset, expected in ((trees, _INTEGER_KEYS), (trees + _TREE.size, 0)):
        # The first tree's flags hold how the file was named when it was made.
        _, tree_flags, depth, *_, root = _TREE.unpack_from(page, offset)
        if tree_flags & ~_NO_FOLDER != expected or depth > _MAX_DEPTH or (root != _NO_ROOT and root > last_page):
            raise Damaged("the header of the database points outside of it")
    page_bytes = _TREE.unpack_from(page, trees)[0]
    if page_bytes not in (1 << shift for shift in range(9, 17)):
        raise Damaged(f"the database header states pages of {page_bytes} bytes")
    return page_bytes, transaction, last_page


def _reserve_readers(readers: Path) -> None:
    """Allocates the pages of LMDB's table of readers. Raises StoreOpenError, OSError."""
    if readers.exists() or not hasattr(os, "posix_fallocate"):
        return
    handle = open_private(readers, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(handle, 0, _READERS_BYTES)
    except OSError:
        readers.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
