"""Sudden death: of the process, by kill -9 at random moments; of the machine, by images a power cut can leave."""

import json
import mmap
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest

from adapters.fake.clock import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.environment import Environment
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import PutOutcome
from domain.record import Record
from tests.support.processes import fast_folder, finish, start
from tests.support.store_records import EventList, chain, keys_of, namespace_of, same, snapshot

INFO = namespace_of("one")
QUOTA_BYTES = 1 << 20
PAGE_BYTES = mmap.PAGESIZE
SECTOR_BYTES = 512


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-crash-", dir=fast_folder(tmp_path)))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_two_hundred_kills(scratch: Path) -> None:
    run = start("-m", "tests.support.kill_writer", str(scratch), "200", "11")
    summary = json.loads(finish(run, 280))
    assert summary["kills"] == 200
    assert summary["acknowledged"] > 500


def test_a_few_kills(scratch: Path) -> None:
    run = start("-m", "tests.support.kill_writer", str(scratch), "12", "5")
    assert json.loads(finish(run, 120))["acknowledged"] > 20


def open_store(path: Path) -> tuple[LmdbBlockStore, EventList]:
    events = EventList()
    return LmdbBlockStore(path, LmdbOptions(QUOTA_BYTES), ZstdStateCodec(), events, FakeClock()), events


def open_image(path: Path, image: bytes) -> tuple[LmdbBlockStore, EventList]:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    (path / "format").write_text("cairn block store\nformat 1\n")
    (path / "data.mdb").write_bytes(image)
    return open_store(path)


@cache
def groups() -> list[list[Record]]:
    found: list[list[Record]] = []
    for number in range(45):
        size_bytes = Random(number).choice([300, 3000, 40_000])
        blocks = chain(INFO, 2, seed=number, size_bytes=size_bytes)
        found.append([*blocks, snapshot(blocks[1], [number], size_bytes=size_bytes)])
    return found


def record_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A store's life with evictions and deletions: the file after each single commit."""
    images: list[bytes] = []
    note = Environment._note_file

    def note_and_copy(environment: Environment) -> None:
        note(environment)
        images.append((path / "data.mdb").read_bytes())

    store, _ = open_store(path)
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "_note_file", note_and_copy)
        for number, group in enumerate(groups()):
            assert store.put(group) is PutOutcome.STORED
            if number % 7 == 6:
                store.delete(keys_of(groups()[number - 3][:1]))
    assert store.usage().evicted > 10
    store.close()
    return images


def power_cut(images: list[bytes], at: int, random: Random) -> tuple[bytes, set[int]]:
    """An image that a power cut can leave while commit `at + 1` is written, and the commits it may amount to.

    The store syncs the data pages of a commit and then writes its header, which becomes durable with the next sync.
    So the data pages of `at` are there, and its header may be. Of the data pages of `at + 1` any sector may be there;
    once they were synced all are, with the header of `at`, and then its own header may be.
    """
    before, current, after = (pages_of(images[index], len(images[at + 1])) for index in (at - 1, at, at + 1))
    if random.random() < 0.3:
        headers = random.choice([current, after])
        return b"".join([*headers[:2], *after[2:]]), {at, at + 1}
    headers = random.choice([before, current])
    return b"".join([*headers[:2], *(torn(old, new, random) for old, new in pairs(current, after))]), {at - 1, at}


def pages_of(data: bytes, size_bytes: int) -> list[bytes]:
    data = data.ljust(size_bytes, b"\0")
    return [data[start : start + PAGE_BYTES] for start in range(0, len(data), PAGE_BYTES)]


def pairs(old: list[bytes], new: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(old[2:], new[2:], strict=True)


def torn(old: bytes, new: bytes, random: Random) -> bytes:
    if old == new or random.random() < 0.3:
        return new
    sectors = range(0, PAGE_BYTES, SECTOR_BYTES)
    return b"".join((new if random.random() < 0.5 else old)[at : at + SECTOR_BYTES] for at in sectors)


def visible(store: LmdbBlockStore) -> frozenset[int]:
    """The numbers of the groups of which something is there; what is there is right."""
    found: set[int] = set()
    for number, group in enumerate(groups()):
        for record, stored in zip(group, store.get(keys_of(group)), strict=True):
            assert stored is None or same(stored, record)
            if stored is not None:
                found.add(number)
    return frozenset(found)


@pytest.mark.slow
def test_a_power_cut_leaves_the_state_of_a_commit(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = record_commits(scratch / "origin", monkeypatch)
    states: list[frozenset[int]] = []
    for image in images:
        store, _ = open_image(scratch / "image", image)
        states.append(visible(store))
        store.close()
    random, extra = Random(4), chain(INFO, 2, seed=999)
    rolled_back = 0
    for trial in range(200):
        at = random.randrange(1, len(images) - 1)
        image, allowed = power_cut(images, at, random)
        store, events = open_image(scratch / "cut", image)
        problems = store.check_integrity(payloads=True).problems
        assert problems == (), f"trial {trial}, commit {at}"
        found = visible(store)
        assert found in [states[index] for index in allowed], f"trial {trial}, commit {at}"
        rolled_back += found != states[max(allowed)]
        assert store.put(extra) is PutOutcome.STORED
        assert store.check_integrity(payloads=True).problems == ()
        store.close()
        assert events.of(StoreFault) == []
    assert 20 < rolled_back < 180
