"""A damaged, cut, foreign or newer store: detected, emptied or left alone, and never a wrong byte or a crash."""

import json
from pathlib import Path

import lmdb
import pytest

from application.ports.block_store import OpenFailure, PutOutcome, StoreOpenError
from tests.support.effort import drawn
from tests.support.processes.processes import finish, start
from tests.support.stores.damage.bit_flips import make
from tests.support.stores.damage.kill_writer import KILLS_A_STORE
from tests.support.stores.damage.power_cuts import cut_often
from tests.support.stores.damage.volatile_disk import Op, build_recorder, read_log, recording_environment
from tests.support.stores.lmdb_store import faults, open_store
from tests.support.stores.store_records import chain, held, keys_of, namespace_of
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("one")


def filled(path: Path) -> list[bytes]:
    store = open_store(path)
    assert store.put(chain(INFO, 4, size_bytes=50_000)) is PutOutcome.STORED
    store.close()
    return [path.read_bytes() for path in (path / "data.mdb",)]


@pytest.mark.slow
def test_thousands_of_flipped_bits(scratch: Path) -> None:
    make(scratch / "origin")
    num_files = drawn(64)
    runs = [
        start(
            "-m", "tests.support.stores.damage.bit_flips", str(scratch / "origin"), str(scratch / f"copy{part}"),
            "flip", str(part * num_files), str(num_files), "20",
        )
        for part in range(2)
    ]  # fmt: skip
    counts = [json.loads(finish(run, 250)) for run in runs]
    assert sum(count["bits"] for count in counts) >= 16 * num_files
    # LMDB trusts its pages: of one file in fifty it may die, and serves nothing wrong before.
    assert sum(count[kind] for count in counts for kind in count if "died" in kind) <= drawn(5)
    # The trial means something only if all three happen: nothing, a bad payload, a bad structure.
    for kind in ("harmless", "checksum", "damaged"):
        assert sum(count.get(kind, 0) for count in counts) > drawn(2)


def test_a_file_cut_anywhere(scratch: Path) -> None:
    make(scratch / "origin")
    folders, num_files = (str(scratch / "origin"), str(scratch / "copy")), drawn(64)
    run = start("-m", "tests.support.stores.damage.bit_flips", *folders, "cut", "0", str(num_files), "3")
    counts = json.loads(finish(run, 250))
    assert counts.get("damaged", 0) > num_files // 3


def test_a_file_cut_while_it_is_open(scratch: Path) -> None:
    program = f"""
from pathlib import Path
from tests.integration.store.test_store_damage import *
from tests.support.stores.store_records import same
path, events = Path({str(scratch)!r}) / "store", RecordingEvents()
store = open_store(path, events)
blocks = chain(INFO, 4, size_bytes=50_000)
assert store.put(blocks) is PutOutcome.STORED
with (path / "data.mdb").open("r+b") as file:
    file.truncate(20_000)
assert store.get(keys_of(blocks)) == [None] * 4
assert faults(events) == ["damaged"]
assert store.put(blocks) is PutOutcome.STORED
assert all(map(same, store.get(keys_of(blocks)), blocks))
assert store.check_integrity(payloads=True).problems == ()
store.close()
"""
    finish(start("-c", program), 60)


@pytest.mark.parametrize(
    "content", [b"x" * 100, bytes(8192), b"SQLite format 3\0" * 1000, b""], ids=["short", "zeros", "other", "empty"]
)
def test_an_unusable_database_is_emptied(tmp_path: Path, content: bytes) -> None:
    filled(tmp_path / "store")
    (tmp_path / "store" / "data.mdb").write_bytes(content)
    events = RecordingEvents()
    store = open_store(tmp_path / "store", events)
    assert faults(events) == (["damaged"] if content else [])
    blocks = chain(INFO, 2)
    assert store.put(blocks) is PutOutcome.STORED
    assert store.usage().faults == ({"damaged": 1} if content else {})
    store.close()


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with lmdb.open(str(path), max_dbs=8, lib_version=0) as other, other.begin(write=True) as txn:
        for name in (b"sys", b"rec", b"accounts"):
            txn.put(b"state", b"0" * 28, db=other.open_db(name, txn=txn))
    path.chmod(0o755)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    for read_only in (False, True):
        with pytest.raises(StoreOpenError) as refused:
            open_store(path, read_only=read_only)
        assert refused.value.failure is OpenFailure.FOREIGN
        assert str(path) in str(refused.value)
    assert {file.name: file.read_bytes() for file in path.iterdir()}.items() >= before.items()


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    (path / "format").write_text("cairn block store\nformat 3\n")
    before = (path / "data.mdb").read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreOpenError) as refused:
            open_store(path, read_only=read_only)
        assert refused.value.failure is OpenFailure.NEWER
    assert (path / "data.mdb").read_bytes() == before


