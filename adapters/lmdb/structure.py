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
from typing import NamedTuple

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
    key: bytes
    offset: int
    flags: int
    data_bytes: int


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

    def run(self) -> None:
        """Raises StructureError."""
        for page, node in self._tree_nodes(self._meta.main, holds_trees=True):
            if node.flags != _TREE_DATA or node.data_bytes != _TREE.size:
                raise StructureError("the tree of trees holds something else")
            tree = Tree(*_TREE.unpack_from(page, node.offset + _NODE_BYTES + len(node.key)))
            if tree.flags or tree.pad:
                raise StructureError("a tree has flags that were never set")
            for _ in self._tree_nodes(tree):
                pass
        # All lists are walked before any of their pages is marked, so that a page in use is told from one free twice.
        lists = list(self._tree_nodes(self._meta.free, has_integer_keys=True))
        free = [self._free_pages(page, node) for page, node in lists]
        for pages in free:
            self._mark(pages)
        if not self._used.all():
            raise StructureError(f"{np.count_nonzero(~self._used)} pages are neither used nor free")

    def _tree_nodes(
        self, tree: Tree, *, holds_trees: bool = False, has_integer_keys: bool = False
    ) -> Iterator[tuple[bytes, _Node]]:
        """Every leaf node with its page; the counts are compared at the end."""
        counts = [0, 0, 0, 0]  # branch pages, leaf pages, overflow pages, entries
        waiting = [(tree.root, 1)] if tree.root != _NO_PAGE else []
        if tree.depth > _MAX_DEPTH or bool(waiting) != bool(tree.depth):
            raise StructureError(f"a tree claims a depth of {tree.depth}")
        while waiting:
            number, level = waiting.pop()
            is_leaf = level == tree.depth
            page = self._page(number, _LEAF if is_leaf else _BRANCH)
            nodes = self._nodes(page, number, is_leaf)
            _check_order(nodes if is_leaf else nodes[1:], number, has_integer_keys)
            counts[is_leaf] += 1
            if not is_leaf:
                waiting.extend((_child(page, node), level + 1) for node in nodes)
                continue
            counts[3] += len(nodes)
            for node in nodes:
                if node.flags & ~_BIG and not (holds_trees and node.flags == _TREE_DATA):
                    raise StructureError(f"a node of page {number} has flags {node.flags}")
                counts[2] += self._extent(page, node) if node.flags & _BIG else 0
                yield page, node
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

    def _nodes(self, page: bytes, number: int, is_leaf: bool) -> list[_Node]:
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
        return [
            _Node(page[offset + _NODE_BYTES : offset + _NODE_BYTES + size], offset, flag, length)
            for offset, size, flag, length in zip(
                offsets.tolist(), key_bytes.tolist(), flags.tolist(), data_bytes.tolist(), strict=True
            )
        ]

    def _extent(self, page: bytes, node: _Node) -> int:
        """Mark the pages of a large value; returns how many they are."""
        (number,) = _ID.unpack_from(page, node.offset + _NODE_BYTES + len(node.key))
        num_pages = (_HEADER_BYTES - 1 + node.data_bytes) // self._page_bytes + 1
        if number + num_pages > self._used.size:
            raise StructureError(f"a value of {num_pages} pages begins at page {number}")
        self._mark(np.arange(number, number + num_pages, dtype=np.int64))
        header = os.pread(self._file, _EXTENT.size, number * self._page_bytes)
        if len(header) != _EXTENT.size or _EXTENT.unpack(header) != (number, 0, _OVERFLOW, num_pages):
            raise StructureError(f"the value at page {number} has another header")
        return num_pages

    def _free_pages(self, page: bytes, node: _Node) -> npt.NDArray[np.int64]:
        start = node.offset + _NODE_BYTES + len(node.key)
        if node.flags & _BIG:
            (number,) = _ID.unpack_from(page, start)
            data = os.pread(self._file, node.data_bytes, number * self._page_bytes + _HEADER_BYTES)
        else:
            data = page[start : start + node.data_bytes]
        if len(node.key) != _ID.size or len(data) != node.data_bytes or len(data) % _ID.size or not data:
            raise StructureError("a list of free pages has an impossible size")
        numbers = np.frombuffer(data, np.uint64)
        ids = numbers[1:]
        if _ID.unpack(node.key)[0] > self._meta.transaction or numbers[0] != ids.size:
            raise StructureError("a list of free pages has another length than it says")
        if (ids >= self._used.size).any() or (ids[1:] >= ids[:-1]).any():
            raise StructureError("a list of free pages is not in order")
        return ids.astype(np.int64)

    def _mark(self, numbers: npt.NDArray[np.int64]) -> None:
        if numbers.size and (numbers.max() >= self._used.size or self._used[numbers].any()):
            raise StructureError(f"page {int(numbers[0])} or one after it is used twice, or is none")
        self._used[numbers] = True


def _child(page: bytes, node: _Node) -> int:
    low, high, top = (int.from_bytes(page[node.offset + at : node.offset + at + 2], "little") for at in (0, 2, 4))
    return low | high << 16 | top << 32


def _check_order(nodes: list[_Node], number: int, has_integer_keys: bool) -> None:
    keys = [node.key for node in nodes]
    if has_integer_keys:
        keys = [key[::-1] for key in keys]
    if any(first >= second for first, second in pairwise(keys)):
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
    if hasattr(os, "nice"):
        os.nice(5)
    sys.stdout.write(find_problem(sys.argv[1], int(sys.argv[2])) or "")


__all__ = ("Meta", "StructureError", "StructureWalk", "Tree", "find_problem", "newest_meta")
