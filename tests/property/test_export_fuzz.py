"""The reader of exports meets anything at all: the clear error or a sound import, nothing else.

`python -m tests.support.fuzz_imports COUNT SEED` goes on with real exports that were tampered with.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapters.export.format import MAGIC
from adapters.memory.block_store import MemoryBlockStore
from application.ports.record_transfer import InvalidExport
from tests.support.export_files import Entry, entries_of, export_bytes, import_bytes, sealed
from tests.support.fuzz_imports import fuzz

ENTRIES = entries_of(export_bytes())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70) | st.sampled_from(["ab" * 32]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def survive(data: bytes) -> None:
    store = MemoryBlockStore()
    with suppress(InvalidExport):
        import_bytes(store, data, trust=True)
    assert store.check_integrity(payloads=True).problems == ()


@given(st.binary(max_size=200), st.sampled_from([b"", MAGIC, MAGIC + bytes(8), MAGIC + bytes(8) + b"\x02\0\0\0{}"]))
def test_any_bytes(data: bytes, beginning: bytes) -> None:
    survive(beginning + data)


@given(st.integers(0, len(ENTRIES) - 1), st.data(), VALUES)
def test_any_value_in_any_field(index: int, data: st.DataObject, value: Any) -> None:
    entry = ENTRIES[index]
    name = data.draw(st.sampled_from(sorted(entry.header)))
    survive(sealed([*ENTRIES[:index], Entry({**entry.header, name: value}, entry.body), *ENTRIES[index + 1 :]]))


@given(st.integers(0, len(ENTRIES) - 1), st.binary(max_size=300))
def test_any_state(index: int, body: bytes) -> None:
    """Sizes that hold, so that the codec gets to see it."""
    entry = ENTRIES[index]
    header = {**entry.header, "groups": [[0, len(body), 600]]} if "groups" in entry.header else entry.header
    survive(sealed([*ENTRIES[:index], Entry(header, body), *ENTRIES[index + 1 :]]))


def test_real_exports_that_were_tampered_with(tmp_path: Path) -> None:
    outcomes = fuzz(tmp_path, 300, 11)
    assert outcomes["refused"] > 200
    assert outcomes["imported"] > 0
