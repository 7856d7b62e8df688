"""A sector under the store that cannot be read: it costs the process that touches it, once, and its record."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from mmap import PAGESIZE
from pathlib import Path

import httpx
import pytest

from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.environment import Environment
from application.events import StoreFault
from application.ports.block_store import PutOutcome
from tests.support.effort import scaled
from tests.support.processes.cli_process import PATIENCE_S, CairnProcess, cairn_process
from tests.support.processes.processes import finish, start
from tests.support.stores.damage.bad_sector import INFO, content, opened
from tests.support.stores.store_records import chain, keys_of, same

SOURCE = Path(__file__).parents[2] / "support/stores/damage/bad_sector.c"
HEADER = """
import sys
from pathlib import Path
from tests.support.stores.damage.bad_sector import content, opened, say
from tests.support.stores.store_records import keys_of
store, events = opened(Path(sys.argv[1]))
"""
READ = HEADER + "found = [one is not None for one in store.get(keys_of(content()))]\nstore.close()\nsay(found, events)"
DELETE = HEADER + "store.delete(keys_of(content()[:1]))\nstore.close()\nsay([], events)"
COMPACT = HEADER + "store.compact()\nstore.close()\nsay([], events)"
WRITE = (
    HEADER
    + """
from application.ports.block_store import PutOutcome
from tests.support.stores.damage.bad_sector import INFO, SIZE_BYTES
from tests.support.stores.store_records import chain
stored = [store.put(chain(INFO, 1, seed=seed, size_bytes=SIZE_BYTES)) is PutOutcome.STORED for seed in (8, 9)]
store.close()
say(stored, events)
"""
)
CLEAR = HEADER + "print(store.erase().problem)\nstore.close()"


SERVE = ("serve", "--backend", "fake", "--memory", "1GiB", "--port", "0", "--store")
UNREADABLE = 3
"""The block that lies on the sector: the two after it and the snapshot go with it."""
LEFT = [True, True, True, False, False, False, True, True, False]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("a sector that cannot be read is made with Linux and a C compiler")
    made = tmp_path_factory.mktemp("library") / "bad_sector.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "store"
    store, _ = opened(path)
    store.open_namespace(INFO)
    assert store.put(content()) is PutOutcome.STORED
    store.close()
    yield path
    sound, events = opened(path)
    assert not events.of(StoreFault)
    assert [
        problem for problem in sound.check_integrity(payloads=True).problems if "could not be read" not in problem
    ] == []
    sound.close()


@pytest.fixture
def bad(library: Path, store: Path) -> Mapping[str, str]:
    """The environment of processes for which the beginning of one block's state cannot be read."""
    (buffer,) = content()[UNREADABLE].groups[next(iter(content()[UNREADABLE].groups))].buffers()
    return bad_at(library, (store / "data.mdb").read_bytes().index(bytes(buffer[:400])) // PAGESIZE)


def bad_at(library: Path, page: int) -> Mapping[str, str]:
    return {"LD_PRELOAD": str(library), "BAD_PAGE": str(page)}


def run(program: str, store: Path, environment: Mapping[str, str]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = json.loads(
        finish(start("-c", program, str(store), environment=environment), PATIENCE_S)
    )
    return found


def dies(program: str, store: Path, environment: Mapping[str, str]) -> bool:
    process = start("-c", program, str(store), environment=environment)
    process.communicate(timeout=PATIENCE_S)
    # Telling of it may be what a process dies of in the end (faulthandler walks threads that run).
    return process.returncode in (-signal.SIGBUS, -signal.SIGSEGV)


def test_a_bad_sector_costs_one_process_and_its_record(store: Path, bad: Mapping[str, str]) -> None:
    """`cairn cache verify` names it before and after."""
    name = content()[UNREADABLE].key.hash.hex()[:16]  # type: ignore[union-attr]
    assert verified(store, bad) == [f"block {name} of namespace 1 cannot be read from the disk"]
    assert dies(READ, store, bad)
    found = run(READ, store, bad)
    assert found["found"] == LEFT
    ((kind, message),) = found["faults"]  # type: ignore[misc]
    assert (kind, name in message) == ("unreadable", True)  # type: ignore[operator]
    assert run(READ, store, bad) == {"found": LEFT, "faults": []}
    (problem,) = verified(store, bad)
    assert problem.startswith(f"block {name} of namespace 1 could not be read from the disk")


def verified(store: Path, environment: Mapping[str, str]) -> list[str]:
    program = "from interfaces.cli.main import app; app()"
    process = start("-c", program, "cache", "verify", "--store", str(store), "--json", environment=environment)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, errors
    problems: list[str] = json.loads(output)["problems"]
    return problems


@pytest.mark.parametrize("program", [DELETE, COMPACT], ids=["deleting", "compacting"])
def test_any_access_dies_of_a_bad_sector_once(store: Path, bad: Mapping[str, str], program: str) -> None:
    assert dies(program, store, bad)
    assert [fault[0] for fault in run(program, store, bad)["faults"]] == ["unreadable"]  # type: ignore[index]
    if program == COMPACT:  # what was left out is gone for good
        sound, _ = opened(store)
        assert sound.check_integrity(payloads=True).problems == ()
        assert all(map(same, sound.get(keys_of(content()[:3])), content()))
        sound.close()


def test_writing_touches_no_record(library: Path, store: Path) -> None:
    """Also not the latest one, after which the new ones are put."""
    bad = bad_at(library, last_page(store, is_head=False))
    assert run(WRITE, store, bad) == {"found": [True, True], "faults": []}
    assert dies(READ, store, bad)
    assert run(READ, store, bad)["found"] == [True] * 8 + [False]


def test_clearing_everything_reads_no_payload(store: Path, bad: Mapping[str, str]) -> None:
    assert finish(start("-c", CLEAR, str(store), environment=bad), PATIENCE_S) == "\n"
    assert run(READ, store, bad) == {"found": [False] * 9, "faults": []}


def killed(store: Path, moment: str) -> None:
    """A process is killed in the middle of this."""
    lines = f"held = store._environment.{moment}\nheld.__enter__()\nos.kill(os.getpid(), signal.SIGKILL)"
    process = start("-c", f"import os, signal\n{HEADER}{lines}", str(store))
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("moment", "num_kills"), [("notes.of(4)", 1), ("reading()", 2), ("writing()", 1)])
def test_killed_processes_cost_no_record(store: Path, moment: str, num_kills: int) -> None:
    """What was noted is read once more by another process, and is sound."""
    for _ in range(scaled(2)):
        for _ in range(num_kills):
            killed(store, moment)
        assert run(READ, store, {}) == {"found": [True] * 9, "faults": []}


def test_a_database_that_was_removed_is_made_anew_whatever_was_noted(store: Path) -> None:
    killed(store, "notes.of(4)")
    (store / "data.mdb").unlink()
    assert run(READ, store, {})["found"] == [False] * 9


def test_a_damaged_row_is_found_where_a_process_was_killed(store: Path) -> None:
    """The process that reads what was noted names it, and the store is opened all the same."""
    killed(store, "notes.of(4)")
    data, row = bytearray((store / "data.mdb").read_bytes()), b"\0\0\0\1\0" + content()[0].key.hash  # type: ignore[union-attr]
    data[data.rindex(row) + len(row) + 12] ^= 255
    (store / "data.mdb").write_bytes(data)
    again = run(READ, store, {})
    assert again["found"] == [False] * 9
    assert [fault[0] for fault in again["faults"]] == ["damaged"]  # type: ignore[index]


def test_an_index_that_ended_a_writing_process_is_emptied(library: Path, store: Path) -> None:
    """Only writing touches the page at the end of the pieces. The process that empties it stores nothing."""
    filled, _ = opened(store)
    assert filled.put(chain(INFO, 100, seed=5, size_bytes=5_000)) is PutOutcome.STORED
    filled.close()
    bad = bad_at(library, last_page(store, is_head=True))
    assert run(READ, store, bad) == {"found": [True] * 9, "faults": []}
    assert dies(WRITE, store, bad)
    again = run(WRITE, store, bad)
    assert again["found"] == [False] * 2
    ((kind, message),) = again["faults"]  # type: ignore[misc]
    assert kind == "damaged"
    assert "nothing is stored until the next start" in message  # type: ignore[operator]
    assert run(WRITE, store, bad) == {"found": [True] * 2, "faults": []}


def test_an_index_that_ended_a_process_is_emptied(library: Path, store: Path) -> None:
    """Its pages cannot be left alone as a record's can."""
    bad = bad_at(library, index_page(store))
    assert dies(READ, store, bad)
    again = run(READ, store, bad)
    assert again["found"] == [False] * 9
    assert [fault[0] for fault in again["faults"]] == ["damaged"]  # type: ignore[index]


def index_page(store: Path) -> int:
    """A leaf page with the rows."""
    key = content()[0].key
    at = (store / "data.mdb").read_bytes().rindex(b"\0\0\0\1\0" + key.hash)  # type: ignore[union-attr]
    return at // PAGESIZE


def test_a_server_answers_all_the_same(library: Path, tmp_path: Path) -> None:
    """The engine that restores the prefix is lost once; the next one computes what followed the sector."""
    path = tmp_path / "store"
    text, log = answer(tmp_path, (*SERVE, str(path)), "It rains. " * 200)
    assert "unreadable" not in log
    again, log = answer(tmp_path, (*SERVE, str(path)), "It rains. " * 200, **bad_at(library, large_page(path)))
    assert again == text
    assert log.count("fault in store: unreadable") == 1


def test_a_server_whose_index_lies_on_a_bad_sector_goes_on_without_storing(library: Path, tmp_path: Path) -> None:
    """It loses one engine; the file that replaces the index may lie on the sector as well."""
    path = tmp_path / "store"
    arguments = (*SERVE, str(path))
    answer(tmp_path, arguments, "It rains. " * 200)
    with cairn_process(tmp_path, arguments, **bad_at(library, last_page(path, is_head=True))) as server:
        url = server.read_until("Cairn serves").split(" at ")[1].strip()
        text_for(url, "It snows. " * 200)
        server.read_until("nothing is stored until the next start")
        text_for(url, "It thaws. " * 200)
        server.read_until("records not stored: unavailable")
        stop(server)
    assert "".join(server.seen).count("fault in engine.process") == 1


def answer(folder: Path, arguments: tuple[str, ...], prompt: str, **variables: str) -> tuple[str, str]:
    """The text that a server gives to a prompt, and its log."""
    with cairn_process(folder, arguments, **variables) as server:
        text = text_for(server.read_until("Cairn serves").split(" at ")[1].strip(), prompt)
        stop(server)
        return text, "".join(server.seen)


def text_for(url: str, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    found = httpx.post(f"{url}/completions", json=body, timeout=PATIENCE_S)
    assert found.status_code == 200, found.text
    text: str = found.json()["choices"][0]["text"]
    return text


def stop(server: CairnProcess) -> None:
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    server.read_to_end()


def large_page(path: Path) -> int:
    """The first page of some large value."""
    data = (path / "data.mdb").read_bytes()
    pages = range(2 * PAGESIZE, len(data), PAGESIZE)
    return next(at for at in pages if data[at + 10 : at + 12] == b"\4\0") // PAGESIZE


def last_page(path: Path, *, is_head: bool) -> int:
    """The page with the head of the last record, a leaf of the index, or the first one of the record's last piece."""
    environment = Environment(StoreDirectory(path), map_bytes=0, read_only=True)
    environment.open()
    with environment.viewing() as txn:
        cursor = txn.cursor(environment.trees.dat)
        assert cursor.last()
        name = bytes(cursor.key()[:8]) + bytes(4) if is_head else bytes(cursor.key())
        value = bytes(txn.get(name, db=environment.trees.dat) or b"")
    environment.close()
    assert (len(value) < PAGESIZE // 2) is is_head
    return (path / "data.mdb").read_bytes().index(value) // PAGESIZE
