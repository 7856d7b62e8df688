"""The blocks that are published to routers: those from which this server can resume, as a router may credit them.

A consumer of the events knows no snapshots and credits a prompt with every leading block that was published. So a block
is published only while a position at or behind its end can be resumed on that chain and all records before it are here:

    records    |--block 0--|--block 1--|--block 2--|       a hybrid with a snapshot at the end of block 1
                                       ^ snapshot
    published  |--|--|--|--|--|--|--|--|                   of a size of its own, each with a chain hash of its own

A record that an image touches is left out as if it were absent, with all that follows it: a key id of an image is no
token, and a text that shares the tokens before it could not be resumed behind it. A window that has passed a hole may
be resumed behind it; that is not published.

Blocks end in records: in blocks, and in the partial blocks of snapshots. Several records may hold one, and each place
is published as a medium. `changes` returns the difference to what it returned before, `state` all of it.

Not safe for threads: one thread owns it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import TypeAlias

from domain.id_row import ID_BYTES, IdRow
from domain.ids import BlockHash
from domain.prefix.index import HOT, PERSISTED, ReuseRules
from domain.prefix.prompt_content import FIRST_MEDIA_ID
from domain.prefix.record import BlockKey, Namespace, Record, RecordKey, SnapshotKey

MAX_EVENT_TOKENS = 4_096
MAX_EVENT_HASHES = 1_024
"""The bounds of one event; a block that is larger is an event of its own."""


class Medium(Enum):
    """GPU: in the hot tier. STORAGE: in the store, or in the queue to it."""

    GPU = "GPU"
    STORAGE = "STORAGE"


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that follow one another. `parent`: the block before the first; None at the start of a prompt."""

    hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: IdRow
    medium: Medium


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    hashes: tuple[bytes, ...]
    medium: Medium


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """All blocks of all media are gone."""


BlockEvent: TypeAlias = BlocksStored | BlocksRemoved | BlocksCleared

_MEDIA = ((HOT, Medium.GPU), (PERSISTED, Medium.STORAGE))


@dataclass(slots=True)
class _Entry:
    """A record. `is_stop`: its end can be resumed. `num_wanted`: of the records that follow it, those that are wanted.
    While it is published: `blocks`, which end in it; `last`, the last block at or before its end; `rest`, the tokens
    from there to its end."""

    key: RecordKey
    parent: BlockHash
    key_ids: IdRow
    places: int
    is_stop: bool
    num_wanted: int = 0
    is_published: bool = False
    blocks: Sequence[bytes] = ()
    last: bytes = b""
    rest: IdRow = field(default_factory=IdRow)

    @property
    def is_wanted(self) -> bool:
        return self.is_stop or self.num_wanted > 0


@dataclass(slots=True)
class _Block:
    """A block: tokens of `row` from `start` on. `num_hot`, `num_kept`: the published records that it ends in.
    `published`: the places that `changes` has returned."""

    parent: bytes
    row: IdRow
    start: int
    num_hot: int = 0
    num_kept: int = 0
    published: int = 0

    @property
    def held(self) -> int:
        return (HOT if self.num_hot else 0) | (PERSISTED if self.num_kept else 0)


