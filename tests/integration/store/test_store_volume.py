"""The volume under a store: full, limited, read-only, gone and back, and shared with other processes."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from adapters.decorators.awaited_store import MAX_RETRY_S
from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore
from application.ports.block_store import OpenFailure, PutOutcome, StoreOpenError
from application.settings import StoreSettings
from domain.byte_size import ByteSize
from domain.prefix.record import Record
from interfaces.composition.store import build_store
from tests.support.processes.cache_cli import isolate, make_store, run
from tests.support.processes.processes import finish, start
from tests.support.stores.lmdb_store import PAUSE_S, faults, leave_free, open_store, small_volume
from tests.support.stores.store_records import chain, keys_of, namespace_of, same
from tests.support.stores.two_models import ONE
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("one")


def put_until_refused(store: LmdbBlockStore) -> list[Record]:
    stored: list[Record] = []
    for seed in range(200):
        record = chain(INFO, 1, seed=seed, size_bytes=100_000)
        if store.put(record) is not PutOutcome.STORED:
            return stored
        stored += record
    raise AssertionError("never refused")


def all_there(store: LmdbBlockStore, records: list[Record]) -> bool:
    return all(map(same, store.get(keys_of(records)), records))


@pytest.fixture(name="small_volume")
def mounted(tmp_path: Path) -> Iterator[Path]:
    with small_volume(tmp_path / "volume", 6 << 20) as folder:
        yield folder


def test_a_full_volume_refuses_writes_until_space_returns(small_volume: Path) -> None:
    ballast = small_volume / "ballast"
    ballast.write_bytes(bytes(3 << 20))
    events, clock = RecordingEvents(), FakeClock()
    store = open_store(small_volume / "store", events, clock)
    stored = put_until_refused(store)
    assert faults(events) == ["disk_full"]
    assert len(stored) > 5
    assert all_there(store, stored)
    assert store.check_integrity(payloads=True).problems == ()

    more = chain(INFO, 3, seed=999, size_bytes=100_000)
    ballast.unlink()
    assert store.put(more) is PutOutcome.UNAVAILABLE
    clock.advance(PAUSE_S + 1)
    assert store.put(more) is PutOutcome.STORED
    assert all_there(store, stored + more)
    assert store.check_integrity(payloads=True).problems == ()
    store.close()
    reopened = open_store(small_volume / "store", events)
    assert all_there(reopened, stored + more)
    reopened.close()
    assert faults(events) == ["disk_full"]


def test_a_full_volume_still_deletes(small_volume: Path) -> None:
    (small_volume / "ballast").write_bytes(bytes(3 << 20))
    clock = FakeClock()
    store = open_store(small_volume / "store", clock=clock)
    stored = put_until_refused(store)
    clock.advance(PAUSE_S + 1)
    assert store.delete(keys_of(stored[:3])) == 3
    assert all_there(store, stored[3:])
    # Pages freed by a transaction can be used again by the second one after it.
    store.delete(keys_of(stored[3:4]))
    store.delete(keys_of(stored[4:5]))
    assert store.put(chain(INFO, 1, seed=999, size_bytes=50_000)) is PutOutcome.STORED
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def test_a_volume_too_full_to_open_is_an_error_that_names_it(small_volume: Path) -> None:
    (small_volume / "ballast").write_bytes(bytes(6 << 20))
    with pytest.raises(StoreOpenError) as refused:
        open_store(small_volume / "store")
    assert refused.value.failure is OpenFailure.VOLUME
    assert str(small_volume) in str(refused.value)


def test_a_full_volume_opens_is_read_and_is_cleared(small_volume: Path) -> None:
    """Nothing new is written to open it, and clearing everything makes room first."""
    store = open_store(small_volume / "store")
    stored = [record for seed in range(8) for record in chain(INFO, 1, seed=seed, size_bytes=100_000)]
    assert store.put(stored) is PutOutcome.STORED
    store.close()
    leave_free(small_volume, 0)
    clock, events = FakeClock(), RecordingEvents()
    store = open_store(small_volume / "store", events, clock)
    assert all_there(store, stored)
    assert store.put(chain(INFO, 3, seed=99, size_bytes=100_000)) is PutOutcome.UNAVAILABLE
    assert faults(events) == ["disk_full"]
    clock.advance(PAUSE_S + 1)
    report = store.erase()
    assert (report.num_records, report.problem) == (8, "")
    assert store.put(stored) is PutOutcome.STORED
    store.close()


def test_a_store_that_cannot_be_opened_can_be_cleared(small_volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(small_volume, monkeypatch)
    path = make_store(small_volume / "store", chain(ONE, 8, size_bytes=100_000))
    (path / "lock.mdb").unlink()
    leave_free(small_volume, 0)
    with pytest.raises(StoreOpenError, match="No space left"):
        open_store(path)
    assert "No space left" in run("clear", "--store", path, "--yes", "--model", "org/one").stderr
    assert (path / "data.mdb").exists()
    cleared = run("clear", "--store", path, "--yes", "--json")
    assert (cleared.exit_code, json.loads(cleared.stdout)["problem"]) == (0, None)
    assert not (path / "data.mdb").exists()
    open_store(path).close()


def test_a_server_retries_a_failed_volume(small_volume: Path) -> None:
    leave_free(small_volume, 0)
    clock, events = FakeClock(), RecordingEvents()
    settings = StoreSettings(dir=str(small_volume / "store"), quota=ByteSize(num_bytes=4 << 20))
    store = build_store(settings, events, clock)
    assert store is not None
    blocks = chain(INFO, 2)
    clock.advance(MAX_RETRY_S)
    assert (store.usage().quota_bytes, store.put(blocks)) == (0, PutOutcome.UNAVAILABLE)
    leave_free(small_volume, 6 << 20)
    clock.advance(MAX_RETRY_S)
    assert store.usage().quota_bytes == 4 << 20
    assert store.put(blocks) is PutOutcome.STORED
    assert faults(events) == ["open_volume"]
    store.close()


def test_a_read_only_volume_can_be_read(small_volume: Path) -> None:
    blocks = chain(INFO, 3)
    store = open_store(small_volume / "store")
    assert store.put(blocks) is PutOutcome.STORED
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_volume)], check=True)
    with pytest.raises(StoreOpenError) as refused:
        open_store(small_volume / "store")
    assert refused.value.failure is OpenFailure.VOLUME
    reader = open_store(small_volume / "store", read_only=True)
    assert all_there(reader, blocks)
    assert reader.put(chain(INFO, 1, seed=5)) is PutOutcome.UNAVAILABLE
    reader.close()


def limited_process() -> None:
    """The body of the next test, in a process of its own because the limit is the process's."""
    path = Path(sys.argv[1])
    events, clock = RecordingEvents(), FakeClock()
    store = open_store(path, events, clock)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    stored = put_until_refused(store)
    assert faults(events)[0] in {"disk_full", "io_error"}, faults(events)
    assert all_there(store, stored)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    clock.advance(PAUSE_S + 1)
    more = chain(INFO, 3, seed=999, size_bytes=100_000)
    assert store.put(more) is PutOutcome.STORED
    assert all_there(store, stored + more)
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def test_a_limit_on_file_size_is_survived(tmp_path: Path) -> None:
    program = "from tests.integration.store.test_store_volume import limited_process; limited_process()"
    finish(start("-c", program, str(tmp_path / "store")), 60)


