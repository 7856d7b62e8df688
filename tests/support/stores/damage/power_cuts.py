"""Lives of a store with every write and sync of all its files recorded, and what is left of it after a power cut.

`python -m tests.support.stores.damage.power_cuts LIFE FOLDER CUTS SEED` records a life below FOLDER (roomy or tight),
cuts the power CUTS times, at each sync and at random moments in between, and checks each store. Prints one JSON line;
exits non-zero and names the cut when an acknowledged record is lost, a byte is wrong or the store cannot be opened.
"""

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import PutOutcome
from application.settings import StoreSettings
from domain.byte_size import ByteSize
from domain.prefix.record import Record
from interfaces.composition.store import open_lmdb_store
from tests.support.processes.processes import finish, start
from tests.support.stores.damage.volatile_disk import Op, VolatileDisk, build_recorder, read_log, recording_environment
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot
from tests.support.telemetry.recording import RecordingEvents

TIGHT_BYTES, ROOMY_BYTES = 1 << 20, 64 << 20
# Never evicted by those after them: together they stay far below the tight quota.
RECENT = 2


@cache
def group(number: int) -> list[Record]:
    """What one put stores; each third one in a namespace of its own."""
    info = namespace_of(f"tenant {number}" if number % 3 == 2 else "one")
    size_bytes = Random(number).choice([300, 3000, 40_000])
    blocks = chain(info, 2, seed=number, size_bytes=size_bytes)
    return [*blocks, snapshot(blocks[1], [number], size_bytes=size_bytes)]


def is_tight(life: str) -> bool:
    return life.endswith("tight")


