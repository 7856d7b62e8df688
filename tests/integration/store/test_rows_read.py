"""What a restore from LMDB costs in index reads: the lookup asks for presence, the fetch reads a record's row, and
nobody else."""

from collections import Counter
from pathlib import Path

import pytest

from adapters.fake import ATTENTION, HYBRID, FakeOptions
from adapters.lmdb.rows import Row
from domain.models.state_layout import StateLayout
from tests.support.stores.cache_driver import VOCAB, CacheDriver
from tests.support.stores.lmdb_store import open_store

PROMPT = list(range(100, 740))


@pytest.mark.parametrize("layout", [ATTENTION, HYBRID], ids=["attention", "hybrid"])
def test_a_row_is_read_once_between_submission_and_restore(
    layout: StateLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = FakeOptions(layout=layout, vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
    store = open_store(tmp_path / "store")
    CacheDriver(options, store=store).run(PROMPT)
    store.close()
    store, counts, unpack = open_store(tmp_path / "store"), Counter[int](), Row.unpack

    def counted(name: bytes, value: bytes) -> Row:
        row = unpack(name, value)
        counts[row.id] += 1
        return row

    monkeypatch.setattr(Row, "unpack", counted)
    driver = CacheDriver(options, store=store)
    job = driver.begin(PROMPT)
    while job.position < 0:
        driver.step(job)
    read = Counter(counts)  # closing notes the uses, and reads rows for that
    store.close()
    assert job.position == len(PROMPT) - 1
    assert len(read) >= 40
    assert max(read.values()) == 1