def test_a_store_that_moves_away_and_comes_back(tmp_path: Path) -> None:
    events, clock, blocks = RecordingEvents(), FakeClock(), chain(INFO, 3)
    store = open_store(tmp_path / "store", events, clock)
    assert store.put(blocks) is PutOutcome.STORED
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert store.get(keys_of(blocks)) == [None] * 3
    assert store.put(chain(INFO, 1, seed=5)) is PutOutcome.UNAVAILABLE
    assert faults(events) == ["volume_gone"]
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    clock.advance(PAUSE_S + 1)
    assert store.put(chain(INFO, 1, seed=5)) is PutOutcome.STORED
    assert all_there(store, blocks)
    store.close()


def test_a_store_whose_folder_is_deleted_starts_again(tmp_path: Path) -> None:
    events, clock, blocks = RecordingEvents(), FakeClock(), chain(INFO, 3)
    store = open_store(tmp_path / "store", events, clock)
    assert store.put(blocks) is PutOutcome.STORED
    subprocess.run(["rm", "-r", str(tmp_path / "store")], check=True)
    assert store.get(keys_of(blocks)) == [None] * 3
    clock.advance(PAUSE_S + 1)
    assert store.put(blocks) is PutOutcome.STORED
    assert all_there(store, blocks)
    assert faults(events) == ["volume_gone"]
    store.close()


