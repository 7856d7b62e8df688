"""Power cuts, from the real writes and syncs of every file of a store; failing syncs; and what older versions tore."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from adapters.fake.clock import FakeClock
from adapters.lmdb import compaction
from adapters.lmdb.background_sync import BackgroundSync
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.faults import Unsynced
from adapters.lmdb.last_point import LastPoint
from adapters.lmdb.private_files import sync_file
from adapters.lmdb.sync_point import SyncPoint
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import OpenFailure, StoreOpenError
from application.ports.record_writer import PutOutcome
from domain.record import Record
from tests.support.io_log import Op, build_recorder, read_log, recording_environment
from tests.support.power_cuts import cut_often
from tests.support.processes import fast_folder, finish, start
from tests.support.store_records import EventList, chain, keys_of, namespace_of, same

INFO = namespace_of("one")
FORMAT = b"cairn block store\nformat 1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-power-", dir=fast_folder(tmp_path)))
    yield folder
    rmtree(folder, ignore_errors=True)


def open_store(path: Path, events: EventList | None = None, **options: object) -> LmdbBlockStore:
    chosen = LmdbOptions(**{"quota_bytes": 4 << 20, **options})  # type: ignore[arg-type]
    return LmdbBlockStore(path, chosen, ZstdStateCodec(), events or EventList(), FakeClock())


def faults(events: EventList) -> list[str]:
    return [event.kind for event in events.of(StoreFault) if isinstance(event, StoreFault)]


@pytest.mark.parametrize(
    ("life", "num_cuts"),
    [("roomy", 35), ("tight", 40), ("fast", 50), ("fast-killed", 25), ("fast-failing", 25), ("fast-tight", 35)],
)
def test_a_power_cut_loses_what_it_may_and_nothing_else(folder: Path, life: str, num_cuts: int) -> None:
    outcomes = cut_often(life, folder, num_cuts, seed=1)
    assert outcomes.total() == num_cuts
    # Of a store whose commits are not synced some cuts find it closed, or without a point as its file is replaced.
    if life in {"fast-killed", "fast-failing"}:
        assert outcomes["rolled back"]
        assert set(outcomes) <= {"some groups", "rolled back"}
    elif life.startswith("fast"):
        assert outcomes["rolled back"]
        assert set(outcomes) <= {"some groups", "rolled back", "emptied"}
    else:
        assert set(outcomes) == {"some groups"}


def test_the_first_start_makes_format_durable_before_the_database(folder: Path) -> None:
    library, root, log = build_recorder(folder), folder / "root", folder / "log"
    root.mkdir()
    program = f"from tests.integration.test_store_power_cut import *\nopen_store(Path({str(root)!r}) / 'store').close()"
    finish(start("-c", program, environment=recording_environment(library, root, log)), 60)
    names: dict[int, str] = {}
    steps: list[str] = []
    for record in read_log(log):
        if record.op in {Op.OPEN, Op.MKDIR}:
            names[record.inode] = Path(record.path).name
        if record.op is Op.SYNC:
            steps.append(f"sync {names.get(record.inode, 'parent')}")
        elif record.op is Op.RENAME or (record.op is Op.OPEN and record.is_created):
            steps.append(f"{record.op.name} {Path(record.other or record.path).name}".lower())
    format_steps = ["open format.new", "sync format.new", "rename format", "sync store"]
    database = steps.index("open data.mdb")
    assert steps[:1] == ["sync parent"]
    assert [step for step in steps[:database] if step in format_steps] == format_steps
    assert "sync store" in steps[database:]


FAILING = """
from tests.integration.test_store_power_cut import *
import sys
path, fail, events = Path(sys.argv[1]), Path(sys.argv[2]), EventList()
store = open_store(path, events, durability="fast")
assert store.put(chain(INFO, 2)) is PutOutcome.STORED
assert (path / "boot").exists()
fail.touch()
store.close()
assert (path / "boot").exists(), "the marker went although nothing was synced"
assert faults(events) == ["io_error"], events.events
assert store.usage().faults["io_error"] >= 1
fail.unlink()
store = open_store(path, durability="fast")
assert all(map(same, store.get(keys_of(chain(INFO, 2))), chain(INFO, 2)))
store.close()
assert not (path / "boot").exists()
"""


def test_a_sync_that_fails_keeps_the_boot_marker(folder: Path) -> None:
    library, fail = build_recorder(folder), folder / "fail"
    environment = recording_environment(library, folder / "store", folder / "log", fail)
    finish(start("-c", FAILING, str(folder / "store"), str(fail), environment=environment), 60)


TORN = [None, b"", b"cairn bl", FORMAT[:-2], FORMAT[:-1], bytes(27), FORMAT[:9] + bytes(18)]


@pytest.mark.parametrize("text", TORN)
def test_a_torn_format_is_written_again_where_the_database_is_ours(tmp_path: Path, text: bytes | None) -> None:
    path, events, blocks = tmp_path / "store", EventList(), chain(INFO, 3)
    store = open_store(path)
    assert store.put(blocks) is PutOutcome.STORED
    store.close()
    (path / "format").unlink()
    if text is not None:
        (path / "format").write_bytes(text)
    reader = open_store(path, read_only=True)
    assert all(map(same, reader.get(keys_of(blocks)), blocks))
    reader.close()
    assert not (path / "format").exists() if text is None else (path / "format").read_bytes() == text
    store = open_store(path, events)
    assert all(map(same, store.get(keys_of(blocks)), blocks))
    assert (path / "format").read_bytes() == FORMAT
    assert faults(events) == []
    store.close()


@pytest.mark.parametrize("text", TORN)
def test_a_torn_format_without_a_database_is_a_new_store(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "data.mdb").touch()
    if text is not None:
        (path / "format").write_bytes(text)
    store = open_store(path)
    assert store.put(chain(INFO, 1)) is PutOutcome.STORED
    store.close()


@pytest.mark.parametrize("content", [b"x" * 9000, bytes(8192), b"short"])
def test_a_torn_format_beside_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "format").touch()
    (path / "data.mdb").write_bytes(content)
    with pytest.raises(StoreOpenError) as refused:
        open_store(path)
    assert refused.value.failure is OpenFailure.FOREIGN
    assert ((path / "format").read_bytes(), (path / "data.mdb").read_bytes()) == (b"", content)


def test_headers_that_were_kept_although_that_failed_are_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a point could not be synced: it may be there after a power cut, so its pages must be."""
    keep = SyncPoint.keep

    def failing(point: SyncPoint, headers: bytes) -> None:
        keep(point, headers)
        raise OSError(5, "Input/output error")

    path, events, blocks = tmp_path / "store", EventList(), chain(INFO, 3)
    store = open_store(path)
    assert store.put(blocks) is PutOutcome.STORED
    store.close()
    store = open_store(path, events, durability="fast", pause_s=0.0)
    assert store._background is not None
    store._background.close()  # after its first sync
    store._environment.resize()  # without a point from here on
    monkeypatch.setattr(SyncPoint, "keep", failing)
    store.flush()
    monkeypatch.undo()
    kept = (path / "synced").read_bytes()
    for seed in range(1, 12):  # three pages and more each time, and those of the first are free
        assert store.delete(keys_of(blocks[:1])) == (3 if seed == 1 else 0)
        assert store.put(chain(INFO, 3, seed=seed)) is PutOutcome.STORED
    data = (path / "data.mdb").read_bytes()
    store.close()
    assert faults(events) == ["io_error"]
    (path / "data.mdb").write_bytes(data)
    (path / "synced").write_bytes(kept)
    (path / "boot").write_text("another")
    store = open_store(path)
    assert all(map(same, store.get(keys_of(blocks)), blocks))
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def cut_off(path: Path, num_unsynced: int) -> list[Record]:
    """A store as a power cut leaves it that lost nothing by chance; returns what was synced."""
    blocks = chain(INFO, 3)
    store = open_store(path)
    assert store.put(blocks) is PutOutcome.STORED
    store.close()
    store = open_store(path, durability="fast")
    assert store._background is not None
    store._background.close()  # after its first sync
    for seed in range(1, 1 + num_unsynced):
        assert store.put(chain(INFO, 3, seed=seed)) is PutOutcome.STORED
    data, synced = (path / "data.mdb").read_bytes(), (path / "synced").read_bytes()
    store.close()
    (path / "data.mdb").write_bytes(data)
    (path / "synced").write_bytes(synced)
    return blocks


