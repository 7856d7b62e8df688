"""Flip bits of a store's file or cut it short, open it, use it, and compare every byte that comes back.

`python -m tests.support.stores.damage.bit_flips STORE SCRATCH flip|cut FIRST COUNT SEED`. LMDB may die of what it
reads: so each file is used by a process of its own, and by another one when that died, as a server's engine is. Prints
one JSON line with counts by what happened; exits non-zero when a wrong byte was served or something raised, with
what was done last on stderr.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from application.ports.block_store import PutOutcome
from domain.prefix.record import Record
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, empty, keys_of, namespace_of, same, snapshot
from tests.support.telemetry.recording import RecordingEvents

QUOTA_BYTES = 4 << 20
INFO = namespace_of("flipped")
MAX_LIVES, LIFE_S = 4, 20
DEATHS = {-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGABRT}


def sample() -> list[Record]:
    """Several branches and snapshots: a few index pages, and payloads inside of leaf pages as well as in their own."""
    trunk = chain(INFO, 6, size_bytes=2000)
    records = [*trunk, *chain(INFO, 4, seed=2, size_bytes=9000, after=trunk[2])]
    for number in range(60):
        records.extend(chain(INFO, 1, seed=100 + number, size_bytes=200, after=trunk[number % 6]))
    records.extend(snapshot(trunk[number % 6], [number], size_bytes=3000) for number in range(12))
    return records


def make(path: Path) -> None:
    """A store whose file also has freed pages with old content, as a used one has."""
    store = open_store(path, quota_bytes=QUOTA_BYTES)
    old = chain(INFO, 20, seed=9, size_bytes=6000)
    assert store.put(old) is PutOutcome.STORED
    assert store.put(sample()) is PutOutcome.STORED
    assert store.delete(keys_of(old[:1])) == 20
    store.close()


def use(path: Path, records: Sequence[Record], extra: Sequence[Record]) -> str:
    """Read, write, delete; returns the worst that happened. Raises AssertionError for a wrong byte."""
    events = RecordingEvents()
    store = open_store(path, events, quota_bytes=QUOTA_BYTES)
    try:
        missing = 0
        for record in records:
            found = store.get([record.key])[0]
            assert found is None or same(found, record), f"{record.key} came back wrong"
            missing += found is None
        store.keys(INFO.namespace)
        for record in records[:6]:
            store.followers(INFO.namespace, record.parent, 100)
        store.usage()
        store.put(extra)
        for record, found in zip(extra, store.get(keys_of(extra)), strict=True):
            assert found is None or same(found, record), f"{record.key} came back wrong after a put"
        store.delete(keys_of(records[:1]))
        empty(store, INFO)
        store.put(extra)
        faults = store.usage().faults
    finally:
        store.close()
    return "damaged" if "damaged" in faults else ",".join(sorted(faults)) or ("missing" if missing else "harmless")


def use_in_lives(path: Path, records: Sequence[Record], extra: Sequence[Record]) -> str:
    """What the first process found that lived to its end, with `died` before it when others had not."""
    for life in range(MAX_LIVES):
        into, out = os.pipe()
        if (child := os.fork()) == 0:
            signal.alarm(LIFE_S)
            try:
                os.write(out, use(path, records, extra).encode())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(out)
        with open(into) as found:
            outcome = found.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status in DEATHS:
            sys.stderr.write(f"died of {signal.Signals(-status).name}\n")
            continue
        assert status == 0, f"status {status}"
        return f"died, {outcome}" if life else outcome
    return "died each time"


def flip(data: bytearray, random: Random) -> str:
    bits = [random.randrange(len(data) * 8) for _ in range(random.choice([1, 1, 2, 4, 8, 16, 32]))]
    for bit in bits:
        data[bit // 8] ^= 1 << (bit % 8)
    return f"flips {bits}"


def cut(data: bytearray, random: Random) -> str:
    # Half of the cuts are close to the end, where a tail of free pages may be missing for good reasons.
    last = random.choice([len(data), 16_384])
    del data[len(data) - random.randrange(1, last + 1) :]
    return f"cut to {len(data)}"


def main(origin: Path, scratch: Path, mode: str, first: int, count: int, seed: int) -> None:
    records, extra = sample(), chain(INFO, 3, seed=77, size_bytes=20_000)
    intact = (origin / "data.mdb").read_bytes()
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        random = Random(f"{seed} {number}")
        data = bytearray(intact)
        what = flip(data, random) if mode == "flip" else cut(data, random)
        outcomes["bits"] += what.count(",") + 1 if mode == "flip" else 0
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        shutil.copy(origin / "format", scratch / "format")
        (scratch / "data.mdb").write_bytes(data)
        sys.stderr.write(f"{number} {what}\n")
        outcomes[use_in_lives(scratch, records, extra)] += 1
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], *(int(argument) for argument in sys.argv[4:7]))
