"""Documents on LMDB: crashes, damage, full volumes, other people's folders, and what is left in the files."""

import stat
import subprocess
from pathlib import Path

import pytest

from adapters.fake.clock import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import OpenFailure, StoreOpenError
from application.ports.record_writer import PutOutcome
from domain.document import Document, DocumentKey, Owner
from tests.support.kill_documents import numbered, open_documents
from tests.support.processes import start
from tests.support.store_records import EventList, chain, keys_of, namespace_of
from tests.support.volumes import leave_free, small_volume

SECRET = b"the answer to the question about the treasure"
NUM_KILLS = 6


def faults(events: EventList) -> list[str]:
    return [event.kind for event in events.of(StoreFault) if isinstance(event, StoreFault)]


def secret(name: str = "a", tenant: str = "") -> Document:
    return Document(DocumentKey(Owner(tenant), "response", name), SECRET, "demo", 1_700_000_000)


def test_a_restart_finds_what_was_put_and_scans_nothing(tmp_path: Path) -> None:
    store = open_documents(tmp_path)
    assert store.put([numbered(1), numbered(2)])
    store.close()
    events = EventList()
    again = open_documents(tmp_path, events)
    assert again.get([numbered(1).key, numbered(2).key]) == [numbered(1), numbered(2)]
    again.close()
    assert faults(events) == []


def test_what_was_told_to_be_in_survives_every_kill(tmp_path: Path) -> None:
    for kill in range(NUM_KILLS):
        process = start("-m", "tests.support.kill_documents", str(tmp_path / "documents"))
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(3 + 5 * kill)]
        process.kill()
        rest, _ = process.communicate()
        told += [int(line) for line in rest.splitlines() if line]
        events = EventList()
        store = open_documents(tmp_path / "documents", events)
        for number in told[-3:]:
            pair = [numbered(number), numbered(number + 1_000_000)]
            assert store.get([one.key for one in pair]) == pair
        last = [numbered(told[-1] + 1), numbered(told[-1] + 1_000_001)]
        assert len({one is None for one in store.get([one.key for one in last])}) == 1, "half a put is there"
        store.close()
        assert faults(events) == []


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    store = open_documents(tmp_path / "documents")
    assert store.put([secret()])
    store.close()
    assert stat.S_IMODE((tmp_path / "documents").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "documents").iterdir()} == {0o600}


@pytest.mark.parametrize("is_everything", [True, False])
def test_what_is_erased_is_in_no_file(tmp_path: Path, is_everything: bool) -> None:
    store = open_documents(tmp_path)
    assert store.put([secret("a", "alice"), numbered(2)])
    assert any(SECRET in path.read_bytes() for path in tmp_path.iterdir())
    report = store.erase(None if is_everything else lambda info: info.tenant == "alice" and info.model == "demo")
    assert report.problem == ""
    assert not any(SECRET in path.read_bytes() for path in tmp_path.iterdir())
    store.close()


def test_a_flipped_bit_is_a_miss_that_is_counted(tmp_path: Path) -> None:
    events = EventList()
    store = open_documents(tmp_path, events)
    assert store.put([secret(), numbered(2)])
    data = tmp_path / "data.mdb"
    content = data.read_bytes()
    at = content.index(SECRET)
    with data.open("r+b") as file:
        file.seek(at)
        file.write(b"T")
    assert store.get([secret().key, numbered(2).key]) == [None, numbered(2)]
    assert store.usage().faults == {"checksum": 1}
    assert store.usage().num_documents == 1
    store.close()


