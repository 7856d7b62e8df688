"""The store that the settings ask for: where it lies, how large it may become, and what happens when it cannot open."""

from dataclasses import replace
from pathlib import Path
from shutil import disk_usage

import pytest

from adapters.decorators.awaited_store import MAX_RETRY_S
from adapters.fake import FakeModel, FakeOptions
from adapters.fake.clock import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore
from adapters.memory.block_store import MemoryBlockStore
from adapters.system.memory_probe import SystemMemory
from application.events import StoreFault, StoreOpened
from application.ports.block_store import StoreUsage
from application.ports.record_writer import PutOutcome
from application.settings import StoreSettings
from domain.byte_size import ByteSize
from domain.codec_choice import StoreRates, StoreWrites, compression_pays
from domain.ids import ModelId
from domain.memory.ledger import MemoryReading
from domain.memory.shape import MemoryShape, StateCost
from domain.model_card import ModelSource
from interfaces.cli.banner import describe_slow_disk
from interfaces.composition.store import (
    build_store,
    hurry_ratio,
    open_lmdb_store,
    quota_bytes,
    store_dir,
    store_durability,
    store_writes,
    writes_state_s,
)
from interfaces.composition.store_rates import remember_rates, remembered_rates, store_rates
from tests.support.store_records import EventList, chain, keys_of, namespace_of, same

GIB = float(1 << 30)
QUOTA = ByteSize(num_bytes=8 << 20)


@pytest.mark.parametrize(
    ("disk_gib_s", "decode_gib_s", "pays"),
    [(0.5, 3.0, True), (2.0, 2.0, True), (2.0, 1.9, False), (6.0, 3.0, False), (6.0, 12.0, True)],
)
def test_compression_pays_while_decoding_keeps_up_with_the_disk(
    disk_gib_s: float, decode_gib_s: float, pays: bool
) -> None:
    assert compression_pays(StoreRates(disk_gib_s * GIB, decode_gib_s * GIB, 2 * GIB)) is pays


def test_a_disk_that_is_slow_to_write_gets_compressed_state() -> None:
    assert compression_pays(StoreRates(6 * GIB, 3 * GIB, GIB))
    assert not compression_pays(StoreRates(6 * GIB, 0.9 * GIB, GIB))


@pytest.mark.parametrize(
    ("asked", "write_bytes_s", "codec", "comes_to"),
    [
        ("auto", 2e9, "zstd", "safe"),
        ("auto", 1.6e9, "zstd", "fast"),
        ("auto", 2e9, "raw", "fast"),
        ("auto", 2.5e9, "raw", "safe"),
        ("safe", 1e8, "zstd", "safe"),
        ("fast", 1e10, "zstd", "fast"),
    ],
)
def test_commits_are_synced_one_by_one_where_the_disk_keeps_up(
    tmp_path: Path, asked: str, write_bytes_s: float, codec: str, comes_to: str
) -> None:
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA, codec=codec, durability=asked)
    (tmp_path / "store").mkdir(mode=0o700)
    remember_rates(tmp_path / "store", StoreRates(1e9, 1e12, write_bytes_s))
    assert store_durability(settings) == comes_to
    store = open_lmdb_store(settings, EventList(), FakeClock())
    assert (tmp_path / "store" / "boot").exists() is (comes_to == "fast")
    by = "auto" if asked == "auto" else "setting"
    assert store.usage().writes == StoreWrites(comes_to, by, codec, "setting")
    store.close()


def test_a_disk_that_was_not_measured_is_synced_each_time(tmp_path: Path) -> None:
    settings = StoreSettings(dir=str(tmp_path))
    assert store_durability(settings) == "safe"
    assert store_writes(settings, None) == StoreWrites("safe", "unmeasured", "zstd", "unmeasured")


def test_the_default_folder_is_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store_dir(StoreSettings()) == tmp_path / "cairn" / "store"
    assert store_dir(StoreSettings(dir="~/somewhere")) == Path.home() / "somewhere"