def test_a_store_of_an_earlier_version_is_emptied_and_used(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    (path / "format").write_text("cairn block store\nformat 1\n")
    with pytest.raises(StoreOpenError, match="format 1, of an earlier version") as refused:
        open_store(path, read_only=True)
    assert refused.value.failure is OpenFailure.FOREIGN
    store = open_store(path, events := RecordingEvents())
    assert faults(events) == ["older"]
    assert store.get(keys_of(chain(INFO, 4, size_bytes=50_000))) == [None] * 4
    assert store.put(chain(INFO, 2)) is PutOutcome.STORED
    store.close()
    assert {file.name for file in path.iterdir()} == {"data.mdb", "format", "lock.mdb", "notes", "writer.lock"}
    open_store(path, events).close()
    assert faults(events) == ["older"]


def test_a_reader_changes_nothing_about_a_damaged_database(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    (path / "data.mdb").write_bytes(b"z" * 10_000)
    with pytest.raises(StoreOpenError) as refused:
        open_store(path, read_only=True)
    assert refused.value.failure is OpenFailure.DAMAGED
    assert (path / "data.mdb").read_bytes() == b"z" * 10_000


def test_a_bad_payload_is_quarantined_with_following_records(tmp_path: Path) -> None:
    path, blocks = tmp_path / "store", chain(INFO, 6, size_bytes=50_000)
    store = open_store(path)
    assert store.put(blocks) is PutOutcome.STORED
    needle = bytes(blocks[2].groups[min(blocks[2].groups)].buffers()[0])[::2][1000:1200]
    store.close()
    data = bytearray((path / "data.mdb").read_bytes())
    # The low bytes of a bfloat16 hold sign and mantissa, which are stored as they are but for the sign.
    at = next(
        index
        for index in range(len(data) - 200)
        if all((data[index + step] ^ needle[step]) & 0x7F == 0 for step in range(0, 200, 20))
    )
    data[at + 50] ^= 4
    (path / "data.mdb").write_bytes(data)
    events = RecordingEvents()
    store = open_store(path, events)
    assert store.check_integrity().problems == ()
    assert len(store.check_integrity(payloads=True).problems) == 1
    found = store.get(keys_of(blocks))
    assert [record is not None for record in found[:3]] == [True, True, False]
    assert faults(events) == ["checksum"]
    assert held(store, keys_of(blocks)) == [True] * 2 + [False] * 4
    assert store.check_integrity(payloads=True).problems == ()
    assert store.usage().faults == {"checksum": 1}
    store.close()


def test_many_kills(scratch: Path) -> None:
    num_kills = max(2 * KILLS_A_STORE, drawn(40))
    run = start("-m", "tests.support.stores.damage.kill_writer", str(scratch), str(num_kills), "11")
    summary = json.loads(finish(run, 280))
    assert summary["kills"] == num_kills
    assert summary["acknowledged"] > 2 * num_kills


@pytest.mark.parametrize(
    ("life", "num_cuts"),
    [("roomy", drawn(60)), ("tight", drawn(60))],
)
def test_a_power_cut_loses_what_it_may_and_nothing_else(scratch: Path, life: str, num_cuts: int) -> None:
    outcomes = cut_often(life, scratch, num_cuts, seed=1)
    assert outcomes.total() == num_cuts
    assert set(outcomes) == {"some groups"}


def test_the_first_start_makes_format_durable_before_the_database(scratch: Path) -> None:
    library, root, log = build_recorder(scratch), scratch / "root", scratch / "log"
    root.mkdir()
    program = (
        f"from tests.integration.store.test_store_damage import *\nopen_store(Path({str(root)!r}) / 'store').close()"
    )
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


@pytest.mark.parametrize("content", [b"x" * 9000, bytes(8192), b"short"])
def test_a_database_without_a_format_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "data.mdb").write_bytes(content)
    with pytest.raises(StoreOpenError) as refused:
        open_store(path)
    assert refused.value.failure is OpenFailure.FOREIGN
    assert [file.name for file in path.iterdir()] == ["writer.lock", "data.mdb"]
    assert (path / "data.mdb").read_bytes() == content
