"""`cairn cache` on a real store: with and without a writer beside it, and interrupted by Ctrl-C."""

import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from adapters.lmdb.block_store import LmdbBlockStore
from application.ports.block_store import PutOutcome
from domain.prefix.record import Record
from interfaces.cli.commands import cache
from tests.support.processes.cache_cli import isolate, make_store, run
from tests.support.processes.processes import finish, start
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, empty, keys_of, same, snapshot
from tests.support.stores.two_models import ONE, TWO


def content() -> list[Record]:
    one, two = chain(ONE, 4, size_bytes=20_000), chain(TWO, 3, size_bytes=3000)
    branch = chain(ONE, 2, seed=3, size_bytes=500, after=one[1])
    return [*one, *branch, snapshot(branch[-1], [1, 2]), snapshot(ONE, [4]), *two]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", content())


@pytest.fixture
def writer(path: Path) -> Iterator[LmdbBlockStore]:
    """A process that has the store open for writing."""
    store = open_store(path)
    yield store
    store.close()


def facts(*arguments: object) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_stats_count_everything(path: Path) -> None:
    found = facts("stats", "--store", path)
    assert (found["namespaces"], found["blocks"], found["snapshots"]) == (2, 9, 2)
    assert found["quota_bytes"] == 64 << 20
    assert "blocks: 9" in run("stats", "--store", path).stdout


def test_ls_names_models_and_namespaces(path: Path) -> None:
    listed = json.loads(run("ls", "--store", path, "--json").stdout)
    assert {(space["model"], space["blocks"], space["snapshots"]) for space in listed} == {
        ("org/one", 6, 2),
        ("org/two", 3, 0),
    }
    assert [
        space["model"] for space in json.loads(run("ls", "--store", path, "--model", "org/two", "--json").stdout)
    ] == ["org/two"]
    first_digits = ONE.namespace.hex()[:12]
    text = run("ls", "--store", path, "--model", first_digits).stdout
    assert first_digits in text
    assert "org/two" not in text


def test_verify_is_content_with_a_sound_store(path: Path) -> None:
    assert facts("verify", "--store", path) == {"records": 11, "problems": []}
    assert "problems: none" in run("verify", "--store", path, "--no-payloads").stdout


def test_verify_finds_a_flipped_bit(path: Path) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    # A page that begins a large value: its payload follows 16 bytes of header.
    large = next(at for at in range(8192, len(data), 4096) if data[at + 10 : at + 12] == b"\x04\x00")
    data[large + 2000] ^= 1
    (path / "data.mdb").write_bytes(data)
    result = run("verify", "--store", path, "--json")
    assert result.exit_code == 1
    assert "checksum" in json.loads(result.stdout)["problems"][0]


def test_clear_takes_one_model_or_all(path: Path) -> None:
    cleared = facts("clear", "--store", path, "--model", "org/one", "--yes")
    assert (cleared["removed"], cleared["problem"]) == (8, None)
    assert int(str(cleared["removed_bytes"])) > 90_000
    assert facts("stats", "--store", path)["blocks"] == 3
    assert facts("clear", "--store", path, "--yes")["removed"] == 3
    assert facts("stats", "--store", path)["blocks"] == 0


def test_compact_gives_space_back(path: Path) -> None:
    store = open_store(path)
    assert empty(store, ONE)
    store.close()
    found = facts("compact", "--store", path)
    assert int(str(found["after_bytes"])) < int(str(found["before_bytes"]))
    assert (path / "data.mdb").stat().st_size == found["after_bytes"]
    assert facts("verify", "--store", path)["records"] == 3


def test_writing_commands_are_refused_beside_a_writer(writer: LmdbBlockStore, path: Path) -> None:
    for command in (["clear", "--yes"], ["compact"]):
        result = run(*command, "--store", path)
        assert result.exit_code == 1
        assert "another process" in result.stderr
    assert [record is None for record in writer.get(keys_of(content()))] == [False] * 11


def test_reading_commands_work_beside_a_writer(writer: LmdbBlockStore, path: Path) -> None:
    program = f"""
from interfaces.cli.commands import cache
from interfaces.cli.commands.cache import cache_app
from typer.testing import CliRunner
for command in (["stats"], ["ls"], ["verify"]):
    result = CliRunner().invoke(cache_app, [*command, "--store", {str(path)!r}, "--json"])
    assert result.exit_code == 0, (command, result.output)
"""
    finish(start("-c", program), 60)
    assert writer.put(chain(ONE, 1, seed=9)) is PutOutcome.STORED


def test_an_absent_store_is_an_error(tmp_path: Path) -> None:
    result = run("stats", "--store", tmp_path / "none")
    assert result.exit_code == 1
    assert "there is no store" in result.stderr
    assert not (tmp_path / "none").exists()


def test_the_cache_folder_is_writable_by_its_owner_only(tmp_path: Path) -> None:
    """The umask of the process makes no difference."""
    command = "sys.argv[1:] = ['doctor', '--backend', 'fake']"
    program = f"import os, sys; os.umask(0); from interfaces.cli.main import main; {command}; main()"
    process = start("-c", program, environment={"XDG_CACHE_HOME": str(tmp_path / "new")})
    process.communicate(timeout=60)
    folders = [tmp_path / "new", *(folder for folder in (tmp_path / "new").rglob("*") if folder.is_dir())]
    assert tmp_path / "new/cairn/store" in folders
    assert [folder.stat().st_mode & 0o022 for folder in folders] == [0] * len(folders)


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
    def shown(what: str, total: int | None, *, quiet: bool) -> Generator[Interrupting]:
        yield Interrupting(after)

    return shown


def assert_whole(path: Path) -> None:
    opened = open_store(path)
    try:
        assert opened.check_integrity(payloads=True).problems == ()
        assert all(map(same, opened.get(keys_of(content())), content()))
        assert dict(opened.usage().faults) == {}
    finally:
        opened.close()


@pytest.mark.parametrize("command", ["verify", "compact"])
def test_an_interrupted_command_leaves_the_store_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    before = {file.name for file in path.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(cache, "progress", interrupted(0))
        assert run(command, "--store", path).exit_code != 0
    assert {file.name for file in path.iterdir()} - {"CACHEDIR.TAG"} == before
    assert_whole(path)
    assert run(command, "--store", path).exit_code == 0
    assert_whole(path)
