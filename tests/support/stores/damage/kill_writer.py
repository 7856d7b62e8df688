"""Kill a writing process at random moments, again and again, and check what it leaves.

`python -m tests.support.stores.damage.kill_writer DIR KILLS SEED` prints one JSON line; exits non-zero, naming the
kill, when an acknowledged record is lost, a group is half there, a byte is wrong or the accounting differs from
a full recount. Run it with thousands of kills for a soak.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from select import select
from time import perf_counter, sleep

from application.ports.block_store import PutOutcome
from domain.prefix.record import Record
from tests.support.patience import PATIENCE_S
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot

INFO = namespace_of("killed")
ROOMY_BYTES, TIGHT_BYTES = 256 << 20, 3 << 20
KILLS_A_STORE = 4
# Groups whose bytes together stay far below the tight quota: never evicted before older ones.
RECENT = 6


@lru_cache(256)
def group(number: int) -> list[Record]:
    """What one put stores."""
    size_bytes = Random(number).choice([300, 2000, 20_000, 90_000])
    blocks = chain(INFO, 2, seed=number, size_bytes=size_bytes)
    return [*blocks, snapshot(blocks[1], [number % 1000], size_bytes=size_bytes // 2)]


def write(path: Path, quota_bytes: int, first: int, acknowledge: int) -> None:
    """Put groups until killed; each number goes into the pipe once its put has returned."""
    store = open_store(path, quota_bytes=quota_bytes)
    random = Random(first)
    for number in range(first, first + 1_000_000):
        if store.put(group(number)) is not PutOutcome.STORED:
            os._exit(3)
        os.write(acknowledge, number.to_bytes(8, "big"))
        store.touch(keys_of(group(random.randrange(first, number + 1))))
        if random.random() < 0.05:
            store.compact()


def kill_once(path: Path, quota_bytes: int, first: int, random: Random) -> list[int]:
    """The numbers acknowledged before the kill."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        write(path, quota_bytes, first, writing)
    os.close(writing)
    received = b""
    # Some kills come before the first acknowledgement, while the store is being opened. How far the others let the
    # writer come is counted, not timed, so that a slow machine is tried as hard; the rest hits any part of a write.
    num_awaited = random.randint(1, 6) if random.random() < 0.9 else 0
    while len(received) < 8 * num_awaited and select([reading], [], [], PATIENCE_S)[0]:
        received += (part := os.read(reading, 8))
        assert part, "the writer ended by itself"
    sleep(random.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the writer ended by itself with {status}"
    while part := os.read(reading, 1 << 16):
        received += part
    os.close(reading)
    return [int.from_bytes(received[at : at + 8], "big") for at in range(0, len(received), 8)]


def check(path: Path, quota_bytes: int, acknowledged: Sequence[int], next_number: int) -> int:
    """Returns how many groups beyond the acknowledged ones are there (at most the one in flight)."""
    store = open_store(path, quota_bytes=quota_bytes)
    try:
        assert "damaged" not in store.usage().faults, "the database was refused"
        report = store.check_integrity(payloads=True)
        assert report.problems == (), report.problems[:5]
        must = acknowledged if quota_bytes == ROOMY_BYTES else acknowledged[-RECENT:]
        for number in must:
            records = group(number)
            found = store.get(keys_of(records))
            assert all(map(same, found, records)), f"acknowledged group {number} is lost or wrong"
        records = group(next_number)
        found = store.get(keys_of(records))
        assert all(one is None or same(one, record) for one, record in zip(found, records, strict=True))
        assert len({one is None for one in found}) == 1, f"group {next_number} is half there"
        assert store.usage().stored_bytes <= quota_bytes
        return int(found[0] is not None)
    finally:
        store.close()


def main(path: Path, kills: int, seed: int) -> None:
    random = Random(seed)
    total = unacknowledged = number = 0
    acknowledged: list[int] = []
    open_s = 0.0
    for kill in range(kills):
        store, quota_bytes = path / "store", (ROOMY_BYTES, TIGHT_BYTES)[kill // KILLS_A_STORE % 2]
        if kill % KILLS_A_STORE == 0:
            shutil.rmtree(store, ignore_errors=True)
            acknowledged = []
        new = kill_once(store, quota_bytes, number, random)
        acknowledged += new
        total += len(new)
        number += len(new)
        try:
            unacknowledged += check(store, quota_bytes, acknowledged, number)
        except AssertionError as failure:
            raise SystemExit(f"kill {kill} of seed {seed}: {failure}") from failure
        started = perf_counter()
        open_store(store, quota_bytes=quota_bytes).close()
        open_s = max(open_s, perf_counter() - started)
        number += 1
    summary = {"kills": kills, "acknowledged": total, "in_flight_kept": unacknowledged, "open_s": open_s}
    sys.stdout.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
