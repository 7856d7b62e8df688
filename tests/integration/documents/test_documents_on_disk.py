"""Documents on disk: crashes, damage, full volumes, two servers, files of others, and what is left in the files."""

import sqlite3
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from adapters.fake.environment import FakeClock
from adapters.sqlite.database import Database
from adapters.sqlite.document_store import RETRY_S
from domain.prefix.fingerprint import NamespaceFilter
from domain.request.document import Document, DocumentKey, Owner
from tests.support.processes.processes import start
from tests.support.stores.kill_documents import numbered, open_documents
from tests.support.stores.lmdb_store import faults, leave_free, small_volume
from tests.support.telemetry.recording import RecordingEvents

SECRET = b"the answer to the question about the treasure"
BEGAN_NS = 1_700_000_000 * 10**9
NUM_KILLS = 6


def secret(name: str = "a", tenant: str = "") -> Document:
    return Document(DocumentKey(Owner(tenant), "response", name), SECRET, "demo", BEGAN_NS)


def is_in_files(folder: Path) -> bool:
    return any(SECRET in path.read_bytes() for path in folder.iterdir())


def test_acknowledged_documents_survive_every_kill(tmp_path: Path) -> None:
    for kill in range(NUM_KILLS):
        process = start("-m", "tests.support.stores.kill_documents", str(tmp_path / "documents"))
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(3 + 5 * kill)]
        process.kill()
        rest, _ = process.communicate()
        told += [int(line) for line in rest.splitlines() if line]
        events = RecordingEvents()
        store = open_documents(tmp_path / "documents", events)
        for number in told[-3:]:
            pair = [numbered(number), numbered(number + 1_000_000)]
            assert store.get([one.key for one in pair]) == pair
        last = [numbered(told[-1] + 1), numbered(told[-1] + 1_000_001)]
        assert len({one is None for one in store.get([one.key for one in last])}) == 1, "half a put is there"
        store.close()
        assert faults(events) == []


def test_in_a_rolling_restart_both_servers_keep_and_find_and_nothing_is_lost(tmp_path: Path) -> None:
    events = RecordingEvents()
    old, new = open_documents(tmp_path, events), open_documents(tmp_path, events)
    assert old.put([numbered(1)])
    assert new.put([numbered(2)])
    assert old.put([numbered(3)])
    keys = [numbered(number).key for number in (1, 2, 3)]
    assert all(old.get(keys))
    assert all(new.get(keys))
    old.close()
    assert new.put([numbered(4)])
    new.close()
    after = open_documents(tmp_path, events)
    assert all(after.get([*keys, numbered(4).key]))
    after.close()
    assert faults(events) == []


def test_a_clear_by_one_server_covers_what_another_streams_and_a_restart_brings_nothing_back(tmp_path: Path) -> None:
    clock = FakeClock()
    old, new = open_documents(tmp_path, clock=clock), open_documents(tmp_path, clock=clock)
    streamed = Document(secret().key, SECRET, "demo", clock.unix_ns())
    clock.advance(1)
    assert new.erase().problem == ""
    clock.advance(1)
    assert old.put([streamed])
    assert old.get([streamed.key]) == [None]
    for store in (old, new):
        store.close()
    again = open_documents(tmp_path, clock=clock)
    assert again.put([streamed])
    assert again.get([streamed.key]) == [None]
    again.close()
    assert not is_in_files(tmp_path)


def test_a_clear_by_a_clock_that_ran_ahead_refuses_nothing_today(tmp_path: Path) -> None:
    ahead = FakeClock()
    ahead.advance(366 * 86_400)
    store = open_documents(tmp_path, clock=ahead)
    store.erase()
    store.close()
    store = open_documents(tmp_path)
    assert store.put([secret()])
    assert store.get([secret().key]) == [secret()]
    store.close()


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir(mode=0o777)
    store = open_documents(folder)
    assert store.put([secret()])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list(folder.iterdir())) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    store.close()


def test_a_link_in_the_file_s_place_is_refused_and_memory_takes_its_place(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("somebody's")
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "documents.sqlite").symlink_to(elsewhere)
    events = RecordingEvents()
    store = open_documents(tmp_path / "documents", events)
    assert store.put([secret()])
    assert store.get([secret().key]) == [secret()]
    store.close()
    assert faults(events) == ["read_only"]
    assert elsewhere.read_text() == "somebody's"


@pytest.mark.parametrize("choice", [NamespaceFilter(), NamespaceFilter("demo", "bob")], ids=["all", "some"])
def test_erased_documents_are_in_no_file(tmp_path: Path, choice: NamespaceFilter) -> None:
    store = open_documents(tmp_path)
    for number in range(20):
        assert store.put([secret(str(number), "bob"), numbered(number)])
    assert store.delete([secret("0", "bob").key])
    assert is_in_files(tmp_path)
    report = store.erase(choice)
    assert (report.problem, report.num_documents) == ("", 39 if choice.is_everything else 19)
    assert not is_in_files(tmp_path)
    store.close()


def test_a_flipped_bit_is_a_miss_that_is_counted(tmp_path: Path) -> None:
    events = RecordingEvents()
    store = open_documents(tmp_path, events)
    assert store.put([secret(), numbered(2)])
    store.close()
    data = tmp_path / "documents.sqlite"
    data.write_bytes(data.read_bytes().replace(SECRET, b"T" + SECRET[1:]))
    store = open_documents(tmp_path, events)
    assert store.get([secret().key, numbered(2).key]) == [None, numbered(2)]
    assert store.usage().faults == {"checksum": 1}
    assert store.usage().num_documents == 1
    store.close()