def test_the_default_quota_is_a_share_of_what_is_free(tmp_path: Path) -> None:
    free = disk_usage(tmp_path).free
    assert 0 < quota_bytes(StoreSettings(), tmp_path / "not" / "there") <= free // 4
    half = quota_bytes(StoreSettings(quota=ByteSize(share=0.5)), tmp_path)
    assert abs(half - disk_usage(tmp_path).free // 2) < 1 << 30
    assert quota_bytes(StoreSettings(quota=QUOTA), tmp_path) == 8 << 20


def test_each_kind_builds_its_store(tmp_path: Path) -> None:
    events = EventList()
    assert build_store(StoreSettings(kind="off"), events, FakeClock()) is None
    assert isinstance(build_store(StoreSettings(kind="memory", quota=QUOTA), events, FakeClock()), MemoryBlockStore)
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA, codec="zstd")
    store = build_store(settings, events, FakeClock())
    assert isinstance(store, LmdbBlockStore)
    assert store.put(chain(namespace_of("one"), 2)) is PutOutcome.STORED
    store.close()
    assert events.of(StoreFault) == []


def test_a_server_goes_on_without_a_store_it_cannot_open(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / "letter.txt").write_text("mine")
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA, codec="raw")
    events = EventList()
    assert build_store(settings, events, FakeClock()) is None
    (fault,) = events.of(StoreFault)
    assert isinstance(fault, StoreFault)
    assert fault.kind == "open_foreign"
    assert str(tmp_path) in fault.message


def test_a_store_that_another_has_is_tried_again_until_it_is_ours(tmp_path: Path) -> None:
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA, codec="raw")
    first, clock, events = open_lmdb_store(settings, EventList(), FakeClock()), FakeClock(), EventList()
    store, one = build_store(settings, events, clock), namespace_of("one")
    assert store is not None
    store.open_namespace(one)
    records = chain(one, 2)
    for _ in range(4):
        clock.advance(MAX_RETRY_S)
        assert store.usage() == StoreUsage(quota_bytes=0, stored_bytes=0, namespaces=(), faults={"open_busy": 1})
        assert store.put(records) is PutOutcome.UNAVAILABLE
        assert store.prepare(records)() is PutOutcome.UNAVAILABLE
        assert store.get(keys_of(records)) == [None, None]
        assert store.erase().problem
    first.close()
    assert store.usage().quota_bytes == 0  # not each time that somebody asks
    clock.advance(MAX_RETRY_S)
    assert store.usage().quota_bytes == 8 << 20
    assert store.prepare(records)() is PutOutcome.STORED
    assert [space.info.model for space in store.usage().namespaces] == ["one"]
    assert [(event.kind) for event in events.of(StoreFault) if isinstance(event, StoreFault)] == ["open_busy"]
    assert events.of(StoreOpened) == [StoreOpened(int(5 * MAX_RETRY_S * 1e9), clock.now_ns())]
    store.close()


def test_a_store_that_was_closed_is_not_tried_again(tmp_path: Path) -> None:
    settings = StoreSettings(dir=str(tmp_path / "store"), quota=QUOTA, codec="raw")
    first, clock = open_lmdb_store(settings, EventList(), FakeClock()), FakeClock()
    store = build_store(settings, EventList(), clock)
    assert store is not None
    store.close()
    first.close()
    clock.advance(MAX_RETRY_S)
    assert store.usage().quota_bytes == 0
    open_lmdb_store(settings, EventList(), FakeClock()).close()


def test_rates_are_measured_once_and_remembered(tmp_path: Path) -> None:
    rates = store_rates(tmp_path / "store")
    assert rates is not None
    assert rates.disk_bytes_s > 0
    assert rates.decode_bytes_s > 0
    assert store_rates(tmp_path / "store") == rates
    remember_rates(tmp_path / "store", StoreRates(1.0, 2.0, 3.0))
    assert store_rates(tmp_path / "store") == StoreRates(1.0, 2.0, 3.0)
    assert store_rates(Path("/proc/nowhere")) is None


def test_rates_of_another_volume_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's folder that was copied to another disk brings the rates of its old one."""
    remember_rates(tmp_path, impossible := StoreRates(1.0, 2.0, 3.0))
    assert remembered_rates(tmp_path) == impossible
    monkeypatch.setattr("interfaces.composition.store_rates.volume_id", lambda _path: "another")
    assert remembered_rates(tmp_path) is None
    assert (measured := store_rates(tmp_path)) not in {None, impossible}
    assert remembered_rates(tmp_path) == measured


@pytest.mark.parametrize("text", ['{"disk_bytes_s": 1, "decode_bytes_s": 2, "write_bytes_s": 3}', "[1]", "7", "", "{"])
def test_rates_that_cannot_be_told_are_measured_anew(tmp_path: Path, text: str) -> None:
    """Also those of an earlier version, which did not say of which volume they are."""
    (tmp_path / "rates.json").write_text(text)
    assert remembered_rates(tmp_path) is None


