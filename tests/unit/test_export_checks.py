"""An import believes nothing that it can work out: every field is checked before anything of its batch is written."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from adapters.export.entry import MAX_RATIO
from adapters.export.seal import ExportKey
from adapters.memory.block_store import MemoryBlockStore
from adapters.zstd.codec import ZstdStateCodec
from application.ports.record_transfer import InvalidExport
from domain.ids import GroupIndex
from domain.payload import HostPayload, TensorSpec
from domain.record import Record
from tests.support.export_files import (
    KEY,
    ONE,
    Entry,
    content,
    entries_of,
    export_bytes,
    filled_store,
    import_bytes,
    sealed,
)
from tests.support.store_records import chain, keys_of, same, snapshot

BLOCK = next(at for at, entry in enumerate(entries_of(export_bytes())) if "block" in entry.header)
SNAPSHOT = next(at for at, entry in enumerate(entries_of(export_bytes())) if "snapshot" in entry.header)
NAMESPACE = 0

Change = Callable[[dict[str, Any]], object]


def hexadecimal(size_bytes: int) -> str:
    return "ab" * size_bytes


def other_group(column: int, value: object) -> Change:
    return lambda header: header["groups"][0].__setitem__(column, value)


WRONG: dict[str, tuple[int, str, Change]] = {
    "a hash of 600 bytes": (BLOCK, "block", lambda header: header.update(block=hexadecimal(600))),
    "a digest of 31 bytes": (SNAPSHOT, "snapshot", lambda header: header.update(snapshot=hexadecimal(31))),
    "a namespace of 31 bytes": (BLOCK, "namespace", lambda header: header.update(namespace=hexadecimal(31))),
    "a parent of 33 bytes": (BLOCK, "parent", lambda header: header.update(parent=hexadecimal(33))),
    "a hash of other tokens": (BLOCK, "block", lambda header: header["tokens"].reverse()),
    "another hash": (BLOCK, "block", lambda header: header.update(block=hexadecimal(32))),
    "a digest of other tokens": (SNAPSHOT, "snapshot", lambda header: header.update(tokens=[5])),
    "another digest": (SNAPSHOT, "snapshot", lambda header: header.update(snapshot=hexadecimal(32))),
    "a partial that lies": (SNAPSHOT, "partial", lambda header: header.update(partial=3)),
    "a huge partial": (SNAPSHOT, "partial", lambda header: header.update(partial=1 << 40)),
    "a position that lies": (BLOCK, "position", lambda header: header.update(position=17)),
    "a negative position": (BLOCK, "position", lambda header: header.update(position=-16)),
    "a position that is true": (BLOCK, "position", lambda header: header.update(position=True)),
    "a position beyond 64 bits": (BLOCK, "position", lambda header: header.update(position=1 << 70)),
    "a token below zero": (BLOCK, "tokens", lambda header: header["tokens"].__setitem__(0, -1)),
    "a token beyond 32 bits": (BLOCK, "tokens", lambda header: header["tokens"].__setitem__(0, 1 << 32)),
    "a token that is text": (BLOCK, "tokens", lambda header: header["tokens"].__setitem__(0, "1")),
    "too few tokens": (BLOCK, "tokens", lambda header: header.update(tokens=[], position=0)),
    "too many tokens": (BLOCK, "tokens", lambda header: header.update(tokens=[1] * 17)),
    "no tokens": (BLOCK, "tokens", lambda header: header.pop("tokens")),
    "an unknown provenance": (BLOCK, "provenance", lambda header: header.update(provenance="dream")),
    "a provenance of no type": (BLOCK, "provenance", lambda header: header.update(provenance=None)),
    "an unknown field": (BLOCK, "extra", lambda header: header.update(extra=1)),
    "both kinds": (BLOCK, "snapshot", lambda header: header.update(snapshot=hexadecimal(32))),
    "a namespace nobody named": (BLOCK, "namespace", lambda header: header.update(namespace=hexadecimal(32))),
    "a parent nobody saw": (BLOCK, "parent", lambda header: header.update(parent=hexadecimal(32))),
    "a group beyond 16 bits": (BLOCK, "groups", other_group(0, 1 << 16)),
    "groups twice": (BLOCK, "groups", other_group(0, 1)),
    "a group of no size": (BLOCK, "groups", other_group(1, None)),
    "a group of other raw bytes": (BLOCK, "groups", other_group(2, 302)),
    "a group that unfolds": (BLOCK, "groups", other_group(2, 1 << 30)),
    "a group beyond everything": (BLOCK, "groups", other_group(1, 1 << 62)),
    "groups that are none": (BLOCK, "groups", lambda header: header.update(groups={})),
    "a namespace of another model": (NAMESPACE, "namespace", lambda header: header.update(namespace=hexadecimal(32))),
    "a fingerprint that is no text": (NAMESPACE, "fingerprint", lambda header: header.update(fingerprint=7)),
    "a model that is not Unicode": (NAMESPACE, "namespace_of", lambda header: header.update(namespace_of="\ud800")),
    "a model that colours": (NAMESPACE, "namespace_of", lambda header: header.update(namespace_of="\x1b[31mred")),
    "a model with a name too long": (NAMESPACE, "namespace_of", lambda header: header.update(namespace_of="x" * 65536)),
}


def changed(index: int, change: Change) -> bytes:
    entries = entries_of(export_bytes())
    change(entries[index].header)
    return sealed(entries)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named_and_nothing_of_its_batch_is_written(name: str) -> None:
    index, field, change = WRONG[name]
    store = MemoryBlockStore()
    with pytest.raises(InvalidExport, match=rf"entry {index + 1} of the export: '?{field}") as failure:
        import_bytes(store, changed(index, change), trust=True)
    assert "0 records before it were stored" in str(failure.value)
    assert sum(space.num_blocks + space.num_snapshots for space in store.usage().namespaces) == 0


@pytest.mark.parametrize("text", ["[", "[]", "7", "{}", '"', "[" * 100_000, '{"format": 2}', '{"format":1}', "nul"])
def test_a_fingerprint_must_describe_how_blocks_are_made(text: str) -> None:
    namespace = sha256(b"cairn chain\0" + text.encode()).hexdigest()
    entry = Entry({"namespace_of": "m", "namespace": namespace, "fingerprint": text})
    with pytest.raises(InvalidExport, match="entry 1 of the export: fingerprint"):
        import_bytes(MemoryBlockStore(), sealed([entry]), trust=True)


@pytest.mark.parametrize("text", [b"[" * 1_000_000, b"\xff\xfe", b"[1]", b"nul", b'{"a":' * 10_000])
def test_an_entry_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidExport, match="entry 1 of the export: JSON"):
        import_bytes(MemoryBlockStore(), sealed([Entry({}, text=text)]), trust=True)


def test_a_frame_that_is_none_is_refused() -> None:
    entries = entries_of(export_bytes())
    entries[BLOCK].body = bytes(len(entries[BLOCK].body))
    with pytest.raises(InvalidExport, match=f"entry {BLOCK + 1} of the export: group 0 cannot be decoded"):
        import_bytes(MemoryBlockStore(), sealed(entries), trust=True)


def test_what_follows_the_end_is_refused_and_so_is_a_wrong_count() -> None:
    data = export_bytes()
    for wrong in (data + b"x", sealed(entries_of(data), count=3)):
        with pytest.raises(InvalidExport, match=r"the end|entries of 3"):
            import_bytes(MemoryBlockStore(), wrong, trust=True)


def test_nothing_unfolds_beyond_what_the_file_pays_for() -> None:
    """Zeros shrink thousandfold: an importer refuses what would unfold so far, so exporters write them plainly."""
    zeros = HostPayload((TensorSpec("bfloat16", (1 << 20,)),), (memoryview(bytes(2 << 20)),))
    record = chain(ONE, 1)[0]
    record = Record(record.key, record.parent, record.position, record.key_ids, {GroupIndex(0): zeros})
    data = export_bytes(filled_store([record]))
    assert len(data) > (2 << 20) // MAX_RATIO
    store = MemoryBlockStore()
    assert import_bytes(store, data, trust=True).num_records == 1
    assert same(store.get([record.key])[0], record)

    entries = entries_of(data)
    entries[-1].body = b"".join(ZstdStateCodec().encode(zeros))
    entries[-1].header["groups"] = [[0, len(entries[-1].body), 2 << 20]]
    assert len(entries[-1].body) < 4096
    with pytest.raises(InvalidExport, match="groups claim 2097152 bytes in"):
        import_bytes(MemoryBlockStore(), sealed(entries), trust=True)


def test_what_hangs_on_an_unreadable_record_is_not_exported() -> None:
    class Forgetful(MemoryBlockStore):
        def get(self, keys: Any, groups: Any = None) -> Any:
            return [None if key == trunk[1].key else super(Forgetful, self).get([key])[0] for key in keys]

    trunk = chain(ONE, 4)
    store = Forgetful()
    store.open_namespace(ONE)
    store.put([*trunk, snapshot(trunk[3], [1])])
    data = export_bytes(store)
    assert import_bytes(MemoryBlockStore(), data, trust=True).num_records == 1


class TestTrust:
    """Whoever made an export decides what it answers: its key says who, or --trust says that it does not matter."""

    @pytest.mark.parametrize(
        ("signer", "key", "why"),
        [
            (None, None, "not signed"),
            (None, KEY, "not signed"),
            (KEY, None, "--key-file"),
            (KEY, ExportKey(b"o" * 32), "another key"),
        ],
        ids=["unsigned", "unsigned-with-a-key", "signed-without-the-key", "foreign"],
    )
    def test_an_export_of_anybody_needs_trust(self, signer: ExportKey | None, key: ExportKey | None, why: str) -> None:
        data, store = export_bytes(key=signer), MemoryBlockStore()
        with pytest.raises(InvalidExport, match=why):
            import_bytes(store, data, key)
        assert store.usage().namespaces == ()
        assert import_bytes(store, data, key, trust=True).num_records == len(content())

    def test_with_its_key_nothing_more_is_asked(self) -> None:
        store = MemoryBlockStore()
        assert import_bytes(store, export_bytes(key=KEY), KEY).num_records == len(content())
        assert all(map(same, store.get(keys_of(content())), content()))

    @pytest.mark.parametrize("what", ["state", "order", "end", "count", "nothing"])
    def test_what_somebody_else_signed_is_refused_though_its_checksums_hold(self, what: str) -> None:
        entries = entries_of(export_bytes())
        if what == "state":
            entries[-1].body = entries[-1].body[:-1] + bytes([entries[-1].body[-1] ^ 1])
        elif what == "order":
            entries[-1], entries[-2] = entries[-2], entries[-1]
        elif what == "end":
            del entries[-1]
        forged = sealed(entries, ExportKey(b"f" * 32), 1 if what == "count" else None, signer=KEY.id)
        store = MemoryBlockStore()
        with pytest.raises(InvalidExport, match="entry 1 of the export was not signed with this key"):
            import_bytes(store, forged, KEY)
        assert store.usage().namespaces == ()

    def test_entries_of_two_signed_exports_do_not_mix(self) -> None:
        """Both begin with the same namespace and are signed with the same key; each seal covers all before it."""
        mine, theirs = (export_bytes(filled_store(chain(ONE, 2, seed=seed)), KEY) for seed in (1, 2))
        ends = [end for end in range(17, len(mine)) if mine[:end] == theirs[:end]]
        assert len(ends) > 100
        for end in range(len(mine) // 2, len(mine), 101):
            with pytest.raises(InvalidExport):
                import_bytes(MemoryBlockStore(), mine[:end] + theirs[end:], KEY)

    def test_a_signature_that_was_taken_off_leaves_an_export_of_nobody(self) -> None:
        with pytest.raises(InvalidExport, match="not signed"):
            import_bytes(MemoryBlockStore(), sealed(entries_of(export_bytes())), KEY)

    def test_a_signed_export_cannot_be_cut(self) -> None:
        data = export_bytes(key=KEY)
        for end in range(0, len(data), 97):
            with pytest.raises(InvalidExport):
                import_bytes(MemoryBlockStore(), data[:end], KEY)

    def test_an_export_of_the_older_format_is_named(self) -> None:
        with pytest.raises(InvalidExport, match="older version"):
            import_bytes(MemoryBlockStore(), b"CAIRNEX1" + bytes(100), trust=True)
