"""Making room: the least recently used leaves go, in bounded slices, until what is to come fits below the quota.

The reserve between the limit and the quota absorbs copy-on-write and pages that LMDB may not use again yet: those freed
by this transaction and the one before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adapters.lmdb.faults import Damaged
from adapters.lmdb.format.pages import PageGeometry
from adapters.lmdb.format.payload import EncodedRecord
from adapters.lmdb.index.ledger import Ledger

MIN_QUOTA_BYTES = 1 << 20
# The file is mapped whole, and an address space has 47 bits.
MAX_QUOTA_BYTES = 1 << 46
_RESERVE_SHARE = 16
_MIN_RESERVE_PAGES = 64
_SLICE_BYTES = 64 << 20
_SLICE_RECORDS = 512
# A path of every tree is copied per change, and splits add pages.
_COPIED_PAGES = 24
_COPIED_PAGES_PER_RECORD = 4


@dataclass(frozen=True, slots=True)
class Quota:
    """`quota_bytes` in pages of the database."""

    quota_bytes: int
    page_bytes: int

    @property
    def reserve_pages(self) -> int:
        return max(_MIN_RESERVE_PAGES, self.quota_bytes // self.page_bytes // _RESERVE_SHARE)

    @property
    def limit_pages(self) -> int:
        """What may be in use when a put has ended."""
        return self.quota_bytes // self.page_bytes - self.reserve_pages

    def is_large(self, num_pages: int) -> bool:
        """Whether that many freed pages would have to be waited for before they can be used again."""
        return num_pages > self.reserve_pages // 4


def needed_pages(geometry: PageGeometry, batch: Sequence[EncodedRecord]) -> int:
    """Upper bound on what a batch adds."""
    if not batch:
        return 0
    total = _COPIED_PAGES
    for encoded in batch:
        sizes = (len(encoded.head), *geometry.piece_sizes(encoded.stream_bytes))
        total += _COPIED_PAGES_PER_RECORD + sum(-(-size // geometry.page_bytes) for size in sizes)
    return total


def evict_slice(ledger: Ledger, max_used_pages: int, is_kept: Callable[[bytes], bool]) -> int:
    """Evict until at most `max_used_pages` are in use or the slice is full; returns how many records went."""
    return evict_while(ledger, is_kept, lambda _: ledger.used_pages > max_used_pages)


def evict_while(ledger: Ledger, is_kept: Callable[[bytes], bool], goes_on: Callable[[int], bool]) -> int:
    """Evict the least recently used leaves while `goes_on`, given the clock of the next, or until the slice is full;
    returns how many records went."""
    evicted = clock = 0
    while evicted < _SLICE_RECORDS and ledger.freed_bytes < _SLICE_BYTES:
        oldest = ledger.oldest_leaf(clock)
        if oldest is None or not goes_on(oldest[0]):
            break
        clock, key = oldest
        if not is_kept(key):
            row = ledger.row(key)
            if row is None or row.clock != clock:
                raise Damaged("the order of use names a record that is not there")
            parent_clock = ledger.remove_leaf(key, row)
            evicted += 1
            # The parent may have become a leaf, and be older than where the search stands.
            clock = clock if parent_clock is None else min(clock, parent_clock - 1)
        clock += 1
    return evicted