class PublishedBlocks:
    """The blocks of one namespace. `size`: tokens of a block."""

    def __init__(self, namespace: Namespace, rules: ReuseRules, size: int) -> None:
        self._rules, self._size = rules, size
        # By the block's hash or the snapshot's digest: both are digests of all that is before their end.
        self._entries: dict[bytes, _Entry] = {}
        self._following: dict[bytes, set[bytes]] = {}
        self._root_hash = BlockHash(namespace)
        root = BlockKey(namespace, self._root_hash)
        self._root = _Entry(root, BlockHash(b""), IdRow(), 0, is_stop=False, is_published=True, last=namespace)
        # A block stands behind its parent: it is published after it, and withdrawn at the latest with it.
        self._blocks: dict[bytes, _Block] = {}
        self._touched: dict[bytes, None] = {}

    def keys(self) -> list[RecordKey]:
        """Returns the keys of all known records."""
        return [entry.key for entry in self._entries.values()]

    def knows(self, key: RecordKey) -> bool:
        return _id(key) in self._entries

    def add(self, record: Record, places: int) -> None:
        """Adds an absent record that is in these places."""
        if max(record.key_ids, default=0) >= FIRST_MEDIA_ID:
            return
        key, rules = record.key, self._rules
        is_whole = isinstance(key, SnapshotKey) or not rules.needs_snapshots
        id, is_stop = _id(key), is_whole and rules.grid.is_resumable(record.position)
        entry = self._entries[id] = _Entry(key, record.parent, record.key_ids, places, is_stop)
        self._following.setdefault(record.parent, set()).add(id)
        entry.num_wanted = sum(below.is_wanted for _, below in self._below(id))
        if entry.is_wanted:
            self._tell_below(*self._want(id, entry))

    def move(self, key: RecordKey, places: int) -> None:
        """Notes the places of a known record; without any it is removed."""
        id = _id(key)
        entry = self._entries.get(id)
        if entry is not None and not places:
            self._remove(id, entry)
        elif entry is not None and places != entry.places:
            self._hold(entry, -1)
            entry.places = places
            self._hold(entry, 1)

    def changes(self) -> list[BlockEvent]:
        """Returns what changed since the last call: first the blocks that came, parents first."""
        came, gone = list[tuple[bytes, _Block, int]](), list[tuple[bytes, int]]()
        for hash in self._touched:
            block = self._blocks[hash]
            held = block.held
            came.append((hash, block, held & ~block.published))
            gone.append((hash, block.published & ~held))
            block.published = held
            if not held:
                del self._blocks[hash]
        self._touched.clear()
        removed: list[BlockEvent] = []
        for place, medium in _MEDIA:
            hashes = [hash for hash, places in gone if places & place]
            for at in range(0, len(hashes), MAX_EVENT_HASHES):
                removed.append(BlocksRemoved(tuple(hashes[at : at + MAX_EVENT_HASHES]), medium))
        return [*self._stored(came), *removed]

    def state(self) -> list[BlockEvent]:
        """Returns all that `changes` has returned and not taken back."""
        return self._stored((hash, block, block.published) for hash, block in self._blocks.items())

    def _stored(self, came: Iterable[tuple[bytes, _Block, int]]) -> list[BlockEvent]:
        runs: list[tuple[Medium, list[bytes], list[IdRow]]] = []  # the hashes begin with the parent's
        last: dict[Medium, tuple[Medium, list[bytes], list[IdRow]]] = {}
        for hash, block, places in came:
            for medium in [medium for place, medium in _MEDIA if places & place]:
                run = last.get(medium)
                if run is None or run[1][-1] != block.parent or len(run[1]) * self._size >= MAX_EVENT_TOKENS:
                    run = last[medium] = (medium, [block.parent], [])
                    runs.append(run)
                run[1].append(hash)
                run[2].append(block.row[block.start : block.start + self._size])
        return [
            BlocksStored(tuple(own), None if parent == self._root_hash else parent, IdRow.joined(rows), medium)
            for medium, (parent, *own), rows in runs
        ]

    def _before(self, entry: _Entry) -> _Entry | None:
        return self._root if entry.parent == self._root_hash else self._entries.get(entry.parent)

    def _below(self, id: bytes) -> list[tuple[bytes, _Entry]]:
        return [(below, self._entries[below]) for below in self._following.get(id, ())]

    def _want(self, id: bytes, entry: _Entry) -> tuple[bytes, _Entry]:
        """Counts a record that is wanted from now on in those before it; returns the first that is so because of it."""
        while (before := self._before(entry)) is not None and before is not self._root:
            before.num_wanted += 1
            if before.is_stop or before.num_wanted > 1:
                break
            id, entry = entry.parent, before
        return id, entry

    def _tell_below(self, id: bytes, entry: _Entry) -> None:
        """Tells a record and the wanted ones that follow it, if the one before it is published."""
        before = self._before(entry)
        path = [(id, entry, before)] if before is not None and before.is_published else []
        while path:
            id, entry, before = path.pop()
            self._tell(entry, before)
            path += [(below, one, entry) for below, one in self._below(id) if one.is_wanted]

    def _tell(self, entry: _Entry, before: _Entry) -> None:
        row = before.rest.followed_by(entry.key_ids) if before.rest else entry.key_ids
        last, blocks = before.last, list[bytes]()
        data, num_whole = memoryview(row.to_bytes()), len(row) // self._size * self._size
        for start in range(0, num_whole, self._size):
            parent, last = last, sha256(last + data[ID_BYTES * start : ID_BYTES * (start + self._size)]).digest()
            if last not in self._blocks:
                self._blocks[last] = _Block(parent, row, start)
            blocks.append(last)
        entry.is_published, entry.blocks, entry.last, entry.rest = True, blocks, last, row[num_whole:]
        self._hold(entry, 1)

    def _withdraw(self, entry: _Entry) -> None:
        self._hold(entry, -1)
        entry.is_published, entry.blocks, entry.rest = False, (), IdRow()

    def _hold(self, entry: _Entry, by: int) -> None:
        for hash in entry.blocks:
            block = self._blocks[hash]
            block.num_hot += by if entry.places & HOT else 0
            block.num_kept += by if entry.places & PERSISTED else 0
            self._touched[hash] = None

    def _remove(self, id: bytes, entry: _Entry) -> None:
        path = [(id, entry)] if entry.is_published else []
        while path:
            published_id, published = path.pop()
            self._withdraw(published)
            path += [(below, one) for below, one in self._below(published_id) if one.is_published]
        del self._entries[id]
        self._following[entry.parent].discard(id)
        if not self._following[entry.parent]:
            del self._following[entry.parent]
        is_unwanted = entry.is_wanted
        while is_unwanted and (before := self._before(entry)) is not None and before is not self._root:
            before.num_wanted -= 1
            is_unwanted, entry = not before.is_wanted, before
            if is_unwanted and before.is_published:
                self._withdraw(before)


def _id(key: RecordKey) -> bytes:
    return key.hash if isinstance(key, BlockKey) else key.digest