def test_a_document_does_not_verify_in_another_s_place(tmp_path: Path) -> None:
    store = open_documents(tmp_path)
    mine, other = secret("mine", "alice").key, secret("mine", "bob").key
    assert store.put([secret("mine", "alice")])
    with sqlite3.connect(tmp_path / "documents.sqlite") as sql:
        sql.execute("UPDATE document SET id = ?", (other.id,))
    sql.close()
    assert store.get([other, mine]) == [None, None]
    assert store.usage().faults == {"checksum": 1}
    store.close()


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_database_is_replaced(tmp_path: Path, damage: str) -> None:
    store = open_documents(tmp_path)
    for number in range(20):
        assert store.put([numbered(number)])
    store.close()
    data = tmp_path / "documents.sqlite"
    content = data.read_bytes()
    data.write_bytes(content[:8192] if damage == "cut" else b"\xff" * len(content))
    events = RecordingEvents()
    store = open_documents(tmp_path, events)
    assert store.get([numbered(1).key]) == [None]
    assert faults(events) == ["damaged"]
    assert store.put([secret()])
    assert store.get([secret().key]) == [secret()]
    store.close()
    assert is_in_files(tmp_path)


def test_a_database_of_a_later_version_is_left_as_it_is(tmp_path: Path) -> None:
    open_documents(tmp_path).put([secret()])
    with sqlite3.connect(tmp_path / "documents.sqlite") as sql:
        sql.execute("PRAGMA user_version = 2")
    sql.close()
    events = RecordingEvents()
    store = open_documents(tmp_path, events)
    assert store.get([secret().key]) == [None]
    assert store.put([numbered(1)])
    assert store.get([numbered(1).key]) == [numbered(1)]
    store.close()
    assert faults(events) == ["newer"]
    assert is_in_files(tmp_path)


def test_on_a_full_volume_documents_are_kept_in_memory_and_everything_can_be_cleared(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 6 << 20) as volume:
        events = RecordingEvents()
        store = open_documents(volume / "documents", events, memory_bytes=1 << 20)
        assert store.put([secret()])
        leave_free(volume, 100_000)
        number = 0
        while not faults(events):
            store.put([numbered(number)])
            number += 1
        assert faults(events) == ["disk_full"]
        assert store.put([secret("in memory")])
        assert store.get([secret().key, secret("in memory").key]) == [secret(), secret("in memory")]
        leave_free(volume, 0)
        assert store.erase().problem == ""
        assert not is_in_files(volume / "documents")
        leave_free(volume, 4 << 20)
        later = replace(secret("later"), began_ns=FakeClock().unix_ns() + 1)
        assert store.put([later])
        assert store.get([secret().key, later.key]) == [None, later]
        store.close()
        assert is_in_files(volume / "documents")


def test_a_folder_that_is_deleted_is_a_miss_and_then_made_anew(tmp_path: Path) -> None:
    events = RecordingEvents()
    store = open_documents(tmp_path / "documents", events)
    assert store.put([secret()])
    rmtree(tmp_path / "documents")
    assert store.get([secret().key]) == [None]
    assert store.put([secret()])
    assert store.get([secret().key]) == [secret()]
    assert faults(events) == ["volume_gone"]
    store.close()
    assert is_in_files(tmp_path / "documents")


def test_an_unreadable_sector_costs_the_documents_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, whole = RecordingEvents(), Database.get
    store = open_documents(tmp_path, events)
    assert store.put([numbered(number) for number in range(5)])

    def get(self: Database, keys: Sequence[DocumentKey], *more: Any) -> list[Document | None]:
        if numbered(2).key in keys and self._file is not None:
            failure = sqlite3.OperationalError("disk I/O error")
            failure.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise failure
        return whole(self, keys, *more)

    monkeypatch.setattr(Database, "get", get)
    found = store.get([numbered(number).key for number in range(5)])
    assert found == [None if number == 2 else numbered(number) for number in range(5)]
    assert store.get([numbered(3).key]) == [numbered(3)]
    assert faults(events) == ["io_error"]
    store.close()


def test_a_volume_that_failed_is_tried_again(tmp_path: Path) -> None:
    events, clock = RecordingEvents(), FakeClock()
    (tmp_path / "documents").write_text("no folder")
    store = open_documents(tmp_path / "documents", events, clock=clock)
    assert store.put([secret()])
    (tmp_path / "documents").unlink()
    clock.advance(RETRY_S + 1)
    assert store.put([secret("b")])
    assert store.get([secret().key, secret("b").key]) == [secret(), secret("b")]
    store.close()
    assert is_in_files(tmp_path / "documents")


def test_a_lowered_quota_holds_from_the_next_put(tmp_path: Path) -> None:
    store = open_documents(tmp_path)
    for number in range(60):
        assert store.put([numbered(number)])
    store.close()
    smaller = open_documents(tmp_path, quota_bytes=2 << 20, memory_bytes=0)
    assert smaller.put([secret()])
    assert smaller.usage().stored_bytes <= 2 << 20
    assert smaller.get([numbered(59).key]) == [numbered(59)]
    smaller.close()
