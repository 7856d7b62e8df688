"""Kill a process at random moments while what it computes is stored behind it, and check what it leaves.

`python -m tests.support.stores.damage.kill_behind DIR KILLS SEED` prints one JSON line; exits non-zero, naming the
kill, when a record that was told to be stored is lost or wrong, when a chain has a hole, or when the accounting differs
from a full recount.

The child computes faster than the queue takes, so chains are cut off at a full queue too. It says in a pipe what it
computed and what it was told is stored, so nothing here looks at a clock.
"""

import json
import os
import shutil
import signal
import sys
from functools import lru_cache
from pathlib import Path
from random import Random
from select import select
from struct import Struct

from adapters.fake.environment import FakeClock
from application.events import Event, RecordsPersisted
from application.services.prefix.write_behind import WriteBehind
from domain.ids import RequestId
from domain.prefix.record import Record
from tests.support.patience import PATIENCE_S
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.store_records import chain, keys_of, namespace_of, same
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("killed")
QUOTA_BYTES, QUEUE_BYTES, BATCH_BYTES = 512 << 20, 1 << 20, 100_000
TOLD = Struct("<cII")
COMPUTED, STORED = b"c", b"s"


@lru_cache(64)
def prompt(number: int) -> list[Record]:
    """The blocks of one prompt."""
    random = Random(number)
    return chain(INFO, random.randint(2, 24), seed=number, size_bytes=random.choice([300, 20_000, 90_000]))


class Acknowledging(RecordingEvents):
    """Tells the pipe what is stored: so many more records of a prompt."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, event: Event) -> None:
        if isinstance(event, RecordsPersisted):
            os.write(self._pipe, TOLD.pack(STORED, int(event.id), event.num_records))


def prefill(path: Path, first: int, pipe: int) -> None:
    """Offer prompt after prompt, a few blocks at a time, until killed."""
    events = Acknowledging(pipe)
    writer = WriteBehind(
        open_store(path, events, quota_bytes=QUOTA_BYTES),
        events,
        FakeClock(tick_ns=10_000_000),
        max_bytes=QUEUE_BYTES,
        batch_bytes=BATCH_BYTES,
    )
    for number in range(first, first + 1_000_000):
        records, step = prompt(number), Random(number).randint(1, 4)
        for at in range(0, len(records), step):
            if not writer.offer(INFO, records[at : at + step], RequestId(str(number))):
                writer.flush(PATIENCE_S)  # it waits for room, and its next prompt begins where this one broke off
                break
            os.write(pipe, TOLD.pack(COMPUTED, number, min(step, len(records) - at)))


def kill_once(path: Path, first: int, random: Random) -> tuple[dict[int, int], dict[int, int]]:
    """Blocks computed, and of these told to be stored before the kill, by prompt."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        prefill(path, first, writing)
    os.close(writing)
    # How far it comes is counted, not timed; the kill then hits any part of what is computed and stored.
    received, num_awaited = b"", random.randint(1, 20)
    while received[:: TOLD.size].count(STORED) < num_awaited and select([reading], [], [], PATIENCE_S)[0]:
        received += (part := os.read(reading, TOLD.size))
        assert part, "the child ended by itself"
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child ended by itself with {status}"
    while part := os.read(reading, 1 << 16):
        received += part
    os.close(reading)
    computed, stored = dict[int, int](), dict[int, int]()
    for kind, number, count in TOLD.iter_unpack(received[: len(received) // TOLD.size * TOLD.size]):
        told = computed if kind == COMPUTED else stored
        told[number] = told.get(number, 0) + count
    return computed, stored


def check(path: Path, computed: dict[int, int], stored: dict[int, int]) -> int:
    """Returns how many blocks are there that nobody was told of."""
    events = RecordingEvents()
    store = open_store(path, events, quota_bytes=QUOTA_BYTES)
    try:
        report = store.check_integrity(payloads=True)
        assert report.problems == (), report.problems[:5]
        num_more = 0
        for number in computed.keys() | stored.keys():
            records = prompt(number)
            found = store.get(keys_of(records))
            length = next((at for at, one in enumerate(found) if one is None), len(found))
            assert not any(found[length:]), f"prompt {number} has a hole at block {length}"
            assert length >= stored.get(number, 0), f"{length} of {stored[number]} stored blocks of prompt {number}"
            assert all(map(same, found[:length], records)), f"a block of prompt {number} is wrong"
            num_more += length - stored.get(number, 0)
        return num_more
    finally:
        store.close()


def main(path: Path, kills: int, seed: int) -> None:
    random = Random(seed)
    computed, stored = dict[int, int](), dict[int, int]()
    first = num_more = 0
    for kill in range(kills):
        try:
            new = kill_once(path / "store", first, random)
            computed, stored = computed | new[0], stored | new[1]
            num_more += check(path / "store", computed, stored)
        except AssertionError as failure:
            raise SystemExit(f"kill {kill} of seed {seed}: {failure}") from failure
        first = max(computed, default=first) + 1000
    shutil.rmtree(path / "store")
    summary = {"kills": kills, "computed": sum(computed.values()), "stored": sum(stored.values()), "untold": num_more}
    sys.stdout.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