@pytest.mark.parametrize("rate", ['"fast"', "null", "NaN", "Infinity", "0", "-1", "[1]", '"1"', f"1{'0' * 400}"])
def test_a_rate_that_no_disk_has_is_measured_anew(tmp_path: Path, rate: str) -> None:
    """Somebody may have written to the file: the server starts all the same."""
    remember_rates(tmp_path, StoreRates(1.0, 2.0, 3.5))
    text = (tmp_path / "rates.json").read_text()
    assert text.count("3.5") == 1
    (tmp_path / "rates.json").write_text(text.replace("3.5", rate))
    assert remembered_rates(tmp_path) is None


@pytest.mark.parametrize(("decode_bytes_s", "shrinks"), [(1e12, True), (1.0, False)])
def test_auto_goes_by_what_was_measured(tmp_path: Path, decode_bytes_s: float, shrinks: bool) -> None:
    path = tmp_path / "store"
    path.mkdir()
    remember_rates(path, StoreRates(1e9, decode_bytes_s, 1e9))
    settings = StoreSettings(dir=str(path), quota=QUOTA, codec="auto")
    store = open_lmdb_store(settings, EventList(), FakeClock())
    assert store.put(chain(namespace_of("one"), 2, size_bytes=200_000)) is PutOutcome.STORED
    space = store.usage().namespaces[0]
    assert (space.stored_bytes < 0.9 * space.raw_bytes) is shrinks
    writes = store.usage().writes
    assert writes is not None
    assert (writes.codec, writes.codec_by) == ("zstd" if shrinks else "raw", "auto")
    store.close()


def test_a_memory_stores_share_is_a_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemMemory, "read", lambda _self: MemoryReading(1000, 900, 100))
    store = build_store(StoreSettings(kind="memory", quota=ByteSize(share=0.25)), EventList(), FakeClock())
    assert store is not None
    assert store.usage().quota_bytes == 250


@pytest.mark.parametrize(
    ("codec", "decode_bytes_s", "shrinks", "ratio"),
    [("auto", 1e12, False, 1.47), ("auto", 1.0, True, 1 / 1.47), ("zstd", 1e12, True, 1.47)],
)
def test_in_a_hurry_the_other_codec_is_taken_unless_somebody_chose_one(
    tmp_path: Path, codec: str, decode_bytes_s: float, shrinks: bool, ratio: float
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    remember_rates(path, StoreRates(1e9, decode_bytes_s, 1e9))
    settings = StoreSettings(dir=str(path), quota=QUOTA, codec=codec)
    assert hurry_ratio(settings) == ratio
    store = open_lmdb_store(settings, EventList(), FakeClock())
    records = chain(namespace_of("one"), 2, size_bytes=200_000)
    assert store.prepare(records, hurry=True)() is PutOutcome.STORED
    space = store.usage().namespaces[0]
    assert (space.stored_bytes < 0.9 * space.raw_bytes) is shrinks
    assert all(map(same, store.get(keys_of(records)), records))
    store.close()


def test_what_the_disk_takes_is_told_of_state(tmp_path: Path) -> None:
    settings = StoreSettings(dir=str(tmp_path), quota=QUOTA, codec="raw")
    assert writes_state_s(settings) is None
    remember_rates(tmp_path, StoreRates(1e9, 1e12, 1e8))
    assert writes_state_s(settings) == 1e8
    dense = writes_state_s(replace(settings, codec="auto"))
    assert dense is not None
    assert dense > 1.4e8


def test_a_disk_slower_than_prompts_are_computed_is_told_in_tokens_of_the_model() -> None:
    toy = FakeModel(ModelSource(ModelId("toy"), "p"), FakeOptions()).description
    model = replace(toy, memory=MemoryShape(states=(StateCost(100_000), StateCost(47_000))))
    assert describe_slow_disk(2e9, model) == ""
    told = describe_slow_disk(147e6, model)
    assert told.startswith("slow: stores 1,000 tokens/s of this model (147 MB/s); ")
    assert told.endswith("waits in memory, where a kill loses it")
    unsynced = describe_slow_disk(147e6, model, is_synced=False)
    assert unsynced.endswith("where a power cut, and beyond what the system caches a kill, loses it")
