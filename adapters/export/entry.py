"""What an entry of an export says, believed only as far as it can be worked out again.

A namespace is the digest of its fingerprint, a block's hash that of its parent and its tokens, a snapshot's digest
likewise, a position the parent's plus the tokens; parents come first. What cannot be worked out is the state itself:
whoever made the export decides it (see seal).
"""

import json
from dataclasses import dataclass, field
from typing import cast

from adapters.export.fields import Fields
from domain.fingerprint import CHAIN_VERSION, namespace_of
from domain.hashing import block_hash, snapshot_key
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.ids import BlockHash
from domain.record import (
    MAX_FINGERPRINT_BYTES,
    MAX_GROUP,
    MAX_MODEL_BYTES,
    MAX_POSITION,
    BlockKey,
    Namespace,
    NamespaceInfo,
    Provenance,
    RecordKey,
)

MAX_BLOCK_TOKENS = MAX_GROUP
MAX_GROUPS = 4096
MAX_NAMESPACES = 1 << 16
MAX_RECORD_BYTES = 2 << 30
"""Of state, before and after encoding."""

MAX_RATIO = 64
"""Bytes of state one byte of the file may unfold to, group by group. Real state shrinks by a half; what would shrink
more than this is exported as it is."""

_NAMESPACE_FIELDS = ("namespace_of", "namespace", "fingerprint")
_RECORD_FIELDS = ("namespace", "parent", "position", "tokens", "provenance", "groups")


@dataclass(frozen=True, slots=True)
class GroupSize:
    """A group's frame in the file, and the state it claims to hold."""

    group: int
    stored_bytes: int
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A record without its state, which follows in the file."""

    key: RecordKey
    parent: BlockHash
    position: int
    token_ids: IdRow
    provenance: Provenance
    groups: tuple[GroupSize, ...]


@dataclass(slots=True)
class _Space:
    block_size: int
    positions: dict[BlockHash, int] = field(default_factory=dict[BlockHash, int])


class EntryChecks:
    """Remembers what the entries so far have introduced: namespaces, and where their blocks end."""

    def __init__(self) -> None:
        self._spaces: dict[Namespace, _Space] = {}

    def namespace(self, fields: Fields) -> NamespaceInfo:
        """Raises InvalidExport."""
        fields.expect(_NAMESPACE_FIELDS)
        model, text = fields.text("namespace_of", MAX_MODEL_BYTES), fields.text("fingerprint", MAX_FINGERPRINT_BYTES)
        if not model.isprintable():  # it is shown in terminals
            raise fields.wrong("namespace_of", "has characters that cannot be shown")
        info = NamespaceInfo(Namespace(fields.identifier("namespace")), model, text)
        if namespace_of(text) != info.namespace:
            raise fields.wrong("namespace", "is not the digest of the fingerprint")
        block_size = _block_size(fields, text)
        if len(self._spaces) >= MAX_NAMESPACES:
            raise fields.wrong("namespace", f"is one of more than {MAX_NAMESPACES}")
        self._spaces.setdefault(info.namespace, _Space(block_size))
        return info

    def record(self, fields: Fields) -> RecordHeader:
        """Raises InvalidExport."""
        is_block = "block" in fields
        fields.expect((*_RECORD_FIELDS, *(("block",) if is_block else ("snapshot", "partial"))))
        namespace, parent = Namespace(fields.identifier("namespace")), BlockHash(fields.identifier("parent"))
        space = self._spaces.get(namespace)
        if space is None:
            raise fields.wrong("namespace", "was not introduced before")
        start = 0 if parent == BlockHash(namespace) else space.positions.get(parent)
        if start is None:
            raise fields.wrong("parent", "is not among the blocks before")
        tokens = IdRow(fields.wholes("tokens", space.block_size, 0, MAX_TOKEN_ID))
        if fields.whole("position", 0, MAX_POSITION) != start + len(tokens):
            raise fields.wrong("position", f"is not {start + len(tokens)}")
        key = (
            _block(fields, namespace, parent, tokens, space)
            if is_block
            else _snapshot(fields, namespace, parent, tokens)
        )
        header = RecordHeader(key, parent, start + len(tokens), tokens, _provenance(fields), _groups(fields))
        if isinstance(key, BlockKey):
            space.positions[key.hash] = header.position
        elif len(tokens) >= space.block_size:
            raise fields.wrong("tokens", f"fill a block of {space.block_size}")
        return header


def _block(fields: Fields, namespace: Namespace, parent: BlockHash, tokens: IdRow, space: _Space) -> BlockKey:
    if len(tokens) != space.block_size:
        raise fields.wrong("tokens", f"are {len(tokens)} of a block of {space.block_size}")
    hash = BlockHash(fields.identifier("block"))
    if block_hash(parent, tokens) != hash:
        raise fields.wrong("block", "is not the hash of its parent and its tokens")
    return BlockKey(namespace, hash)


def _snapshot(fields: Fields, namespace: Namespace, parent: BlockHash, tokens: IdRow) -> RecordKey:
    if fields.whole("partial", 0, MAX_GROUP) != len(tokens):
        raise fields.wrong("partial", f"is not {len(tokens)}, the number of its tokens")
    key = snapshot_key(namespace, parent, tokens)
    if key.digest != fields.identifier("snapshot"):
        raise fields.wrong("snapshot", "is not the digest of its parent and its tokens")
    return key


def _provenance(fields: Fields) -> Provenance:
    try:
        return Provenance(fields.text("provenance", 16))
    except ValueError:
        raise fields.wrong("provenance", "is neither prefill nor decode") from None


def _groups(fields: Fields) -> tuple[GroupSize, ...]:
    groups = tuple(GroupSize(*row) for row in fields.rows("groups", MAX_GROUPS, 3, MAX_RECORD_BYTES))
    numbers = [size.group for size in groups]
    if numbers != sorted(set(numbers)) or max(numbers, default=0) > MAX_GROUP:
        raise fields.wrong("groups", f"are not in ascending order up to {MAX_GROUP}")
    for total in (sum(size.stored_bytes for size in groups), sum(size.raw_bytes for size in groups)):
        if total > MAX_RECORD_BYTES:
            raise fields.wrong("groups", f"take {total} bytes and may take {MAX_RECORD_BYTES}")
    for size in groups:
        if size.raw_bytes > MAX_RATIO * size.stored_bytes:
            raise fields.wrong("groups", f"claim {size.raw_bytes} bytes in {size.stored_bytes} of the file")
    return groups


def _block_size(fields: Fields, fingerprint: str) -> int:
    try:
        content: object = json.loads(fingerprint)
    except (ValueError, RecursionError):
        raise fields.wrong("fingerprint", "is not JSON") from None
    if not isinstance(content, dict):
        raise fields.wrong("fingerprint", "is not an object")
    described = cast("dict[str, object]", content)
    version, block_size = described.get("format"), described.get("block_size")
    if version != CHAIN_VERSION:
        raise fields.wrong("fingerprint", f"is of format {str(version)[:40]}; this version reads {CHAIN_VERSION}")
    if not isinstance(block_size, int) or isinstance(block_size, bool) or not 1 <= block_size <= MAX_BLOCK_TOKENS:
        raise fields.wrong("fingerprint", f"has blocks of {str(block_size)[:40]} tokens")
    return block_size


__all__ = ("MAX_RATIO", "MAX_RECORD_BYTES", "EntryChecks", "GroupSize", "RecordHeader")
