"""store.max_age: records expire by their last use, over restarts and changes of the machine's clock."""

from pathlib import Path

import pytest

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.events import RecordsEvicted
from application.ports.block_store import PutOutcome
from application.settings import StoreSettings
from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.errors import InvalidRequest
from domain.prefix.record import BlockKey, Record
from interfaces.composition.store import open_lmdb_store
from tests.support.stores.store_records import chain, held, keys_of, namespace_of, snapshot
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("aged")
DAY_S, HOUR_S = 86_400, 3_600


class Tried:
    """A store with a maximum age of 30 days, and the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.events = RecordingEvents()
        self.store = self.open()

    def open(self, max_age_s: int | None = 30 * DAY_S) -> LmdbBlockStore:
        settings = LmdbOptions(8 << 20, max_age_s=max_age_s)
        self.store = LmdbBlockStore(self.path, settings, ZstdStateCodec(), self.events, self.clock)
        return self.store

    def reopen(self, max_age_s: int | None = 30 * DAY_S) -> None:
        self.store.close()
        self.open(max_age_s)

    def put(self, records: list[Record]) -> list[Record]:
        assert self.store.put(records) is PutOutcome.STORED
        return records

    def days(self, count: float, step_s: float = 6 * HOUR_S) -> None:
        """Idle ones, with the flushes that an idle server makes."""
        for _ in range(int(count * DAY_S / step_s)):
            self.clock.advance(step_s)
            self.store.flush()

    def present(self, records: list[Record]) -> int:
        keys = [record.key for record in records if isinstance(record.key, BlockKey)]
        return sum(held(self.store, keys))

    def num_marks(self) -> int:
        with self.store._environment.reading() as txn:  # pyright: ignore[reportPrivateUsage]
            keys = [key for key, _ in txn.cursor(self.store._environment.trees.sys)]  # pyright: ignore[reportPrivateUsage]
        return sum(key.startswith(b"mark") for key in keys)


@pytest.fixture
def tried(tmp_path: Path) -> "Tried":
    return Tried(tmp_path / "store")


def test_unused_records_expire_and_used_ones_stay(tried: Tried) -> None:
    tried.store.flush()
    used, unused = tried.put(chain(INFO, 4)), tried.put(chain(INFO, 3, seed=1))
    branch = tried.put([*chain(INFO, 2, seed=2, after=used[1]), snapshot(unused[2], [1])])
    for _ in range(5):
        tried.days(7)
        tried.store.touch(keys_of(used))
        tried.store.flush()
    assert tried.present(used) == 4
    assert tried.present(unused) == tried.present(branch) == 0
    assert tried.store.get([branch[2].key]) == [None]
    tried.days(31)
    assert tried.present(used) == 0
    assert tried.store.usage().evicted == 10
    gone = tried.events.of(RecordsEvicted)
    assert (sum(event.num_records for event in gone), {event.reason for event in gone}) == (10, {"age"})
    assert tried.store.check_integrity(payloads=True).problems == ()
    assert dict(tried.store.usage().faults) == {}


def test_age_counts_over_restarts(tried: Tried) -> None:
    tried.store.flush()
    records = tried.put(chain(INFO, 2))
    for _ in range(3):
        tried.days(10)
        tried.reopen()
    assert tried.present(records) == 2
    tried.clock.advance(DAY_S)
    tried.store.flush()
    assert tried.present(records) == 0


def test_an_unwritten_use_counts(tried: Tried) -> None:
    tried.store.flush()
    records = tried.put(chain(INFO, 2))
    tried.clock.advance(31 * DAY_S)
    tried.store.touch(keys_of(records))
    tried.put(chain(INFO, 1, seed=5))
    assert tried.present(records) == 2


def test_ages_count_from_the_day_of_the_setting(tried: Tried) -> None:
    tried.reopen(None)
    records = tried.put(chain(INFO, 2))
    num_marks = tried.num_marks()
    tried.days(100)
    assert tried.num_marks() == num_marks
    tried.reopen()
    tried.days(29)
    assert tried.present(records) == 2
    tried.days(2)
    assert tried.present(records) == 0
    tried.put(records)
    tried.reopen(None)
    tried.days(100)
    assert tried.present(records) == 2


def test_records_being_read_do_not_expire(tried: Tried) -> None:
    tried.store.flush()
    records = tried.put(chain(INFO, 2))
    with tried.store._uses.reading(keys_of(records)):
        tried.days(40)
        assert tried.present(records) == 2
    tried.days(1)
    assert tried.present(records) == 0


def test_expiry_runs_in_bounded_steps(tried: Tried) -> None:
    tried.store.flush()
    records = [record for seed in range(700) for record in chain(INFO, 1, seed=seed, size_bytes=60)]
    for start in range(0, 700, 100):
        tried.put(records[start : start + 100])
    tried.clock.advance(HOUR_S)
    tried.store.flush()
    tried.clock.advance(31 * DAY_S)
    left = [700]
    while left[-1]:
        tried.store.flush()
        left.append(tried.present(records))
        assert len(left) < 10
    assert left == [700, 188, 0]


def test_marks_are_an_hour_apart_and_go_when_they_are_old(tried: Tried) -> None:
    tried.reopen(2 * DAY_S)
    tried.days(1, step_s=900)
    assert 22 <= tried.num_marks() <= 26
    tried.days(4, step_s=HOUR_S)
    assert 47 <= tried.num_marks() <= 50


def test_a_clock_set_back_changes_no_age(tried: Tried) -> None:
    old = tried.put(chain(INFO, 2))
    tried.days(20)
    new = tried.put(chain(INFO, 2, seed=1))
    tried.days(1)
    tried.clock = FakeClock(unix_offset_ns=tried.clock.unix_ns() - 10**9 * 60 * DAY_S)
    tried.reopen()
    tried.days(5)
    assert (tried.present(old), tried.present(new)) == (2, 2)
    tried.days(6)
    assert (tried.present(old), tried.present(new)) == (0, 2)
    tried.days(20)
    assert tried.present(new) == 0


def test_a_clock_that_was_ahead_keeps_expiry_working(tmp_path: Path) -> None:
    tried = Tried(tmp_path / "store")
    tried.clock = FakeClock(unix_offset_ns=tried.clock.unix_ns() + 10**9 * 400 * DAY_S)
    tried.reopen()
    tried.store.flush()
    records = tried.put(chain(INFO, 2))
    tried.clock = FakeClock()
    tried.reopen()
    tried.days(29)
    assert tried.present(records) == 2
    tried.days(2)
    assert tried.present(records) == 0


def test_the_setting_reaches_the_store(tmp_path: Path) -> None:
    settings = StoreSettings(
        dir=str(tmp_path / "store"), quota=ByteSize(num_bytes=8 << 20), max_age=Duration.parse("2d")
    )
    clock = FakeClock()
    store = open_lmdb_store(settings, RecordingEvents(), clock)
    store.flush()
    records = chain(INFO, 2)
    assert store.put(records) is PutOutcome.STORED
    for _ in range(5):
        clock.advance(DAY_S / 2)
        store.flush()
    assert store.get(keys_of(records)) == [None, None]
    store.close()


@pytest.mark.parametrize(("text", "kind"), [("59m", "lmdb"), ("4000d", "lmdb"), ("2d", "memory"), ("2d", "off")])
def test_ages_that_cannot_be_kept_are_refused(text: str, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=r"store\.max_age"):
        StoreSettings(kind=kind, max_age=Duration.parse(text))


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "30 days", "1w", "9" * 12 + "d"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="30d"):
        Duration.parse(text)


@pytest.mark.parametrize("text", ["30d", "36h", "90m", "45s"])
def test_durations_are_shown_as_they_are_written(text: str) -> None:
    assert str(Duration.parse(text)) == text
