"""A walk over every page of a database's structure, without LMDB: is it exactly as LMDB would have left it?

LMDB reads damaged pages with care and edits them without: a node one word too long, or a free page that is in use, and
a later write overruns memory. What is checked is all that the write paths rely on: each page is where its number says,
of the kind its depth demands, its nodes packed without gap or overlap, its keys in order; each tree has the pages and
entries it claims; each page is used or free, once. Payloads are not read.

It imports nothing of Cairn, because it also runs as a script: a long walk belongs into another process.
"""

import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from struct import Struct, error
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

_META = Struct("<QHHI IIQQ")
_TREE = Struct("<IHHQQQQQ")
_LAST = Struct("<QQ")
_PAGE = Struct("<QHHHH")
_EXTENT = Struct("<QHHI")
_ID = Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG, _TREE_DATA = 1, 2
_HEADER_BYTES, _NODE_BYTES, _MAX_KEY_BYTES, _MAX_DEPTH = 16, 8, 511, 32
_NO_PAGE = (1 << 64) - 1
_NO_NUMBER = (1 << 63) - 1


Column: TypeAlias = npt.NDArray[np.int64]


class StructureError(Exception):
    """The first thing found wrong."""


class Tree(NamedTuple):
    """What a database says of one of its trees."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """One of the two headers: of the free list, of the tree of trees."""

    free: Tree
    main: Tree
    last_page: int
    transaction: int


class _Node(NamedTuple):
    """One node of a page: where its key begins and how long it is, its flags, the bytes of its data."""

    key_at: int
    key_bytes: int
    flags: int
    data_bytes: int

    @property
    def data_at(self) -> int:
        return self.key_at + self.key_bytes


class Nodes(NamedTuple):
    """All nodes of a page in the order of their keys, column by column as `_Node` has them."""

    key_at: Column
    key_bytes: Column
    flags: Column
    data_bytes: Column


def newest_meta(file: int, page_bytes: int) -> Meta:
    """The header that LMDB would go by. `file`: a descriptor."""
    return max((_meta(os.pread(file, 4096, page * page_bytes)) for page in (0, 1)), key=lambda meta: meta.transaction)


def _meta(page: bytes) -> Meta:
    offset = _META.size
    free, main = (Tree(*_TREE.unpack_from(page, offset + index * _TREE.size)) for index in range(2))
    return Meta(free, main, *_LAST.unpack_from(page, offset + 2 * _TREE.size))


class StructureWalk:
    """One walk over an open file that nobody writes to."""

    def __init__(self, file: int, page_bytes: int) -> None:
        self._file = file
        self._page_bytes = page_bytes
        self._meta = newest_meta(file, page_bytes)
        self._used = np.zeros(self._meta.last_page + 1, np.bool_)
        self._used[:2] = True
        self._num_marked = 2

    def run(self) -> None:
        """Raises StructureError."""
        for page, node in self._tree_nodes(self._meta.main):
            if node.flags != _TREE_DATA or node.data_bytes != _TREE.size:
                raise StructureError("the tree of trees holds something else")
            tree = Tree(*_TREE.unpack_from(page, node.data_at))
            if tree.flags or tree.pad:
                raise StructureError("a tree has flags that were never set")
            for _ in self._leaves(tree):
                pass
        # All lists are walked before any of their pages is marked, so that a page in use is told from one free twice.
        lists = list(self._tree_nodes(self._meta.free, has_integer_keys=True))
        free = [self._free_pages(page, node) for page, node in lists]
        for pages in free:
            self._mark(pages)
        if not self._used.all():
            raise StructureError(f"{np.count_nonzero(~self._used)} pages are neither used nor free")
        if self._num_marked != self._used.size:
            raise StructureError("two values of one page share pages")

    def _tree_nodes(self, tree: Tree, *, has_integer_keys: bool = False) -> Iterator[tuple[bytes, _Node]]:
        """Every node of a small tree, with its page."""
        for page, nodes in self._leaves(tree, may_hold_trees=not has_integer_keys, has_integer_keys=has_integer_keys):
            for values in zip(*(column.tolist() for column in nodes), strict=True):
                yield page, _Node(*values)

    def _leaves(
        self, tree: Tree, *, may_hold_trees: bool = False, has_integer_keys: bool = False
    ) -> Iterator[tuple[bytes, Nodes]]:
        """Every leaf page with its nodes; what the tree claims is compared at the end."""
        counts = [0, 0, 0, 0]  # branch pages, leaf pages, overflow pages, entries
        waiting = [(tree.root, 1)] if tree.root != _NO_PAGE else []
        if tree.depth > _MAX_DEPTH or bool(waiting) != bool(tree.depth):
            raise StructureError(f"a tree claims a depth of {tree.depth}")
        allowed = _BIG | (_TREE_DATA if may_hold_trees else 0)
        while waiting:
            number, level = waiting.pop()
            is_leaf = level == tree.depth
            page = self._page(number, _LEAF if is_leaf else _BRANCH)
            nodes = self._nodes(page, number, is_leaf)
            _check_order(page, nodes, number, first=0 if is_leaf else 1, has_integer_keys=has_integer_keys)
            counts[is_leaf] += 1
            if not is_leaf:
                waiting.extend((child, level + 1) for child in _children(page, nodes))
                continue
            if (nodes.flags & ~allowed).any():
                raise StructureError(f"a node of page {number} has flags that were never set")
            counts[2] += self._extents(page, nodes)
            counts[3] += nodes.flags.size
            yield page, nodes
        if counts != [tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries]:
            raise StructureError(f"a tree of {counts} pages and entries claims others")

    def _page(self, number: int, kind: int) -> bytes:
        self._mark(np.full(1, min(number, _NO_NUMBER), np.int64))
        page = os.pread(self._file, self._page_bytes, number * self._page_bytes)
        if len(page) != self._page_bytes:
            raise StructureError(f"page {number} is not in the file")
        found, _, flags, lower, upper = _PAGE.unpack_from(page)
        if found != number or flags != kind:
            raise StructureError(f"page {number} says that it is page {found} with flags {flags}")
        if lower % 2 or not _HEADER_BYTES < lower <= upper <= self._page_bytes:
            raise StructureError(f"page {number} has its free space from {lower} to {upper}")
        return page

    def _nodes(self, page: bytes, number: int, is_leaf: bool) -> Nodes:
        """In the order of their keys. Raises unless they fill the page's end exactly."""
        _, _, _, lower, upper = _PAGE.unpack_from(page)
        words = np.frombuffer(page, np.uint16)
        offsets = words[_HEADER_BYTES // 2 : lower // 2].astype(np.int64)
        if (offsets % 2).any() or offsets.min() < upper or offsets.max() > self._page_bytes - _NODE_BYTES:
            raise StructureError(f"page {number} has nodes outside of its node space")
        low, high, flags, key_bytes = (words[offsets // 2 + step].astype(np.int64) for step in range(4))
        data_bytes = low | high << 16 if is_leaf else np.zeros_like(low)
        inside = np.where(flags & _BIG, _ID.size, data_bytes) if is_leaf else data_bytes
        ends = offsets + (_NODE_BYTES + key_bytes + inside + 1) // 2 * 2
        order = np.argsort(offsets)
        starts = np.append(offsets[order], self._page_bytes)
        if starts[0] != upper or (ends[order] != starts[1:]).any():
            raise StructureError(f"the nodes of page {number} are not packed")
        if key_bytes.max() > _MAX_KEY_BYTES or (is_leaf and not key_bytes.all()):
            raise StructureError(f"page {number} has a key of an impossible size")
        return Nodes(offsets + _NODE_BYTES, key_bytes, flags, data_bytes)

    def _extents(self, page: bytes, nodes: Nodes) -> int:
        """Mark the pages of the large values of a page; returns how many they are."""
        is_big = nodes.flags & _BIG != 0
        if not is_big.any():
            return 0
        starts = [_ID.unpack_from(page, at)[0] for at in (nodes.key_at + nodes.key_bytes)[is_big].tolist()]
        sizes = (_HEADER_BYTES - 1 + nodes.data_bytes[is_big]) // self._page_bytes + 1
        for number, num_pages in zip(starts, sizes.tolist(), strict=True):
            if number + num_pages > self._used.size:
                raise StructureError(f"a value of {num_pages} pages begins at page {number}")
            header = os.pread(self._file, _EXTENT.size, number * self._page_bytes)
            if len(header) != _EXTENT.size or _EXTENT.unpack(header) != (number, 0, _OVERFLOW, num_pages):
                raise StructureError(f"the value at page {number} has another header")
        total = int(sizes.sum())
        within: Column = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._mark(np.repeat(np.array(starts, np.int64), sizes) + within)
        return total

    def _free_pages(self, page: bytes, node: _Node) -> npt.NDArray[np.int64]:
        start = node.data_at
        if node.flags & _BIG:
            (number,) = _ID.unpack_from(page, start)
            data = os.pread(self._file, node.data_bytes, number * self._page_bytes + _HEADER_BYTES)
        else:
            data = page[start : start + node.data_bytes]
        if node.key_bytes != _ID.size or len(data) != node.data_bytes or len(data) % _ID.size or not data:
            raise StructureError("a list of free pages has an impossible size")
        numbers = np.frombuffer(data, np.uint64)
        ids = numbers[1:]
        if _ID.unpack_from(page, node.key_at)[0] > self._meta.transaction or numbers[0] != ids.size:
            raise StructureError("a list of free pages has another length than it says")
        if (ids >= self._used.size).any() or (ids[1:] >= ids[:-1]).any():
            raise StructureError("a list of free pages is not in order")
        return ids.astype(np.int64)

    def _mark(self, numbers: npt.NDArray[np.int64]) -> None:
        if not numbers.size:
            return
        if numbers.max() >= self._used.size or self._used[numbers].any():
            raise StructureError(f"page {int(numbers[0])} or one after it is used twice, or is none")
        self._used[numbers] = True
        self._num_marked += numbers.size


def _children(page: bytes, nodes: Nodes) -> list[int]:
    words = np.frombuffer(page, np.uint16)
    low, high, top = (words[(nodes.key_at - _NODE_BYTES) // 2 + step].astype(np.int64) for step in range(3))
    numbers: list[int] = (low | high << 16 | top << 32).tolist()
    return numbers


def _check_order(page: bytes, nodes: Nodes, number: int, *, first: int, has_integer_keys: bool) -> None:
    """The first key of a branch page means nothing, so it is left out there."""
    starts, ends = nodes.key_at.tolist()[first:], (nodes.key_at + nodes.key_bytes).tolist()[first:]
    keys = [page[start:end] for start, end in zip(starts, ends, strict=True)]
    if has_integer_keys:
        keys = [key[::-1] for key in keys]
    if any(before >= after for before, after in pairwise(keys)):
        raise StructureError(f"the keys of page {number} are not in order")


def find_problem(path: str, page_bytes: int) -> str | None:
    """The first problem in the structure of a database file; None when there is none."""
    file = os.open(path, os.O_RDONLY)
    try:
        StructureWalk(file, page_bytes).run()
    except StructureError as problem:
        return str(problem)
    except (ValueError, IndexError, OverflowError, error) as failure:
        return f"the structure cannot be followed: {failure}"
    finally:
        os.close(file)
    return None


if __name__ == "__main__":
    sys.stdout.write(find_problem(sys.argv[1], int(sys.argv[2])) or "")


__all__ = ("Meta", "Nodes", "StructureError", "StructureWalk", "Tree", "find_problem", "newest_meta")
