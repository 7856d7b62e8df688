"""What a value costs in LMDB, and the size of a piece that wastes nothing.

A value that fits twice into a page lies inside a leaf page as a node; a larger one takes whole pages of its own, the
first of which loses 16 bytes to a header. The formulas are LMDB's (0.9) and checked against its page counts by
`check_integrity`.
"""

from dataclasses import dataclass

_PAGE_HEADER_BYTES = 16
_NODE_HEADER_BYTES = 8
_SLOT_BYTES = 2
_PIECE_SLACK_BYTES = 24
_TARGET_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PageGeometry:
    """`page_bytes`: of the database file, the page size of the machine that made it."""

    page_bytes: int

    @property
    def piece_bytes(self) -> int:
        """The size of all pieces of a stream but its last."""
        return _TARGET_PIECE_BYTES // self.page_bytes * self.page_bytes - _PIECE_SLACK_BYTES

    def overflow_pages(self, key_bytes: int, value_bytes: int) -> int:
        """Whole pages of a value; 0 when it lies inside a leaf page."""
        node_limit = (((self.page_bytes - _PAGE_HEADER_BYTES) // 2) & -2) - _SLOT_BYTES
        if _NODE_HEADER_BYTES + key_bytes + value_bytes <= node_limit:
            return 0
        return (_PAGE_HEADER_BYTES - 1 + value_bytes) // self.page_bytes + 1

    def node_bytes(self, key_bytes: int, value_bytes: int) -> int:
        """Bytes in the leaf page: the node with its slot, without what lies in pages of its own."""
        inside = 8 if self.overflow_pages(key_bytes, value_bytes) else value_bytes
        return (_NODE_HEADER_BYTES + key_bytes + inside + 1) // 2 * 2 + _SLOT_BYTES

    def cost_bytes(self, key_bytes: int, value_bytes: int) -> int:
        """What one value counts for."""
        pages = self.overflow_pages(key_bytes, value_bytes)
        return self.node_bytes(key_bytes, value_bytes) + pages * self.page_bytes

    def piece_sizes(self, stream_bytes: int) -> list[int]:
        """Sizes of the pieces of a stream, in order."""
        full, rest = divmod(stream_bytes, self.piece_bytes)
        return [self.piece_bytes] * full + ([rest] if rest else [])