@pytest.fixture
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sync in the background never comes."""

    def never(_background: BackgroundSync) -> None:
        pass

    monkeypatch.setattr(BackgroundSync, "_run", never)


def power_cut(path: Path, cut: Path) -> EventList:
    """A copy of a store that is open, as a power cut leaves it that lost nothing by chance; it is to be opened anew."""
    copytree(path, cut)
    (cut / "boot").write_text("another")
    return EventList()


@pytest.mark.usefixtures("no_background")
@pytest.mark.parametrize("life_before", ["closed", "killed", "rolled back", "safe"])
def test_a_power_cut_before_the_first_sync_costs_what_came_since_it_was_opened(
    tmp_path: Path, life_before: str
) -> None:
    path, blocks, later = tmp_path / "store", chain(INFO, 3), chain(INFO, 2, seed=1)
    before = open_store(path, durability="safe" if life_before == "safe" else "fast")
    assert before.put(blocks) is PutOutcome.STORED
    if life_before == "killed":
        path = copytree(path, tmp_path / "killed")
    before.close()
    if life_before == "rolled back":
        before = open_store(path, durability="fast")
        assert before.put(chain(INFO, 1, seed=2)) is PutOutcome.STORED
        power_cut(path, path := tmp_path / "first cut")
        before.close()
    store = open_store(path, durability="fast")
    assert store.put(later) is PutOutcome.STORED
    events = power_cut(path, tmp_path / "cut")
    store.close()
    os.utime(tmp_path / "cut" / "synced", (0, 1_000_000_000))
    store = open_store(tmp_path / "cut", events)
    assert faults(events) == ["rolled_back"]
    assert "the last sync, at 2001-09-09 01:46:40 UTC, is gone" in str(events.events)
    assert all(map(same, store.get(keys_of(blocks)), blocks))
    assert store.get(keys_of(later)) == [None, None]
    assert store.check_integrity(payloads=True).problems == ()
    store.close()


def test_after_a_sync_that_failed_it_goes_back_to_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may call written what it dropped: whoever opens the store next relies on none of it."""
    path, events = tmp_path / "store", EventList()
    before, lost, after = (chain(INFO, 3, seed=seed) for seed in range(3))

    def failing(_point: LastPoint, _sync: object) -> None:
        raise Unsynced(5, "Input/output error")

    store = open_store(path, events, durability="fast", pause_s=0.0)
    assert store._background is not None
    store._background.close()
    assert store.put(before) is PutOutcome.STORED
    store.flush()
    assert store.put(lost) is PutOutcome.STORED
    monkeypatch.setattr(LastPoint, "_sync", failing)
    store.flush()
    monkeypatch.undo()
    killed = copytree(path, tmp_path / "killed")
    with pytest.raises(StoreOpenError, match="its disk failed to sync"):
        open_store(killed, read_only=True)
    assert store.put(after) is PutOutcome.STORED
    store.flush()
    cut_events = power_cut(path, tmp_path / "cut")
    for one, found, kept, gone in (
        (store, events, [*before, *after], lost),
        (open_store(tmp_path / "cut", cut_events), cut_events, [*before, *after], lost),
        (open_store(killed, killed_events := EventList()), killed_events, before, [*lost, *after]),
    ):
        assert faults(found) == [*(["io_error"] if one is store else []), "rolled_back"]
        assert all(map(same, one.get(keys_of(kept)), kept))
        assert one.get(keys_of(gone)) == [None] * len(gone)
        assert one.check_integrity(payloads=True).problems == ()
        one.close()