class Life:
    """What happens to a store, each step acknowledged in a file that only the log is read of."""

    def __init__(self, root: Path) -> None:
        self._path = root / "store"
        self._acknowledge = os.open(root / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._store: LmdbBlockStore | None = None
        self._clock = FakeClock()

    def open(self, quota: ByteSize | None = None) -> None:
        settings = StoreSettings(dir=str(self._path), quota=quota)
        self._store = open_lmdb_store(settings, RecordingEvents(), self._clock)
        self._say("open", 0)

    @property
    def store(self) -> LmdbBlockStore:
        assert self._store is not None
        return self._store

    def put(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            assert self.store.put(group(number)) is PutOutcome.STORED
            self._say("put", number)

    def delete(self, number: int) -> None:
        self._say("deleting", number)
        assert self.store.delete(keys_of(group(number)[:1])) == 3
        self._say("delete", number)

    def durably(self, what: str) -> None:
        """flush, compact or close."""
        getattr(self.store, what)()
        self._say(what, 0)

    def _say(self, what: str, number: int) -> None:
        os.write(self._acknowledge, f"{what} {number}\n".encode())


def live(root: Path, kind: str) -> None:
    life = Life(root)
    if is_tight(kind):
        life.open(ByteSize(num_bytes=4 * TIGHT_BYTES))
        life.put(range(30))
        life.durably("close")
    life.open(ByteSize(num_bytes=TIGHT_BYTES) if is_tight(kind) else None)
    life.put(range(30, 42))
    life.store.touch(keys_of(group(31)))
    life.durably("flush")
    life.put(range(42, 48))
    life.delete(44)
    life.durably("compact")
    life.put(range(48, 54))
    life.delete(50)
    life.durably("close")
    life.open()
    life.put(range(54, 57))
    life.durably("close")


@dataclass(slots=True)
class Promise:
    """What the acknowledged steps promise: `certain` groups are there, `gone` ones are not. The last step may be lost,
    and one in progress may have happened."""

    certain: dict[int, None] = field(default_factory=dict[int, None])
    gone: set[int] = field(default_factory=set[int])
    num_steps: int = 0
    _last: tuple[str, int] = ("open", 0)

    def follow(self, line: str) -> None:
        what, number = line.split()[0], int(line.split()[1])
        if what == "deleting":
            self.certain.pop(number)
            return
        self.num_steps += 1
        self._settle()
        if what in {"put", "delete"}:
            self._last = (what, number)

    def _settle(self) -> None:
        what, number = self._last
        if what == "put":
            self.certain[number] = None
        elif what == "delete":
            self.gone.add(number)
        self._last = ("open", 0)


def check(folder: Path, promise: Promise, life: str) -> str:
    """What became of the store; AssertionError when that breaks a promise."""
    path, events = folder / "store", RecordingEvents()
    options = LmdbOptions(TIGHT_BYTES if is_tight(life) else ROOMY_BYTES, num_threads=1)
    quota = path / "quota"
    assert not quota.exists() or json.loads(quota.read_text())["quota_bytes"] > 0
    store = LmdbBlockStore(path, options, ZstdStateCodec(compress=False), events, FakeClock())
    try:
        assert "damaged" not in store.usage().faults or not promise.num_steps, events.events
        assert store.check_integrity(payloads=True).problems == ()
        found = {number for number in range(57) if is_there(store, number)}
        expected = list(promise.certain)[-RECENT:] if is_tight(life) else list(promise.certain)
        assert found >= set(expected), f"lost {sorted(set(expected) - found)}"
        assert not found & promise.gone
        assert store.put(group(100)) is PutOutcome.STORED
        assert store.check_integrity(payloads=True).problems == ()
    finally:
        store.close()
    assert "damaged" not in store.usage().faults or not promise.num_steps
    return f"{len(found)} groups"


def is_there(store: LmdbBlockStore, number: int) -> bool:
    """The whole group or nothing of it, or what a slice of a deletion left: never a wrong byte, never a hole."""
    there: list[bool] = []
    for record, stored in zip(group(number), store.get(keys_of(group(number))), strict=True):
        assert stored is None or same(stored, record)
        there.append(stored is not None)
    assert there == sorted(there, reverse=True)
    return all(there)


def record_life(kind: str, folder: Path) -> tuple[Path, Path, int]:
    """(log, root, inode of the root)."""
    library, root, log = build_recorder(folder), folder / "root", folder / "log"
    root.mkdir(mode=0o700)
    environment = recording_environment(library, root, log)
    finish(start("-m", "tests.support.stores.damage.power_cuts", "live", str(root), kind, environment=environment), 120)
    return log, root, root.stat().st_ino


def moments(log: Path, num_cuts: int, random: Random) -> Iterator[int]:
    """After how many records to cut: around each sync, as many as are asked for, and anywhere."""
    records = list(read_log(log))
    syncs = [index for index, record in enumerate(records) if record.op is Op.SYNC]
    around = sorted({at for index in syncs for at in (index, index + 1)})
    chosen = random.sample(around, min(len(around), num_cuts // 2))
    chosen += [random.randrange(len(records) + 1) for _ in range(num_cuts - len(chosen))]
    return iter(sorted(chosen))


def cut_often(kind: str, folder: Path, num_cuts: int, seed: int) -> Counter[str]:
    """Raises AssertionError, naming the cut."""
    random = Random(f"{kind} {seed}")
    log, root, inode = record_life(kind, folder)
    disk, promise, outcomes = VolatileDisk(root, inode), Promise(), Counter[str]()
    waiting = list(moments(log, num_cuts, random))
    acknowledged = -1
    for index, record in enumerate([*read_log(log), None]):
        while waiting and waiting[0] == index:
            waiting.pop(0)
            scratch = folder / "cut"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(mode=0o700)
            disk.cut(scratch, random)
            try:
                outcomes[re.sub(r"\d+", "some", check(scratch, promise, kind))] += 1
            except Exception as failure:
                message = f"{kind} life of seed {seed}, cut before record {index}: {type(failure).__name__}: {failure}"
                raise AssertionError(message) from failure
        if record is None:
            break
        if record.path.endswith("/acknowledged"):
            acknowledged = record.inode
        if record.inode == acknowledged and record.op is Op.WRITE:
            promise.follow(record.data.decode())
        elif record.inode != acknowledged:
            disk.follow(record)
    return outcomes


def main(kind: str, folder: Path, num_cuts: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(json.dumps(cut_often(kind, folder, num_cuts, seed)) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "live":
        live(Path(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
