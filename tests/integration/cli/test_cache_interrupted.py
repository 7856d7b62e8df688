"""Ctrl-C in the middle of a command of `cairn cache`: whatever it worked on is whole."""

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from interfaces.cli.commands import cache
from interfaces.cli.terminal.progress import Unit
from tests.support.engines.two_models import ONE, TWO
from tests.support.processes.cache_cli import isolate, make_store, run
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, keys_of, same


def records() -> list[Any]:
    return [*chain(ONE, 20, size_bytes=2000), *chain(TWO, 3, size_bytes=300)]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", records())


class Interrupting:
    """A bar at whose `after`th step the user loses patience; signals reach the main thread only."""

    def __init__(self, after: int) -> None:
        self._after = after

    def advance(self, count: int) -> None:
        if threading.current_thread() is threading.main_thread():
            self._after -= 1
            if self._after < 0:
                raise KeyboardInterrupt

    def reach(self, done: int, total: int | None) -> None:
        self.advance(0)


def interrupted(after: int) -> Callable[..., AbstractContextManager[Interrupting]]:
    @contextmanager
    def shown(what: str, total: int | None, unit: Unit, *, quiet: bool) -> Generator[Interrupting]:
        yield Interrupting(after)

    return shown


def assert_whole(store: Path) -> None:
    opened = open_store(store)
    try:
        assert opened.check_integrity(payloads=True).problems == ()
        assert all(map(same, opened.get(keys_of(records())), records()))
        assert dict(opened.usage().faults) == {}
    finally:
        opened.close()


@pytest.mark.parametrize("command", ["verify", "compact"])
def test_a_store_is_as_before(store: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    before = sorted(path.name for path in store.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(cache, "progress", interrupted(0))
        assert run(command, "--store", store).exit_code != 0
    assert sorted(path.name for path in store.iterdir()) == before
    assert_whole(store)
    assert run(command, "--store", store).exit_code == 0
    assert_whole(store)


def test_what_is_done_adds_up(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To about what a bar was told there is: it ends full, and not long before the end."""
    seen: dict[str, tuple[int | None, list[int]]] = {}

    class Counting:
        def __init__(self, counts: list[int]) -> None:
            self._counts = counts

        def advance(self, count: int) -> None:
            self._counts.append(count)

    @contextmanager
    def shown(what: str, total: int | None, unit: Unit, *, quiet: bool) -> Generator[Counting]:
        seen[what] = (total, [])
        yield Counting(seen[what][1])

    monkeypatch.setattr(cache, "progress", shown)
    assert run("verify", "--store", store).exit_code == 0
    assert run("compact", "--store", store).exit_code == 0
    for what in ("verifying", "compacting"):
        total, counts = seen[what]
        assert total is not None
        assert total * 0.5 < sum(counts) < total * 1.5