def test_a_document_does_not_verify_in_another_s_place(tmp_path: Path) -> None:
    store = open_documents(tmp_path)
    mine, other = secret("mine", "alice").key, secret("mine", "bob").key
    assert store.put([secret("mine", "alice")])
    environment = store._environment
    with environment.writing() as txn:
        txn.put(other.id, txn.get(mine.id, db=environment.trees.rec), db=environment.trees.rec)
    assert store.get([other]) == [None]
    assert store.usage().faults == {"damaged": 1}
    store.close()


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_database_is_set_aside(tmp_path: Path, damage: str) -> None:
    store = open_documents(tmp_path)
    for number in range(20):
        assert store.put([numbered(number)])
    store.close()
    data = tmp_path / "data.mdb"
    content = data.read_bytes()
    data.write_bytes(content[:8192] if damage == "cut" else b"\xff" * len(content))
    events = EventList()
    store = open_documents(tmp_path, events)
    assert faults(events) == ["damaged"]
    assert store.get([numbered(1).key]) == [None]
    assert store.put([secret()])
    assert store.get([secret().key]) == [secret()]
    store.close()


def test_a_full_volume_refuses_until_space_returns(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 6 << 20) as volume:
        events, clock = EventList(), FakeClock()
        store = open_documents(volume / "documents", events, clock=clock)
        assert store.put([secret()])
        leave_free(volume, 100_000)
        number = 0
        while store.put([numbered(number)]):
            number += 1
        assert faults(events) == ["disk_full"]
        assert store.get([secret().key]) == [secret()]
        leave_free(volume, 4 << 20)
        assert not store.put([numbered(number)])
        clock.advance(61)
        assert store.put([numbered(number)])
        assert store.get([secret().key, numbered(number).key]) == [secret(), numbered(number)]
        store.close()


def test_a_folder_that_is_deleted_is_a_miss_and_then_made_anew(tmp_path: Path) -> None:
    events, clock = EventList(), FakeClock()
    store = open_documents(tmp_path / "documents", events, clock=clock)
    assert store.put([secret()])
    subprocess.run(["rm", "-r", str(tmp_path / "documents")], check=True)
    assert store.get([secret().key]) == [None]
    clock.advance(61)
    assert store.put([secret()])
    assert store.get([secret().key]) == [secret()]
    assert faults(events) == ["volume_gone"]
    store.close()


def test_a_lowered_quota_is_kept_from_the_start(tmp_path: Path) -> None:
    store = open_documents(tmp_path)
    for number in range(60):
        assert store.put([numbered(number)])
    store.close()
    smaller = open_documents(tmp_path, quota_bytes=2 << 20)
    assert (tmp_path / "data.mdb").stat().st_size <= 2 << 20
    assert smaller.get([numbered(59).key]) == [numbered(59)]
    smaller.close()


def test_a_second_server_is_refused_by_name(tmp_path: Path) -> None:
    store = open_documents(tmp_path)
    with pytest.raises(StoreOpenError) as refused:
        open_documents(tmp_path)
    assert refused.value.failure is OpenFailure.BUSY
    store.close()


def test_blocks_and_documents_do_not_take_each_other_s_folders(tmp_path: Path) -> None:
    def blocks(path: Path) -> LmdbBlockStore:
        return LmdbBlockStore(path, LmdbOptions(8 << 20), ZstdStateCodec(), EventList(), FakeClock())

    def documents(path: Path) -> object:
        return open_documents(path)

    records = chain(namespace_of("one"), 2)
    stored = blocks(tmp_path / "store")
    assert stored.put(records) is PutOutcome.STORED
    stored.close()
    store = open_documents(tmp_path / "store" / "documents")
    assert store.put([secret()])
    store.close()
    for opens, path in ((blocks, tmp_path / "store" / "documents"), (documents, tmp_path / "store")):
        for _ in range(2):
            with pytest.raises(StoreOpenError, match="is not a cairn") as refused:
                opens(path)
            assert refused.value.failure is OpenFailure.FOREIGN
            (path / "format").unlink(missing_ok=True)  # a power cut may have taken it; what is in the database tells
    stored = blocks(tmp_path / "store")
    assert all(stored.get(keys_of(records)))
    stored.close()
    store = open_documents(tmp_path / "store" / "documents")
    assert store.get([secret().key]) == [secret()]
    store.close()
