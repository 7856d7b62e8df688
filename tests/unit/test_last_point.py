"""The last whole state of a database: which it is, whose reader guards it, and what its file says then."""

from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.faults import Unsynced
from adapters.lmdb.last_point import LastPoint
from adapters.lmdb.sync_point import SyncPoint

PAGE_BYTES = 4096


@pytest.fixture
def env(tmp_path: Path) -> Iterator[lmdb.Environment]:
    with lmdb.open(str(tmp_path), sync=False, map_size=1 << 20) as env:
        assert env.stat()["psize"] == PAGE_BYTES or pytest.skip("pages of another size")
        commit(env)
        yield env


@pytest.fixture
def kept(tmp_path: Path, env: lmdb.Environment) -> SyncPoint:
    return SyncPoint(tmp_path / "synced", tmp_path / "data.mdb")


def commit(env: lmdb.Environment) -> None:
    with env.begin(write=True) as txn:
        txn.put(b"transaction", str(env.info()["last_txnid"] + 1).encode())


def guarded(env: lmdb.Environment) -> list[int]:
    """The transactions that readers see."""
    lines = [line.split()[-1] for line in env.readers().splitlines()]
    return sorted(int(text) for text in lines if text.isdecimal())


def make(point: LastPoint, env: lmdb.Environment) -> None:
    point.reach(point.begin(env, PAGE_BYTES), lambda: env.sync(True))


def fail() -> None:
    raise OSError(5, "Input/output error")


def test_it_is_the_state_of_its_beginning_and_not_of_its_end(env: lmdb.Environment, kept: SyncPoint) -> None:
    point = LastPoint(kept, is_wanted=True)
    headers = kept.headers(PAGE_BYTES)
    begun = point.begin(env, PAGE_BYTES)
    commit(env)
    assert point.transaction is None
    point.reach(begun, lambda: env.sync(True))
    assert point.transaction == env.info()["last_txnid"] - 1
    assert headers in kept.path.read_bytes()
    assert guarded(env) == [point.transaction]


def test_the_reader_of_the_one_before_goes_once_the_next_is_kept(env: lmdb.Environment, kept: SyncPoint) -> None:
    point, seen = LastPoint(kept, is_wanted=True), list[list[int]]()
    make(point, env)
    commit(env)
    point.reach(point.begin(env, PAGE_BYTES), lambda: seen.append(guarded(env)))
    last = env.info()["last_txnid"]
    assert seen == [[last - 1, last]]
    assert guarded(env) == [last]


def test_one_that_was_begun_earlier_does_not_replace_it(env: lmdb.Environment, kept: SyncPoint) -> None:
    point = LastPoint(kept, is_wanted=True)
    early = point.begin(env, PAGE_BYTES)
    commit(env)
    make(point, env)
    file = kept.path.read_bytes()
    point.reach(early, fail)
    assert (point.transaction, kept.path.read_bytes()) == (env.info()["last_txnid"], file)
    assert guarded(env) == [point.transaction]


def test_a_sync_that_fails_leaves_the_last_one(env: lmdb.Environment, kept: SyncPoint) -> None:
    point = LastPoint(kept, is_wanted=True)
    with pytest.raises(OSError, match="Input/output error") as failure:
        point.reach(point.begin(env, PAGE_BYTES), fail)
    assert not isinstance(failure.value, Unsynced)
    assert (point.transaction, guarded(env), kept.path.exists()) == (None, [], False)
    make(point, env)
    last, file = env.info()["last_txnid"], kept.path.read_bytes()
    commit(env)
    with pytest.raises(Unsynced, match="Input/output error"):
        point.reach(point.begin(env, PAGE_BYTES), fail)
    assert (point.transaction, guarded(env), kept.path.read_bytes()) == (last, [last], file)


def test_a_database_whose_commits_are_synced_has_none(env: lmdb.Environment, kept: SyncPoint) -> None:
    point, synced = LastPoint(kept, is_wanted=False), list[int]()
    point.reach(point.begin(env, PAGE_BYTES), lambda: synced.append(1))
    assert (synced, point.transaction, guarded(env), kept.path.exists()) == ([1], None, [], False)


def test_forgotten_it_has_neither_file_nor_reader(env: lmdb.Environment, kept: SyncPoint) -> None:
    point = LastPoint(kept, is_wanted=True)
    make(point, env)
    point.forget()
    assert (point.transaction, guarded(env), kept.path.exists()) == (None, [], False)


def test_ended_it_leaves_its_file(env: lmdb.Environment, kept: SyncPoint) -> None:
    point = LastPoint(kept, is_wanted=True)
    make(point, env)
    point.end()
    assert (point.transaction, guarded(env), kept.path.exists()) == (None, [], True)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_at_opening_an_earlier_lifes_point_goes_once_all_is_synced(
    env: lmdb.Environment, kept: SyncPoint, *, is_wanted: bool
) -> None:
    make(earlier := LastPoint(kept, is_wanted=True), env)
    file = kept.path.read_bytes()
    earlier.end()
    commit(env)
    point = LastPoint(kept, is_wanted=is_wanted)
    point.open(env, PAGE_BYTES)
    last = env.info()["last_txnid"]
    assert (point.transaction, guarded(env)) == ((last, [last]) if is_wanted else (None, []))
    assert not kept.path.exists() if not is_wanted else file != kept.path.read_bytes()


@pytest.mark.parametrize("replace", [StoreDirectory.empty, StoreDirectory.set_aside])
def test_a_point_goes_with_the_file_it_belongs_to(tmp_path: Path, replace: Callable[[StoreDirectory], None]) -> None:
    directory = StoreDirectory(tmp_path)
    directory.data.write_bytes(b"a database")
    directory.point.keep(b"its headers")
    replace(directory)
    assert not directory.data.exists()
    assert not directory.point.path.exists()