def test_the_free_reserve_of_the_volume_is_left_alone(tmp_path: Path) -> None:
    blocks = chain(INFO, 2)
    store = open_store(tmp_path / "store")
    assert store.put(blocks) is PutOutcome.STORED
    store.close()
    events = RecordingEvents()
    careful = open_store(tmp_path / "store", events, free_reserve_bytes=1 << 60)
    assert careful.put(chain(INFO, 1, seed=7)) is PutOutcome.UNAVAILABLE
    assert careful.put(chain(INFO, 1, seed=8)) is PutOutcome.UNAVAILABLE
    assert all_there(careful, blocks)
    assert faults(events) == ["low_space"]
    assert careful.usage().faults == {"low_space": 2}
    careful.close()


def test_a_flush_syncs_only_what_was_committed_since_the_last_one(tmp_path: Path) -> None:
    class Counting:
        """An environment of LMDB's whose syncs are counted."""

        num_syncs = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def sync(self, force: bool) -> None:
            self.num_syncs += 1
            inner.sync(force)

    store = open_store(tmp_path / "store")
    environment: Any = store._environment  # pyright: ignore[reportPrivateUsage]
    inner, counting = environment._env, Counting()
    environment._env = counting
    found = list[int]()
    assert store.put(chain(INFO, 2)) is PutOutcome.STORED
    for _ in range(3):
        store.flush()
        found.append(counting.num_syncs)
    store.close()
    assert found == [1, 1, 1]


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    path, blocks = tmp_path / "store", chain(INFO, 20, size_bytes=20_000)
    writer = open_store(path)
    assert writer.put(blocks[:10]) is PutOutcome.STORED
    with pytest.raises(StoreOpenError) as refused:
        open_store(path)
    assert refused.value.failure is OpenFailure.BUSY
    assert str(os.getpid()) in str(refused.value)

    program = f"""
from tests.integration.store.test_store_volume import *
path, blocks = Path({str(path)!r}), chain(INFO, 20, size_bytes=20_000)
try:
    open_store(path)
except StoreOpenError as refused:
    assert refused.failure is OpenFailure.BUSY
else:
    raise AssertionError("two writers")
reader = open_store(path, read_only=True)
assert all_there(reader, blocks[:10])
print("ready", flush=True)
seen = 0
while seen < 20:
    found = reader.get(keys_of(blocks))
    assert all(record is None or same(record, block) for record, block in zip(found, blocks))
    now = sum(record is not None for record in found)
    assert now >= seen
    seen = now
assert reader.check_integrity(payloads=True).problems == ()
assert reader.delete(keys_of(blocks)) == 0
reader.close()
"""
    reader = start("-c", program)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    for block in blocks[10:]:
        assert writer.put([block]) is PutOutcome.STORED
    finish(reader, 60)
    writer.close()
    open_store(path).close()


def test_a_killed_reader_does_not_make_the_file_grow(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = open_store(path, quota_bytes=4 << 20)
    assert writer.put(chain(INFO, 1)) is PutOutcome.STORED
    program = f"""
import time
from tests.integration.store.test_store_volume import *
reader = open_store(Path({str(path)!r}), read_only=True)
with reader._environment.reading():
    print("ready", flush=True)
    time.sleep(60)
"""
    reader = start("-c", program)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    reader.kill()
    reader.communicate()
    for seed in range(100):
        assert writer.put(chain(INFO, 1, seed=seed, size_bytes=100_000)) is PutOutcome.STORED
    assert (path / "data.mdb").stat().st_size <= 4 << 20
    assert writer.check_integrity().problems == ()
    writer.close()


def test_a_lagging_reader_costs_writes_only(tmp_path: Path) -> None:
    path = tmp_path / "store"
    events = RecordingEvents()
    writer = open_store(path, events, quota_bytes=4 << 20)
    first = chain(INFO, 1)
    assert writer.put(first) is PutOutcome.STORED
    with writer._environment.reading():
        outcomes = {writer.put(chain(INFO, 1, seed=seed, size_bytes=100_000)) for seed in range(100)}
    assert outcomes == {PutOutcome.STORED, PutOutcome.FULL}
    assert faults(events) == ["map_full"]
    assert (path / "data.mdb").stat().st_size <= 4 << 20
    assert writer.check_integrity(payloads=True).problems == ()
    assert writer.put(chain(INFO, 1, seed=1000, size_bytes=100_000)) is PutOutcome.STORED
    writer.close()


def test_a_full_map_pauses_no_later_write(tmp_path: Path) -> None:
    events = RecordingEvents()
    store = open_store(tmp_path / "store", events)

    def fill() -> None:
        raise lmdb.MapFullError("mdb_del: Environment mapsize limit reached")

    store._containment.write(fill, None)  # pyright: ignore[reportPrivateUsage]
    assert faults(events) == ["map_full"]
    assert store.put(chain(INFO, 1)) is PutOutcome.STORED
    store.close()