def test_what_is_to_be_rolled_back_is_not_read_before(tmp_path: Path) -> None:
    path = tmp_path / "store"
    blocks = cut_off(path, 1)
    (path / "boot").write_text("another")
    with pytest.raises(StoreOpenError, match=r"when the machine went down.*start the server") as refused:
        open_store(path, read_only=True)
    assert refused.value.failure is OpenFailure.DAMAGED
    open_store(path).close()
    reader = open_store(path, read_only=True)
    assert all(map(same, reader.get(keys_of(blocks)), blocks))
    reader.close()


READING = """
from tests.integration.test_store_power_cut import *
store = open_store(Path(sys.argv[1]), read_only=True)
print("open", flush=True)
sys.stdin.read()
store.close()
"""


@pytest.mark.parametrize("num_unsynced", [4, 5])
def test_a_store_is_rolled_back_whoever_has_opened_it(tmp_path: Path, num_unsynced: int) -> None:
    """LMDB finds the last header by a number that those who have the database open share, and which of two it is."""
    path = tmp_path / "store"
    blocks = cut_off(path, num_unsynced)
    with subprocess.Popen(
        [sys.executable, "-c", READING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"open\n"
        (path / "boot").write_text("another")
        store = open_store(path, events := EventList())
        assert faults(events) == ["rolled_back"]
        assert all(map(same, store.get(keys_of(blocks)), blocks))
        store.close()
        reader.communicate(timeout=60)


def test_a_power_cut_while_it_is_compacted_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cut, blocks = tmp_path / "store", tmp_path / "cut", chain(INFO, 3)

    def cut_when_all_is_copied(handle: int) -> None:
        sync_file(handle)
        copytree(path, cut)

    monkeypatch.setattr(compaction, "sync_file", cut_when_all_is_copied)
    store = open_store(path, durability="fast")
    assert store.put(blocks) is PutOutcome.STORED
    store.compact()
    store.close()
    (cut / "boot").write_text("another")
    store = open_store(cut, events := EventList())
    assert faults(events) == ["rolled_back"]
    assert all(map(same, store.get(keys_of(blocks)), blocks))
    store.close()
