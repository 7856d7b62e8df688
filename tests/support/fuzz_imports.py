"""Import exports that were tampered with, into one store, and see that nothing but the clear error comes of it.

`python -m tests.support.fuzz_imports COUNT SEED` prints one JSON line with counts by what happened. It fails when
something else is raised, when the store is not sound or was set aside, when a real export no longer goes in, or when
memory grows. Half of the exports are changed as bytes; the other half by somebody who knows the format: fields, frames
and their order, under checksums that hold.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import Any

from adapters.fake.clock import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.ports.record_transfer import InvalidExport
from domain.ids import GroupIndex
from domain.payload import HostPayload, TensorSpec
from domain.record import Record
from tests.support.export_files import (
    ONE,
    TWO,
    Entry,
    content,
    entries_of,
    export_bytes,
    filled_store,
    import_bytes,
    sealed,
)
from tests.support.store_records import EventList, chain, empty, keys_of, payload_of, same

QUOTA_BYTES = 32 << 20
MAX_GROWTH_BYTES = 192 << 20
_CHECK_EVERY = 250
_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 255, 1 << 16, (1 << 32) - 1, 1 << 32, 1 << 63, 1 << 64, 10**40, 0.5, 1e308, "", "x",
    "ab" * 31, "ab" * 32, "ab" * 600, "\ud800", "é" * 40, [], [1], [[0, 1, 1]], [[0, 1 << 31, 1 << 37]], {}, {"a": {}},
    "prefill",
)  # fmt: skip


def sample() -> list[Record]:
    """Every transform of the codec, planes that are compressed and planes that are not, an empty tensor."""
    records = content()
    last = chain(TWO, 3)[2]
    half, single = TensorSpec("float16", (40, 25)), TensorSpec("float32", (2, 0, 5))
    words = bytes(payload_of(b"half", 2000).buffers()[0])
    mixed = HostPayload(
        (half, TensorSpec("float32", (500,)), single),
        (memoryview(words), memoryview(words), memoryview(b"")),
    )
    groups = {GroupIndex(0): mixed, GroupIndex(7): payload_of(b"large", 30_000)}
    return [*records, Record(last.key, last.parent, last.position, last.key_ids, groups)]


def tampered(data: bytes, random: Random) -> bytes:
    return as_bytes(data, random) if random.random() < 0.5 else as_entries(data, random)


def as_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5, 20])):
        at = random.randrange(len(changed))
        match random.randrange(6):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = random.randbytes(random.choice([1, 4, 64]))
            case 3:
                del changed[at : at + random.choice([1, 4, 64])]
            case 4:
                changed[at : at + 4] = random.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\x1f\0"])
            case _:
                source = random.randrange(len(changed))
                changed[at : at + 100] = changed[source : source + 100]
        changed = changed or bytearray(b"C")
    return bytes(changed)


def as_entries(data: bytes, random: Random) -> bytes:
    entries = entries_of(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(entries))
        match random.randrange(8):
            case 0 | 1 | 2:
                change_field(entries[at].header, random)
            case 3 | 4:
                change_frames(entries[at], random)
            case 5:
                entries.insert(random.randrange(len(entries)), entries[at])
            case 6:
                entries[at].text = as_bytes(entries[at].bytes[1], random)
            case _:
                del entries[at]
        entries = entries or [Entry({})]
    return sealed(entries, count=random.choice([None, None, None, 0, 1 << 64 - 1]))


def change_field(fields: dict[str, Any], random: Random) -> None:
    name = random.choice([*fields, "extra"])
    value = fields.get(name)
    if isinstance(value, list) and value and random.random() < 0.7:
        at = random.randrange(len(value))
        if isinstance(value[at], list) and random.random() < 0.8:
            value[at][random.randrange(len(value[at]))] = random.choice(_ODD)
        else:
            value[at] = random.choice(_ODD)
    elif isinstance(value, int) and random.random() < 0.5:
        fields[name] = value + random.choice([-1, 1, 16])
    elif random.random() < 0.15:
        fields.pop(name, None)
    else:
        fields[name] = random.choice(_ODD)


def change_frames(entry: Entry, random: Random) -> None:
    """Most often in a frame's header, where the sizes stand."""
    if not entry.body:
        return
    body = bytearray(entry.body)
    for _ in range(random.choice([1, 1, 2, 6])):
        at = random.randrange(min(len(body), random.choice([40, 40, len(body)])))
        body[at] = random.choice([0, 1, 2, 255, random.randrange(256)])
    entry.body = bytes(body)


class Target:
    """The store that everything is imported into, and what must hold of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store"
        options = LmdbOptions(QUOTA_BYTES, durability="fast")
        self.store = LmdbBlockStore(self.path, options, ZstdStateCodec(), EventList(), FakeClock())
        self.records = sample()
        self.data = export_bytes(filled_store(self.records))

    def feed(self, data: bytes) -> str:
        try:
            report = import_bytes(self.store, data, trust=True)
        except InvalidExport:
            return "refused"
        return "imported in part" if report.skipped else "imported"

    def check(self) -> None:
        """Sound, never set aside, and as useful as before."""
        report = self.store.check_integrity(payloads=True)
        assert report.problems == (), report.problems
        assert dict(self.store.usage().faults) == {}, self.store.usage().faults
        assert not (self.path / "data.damaged").exists()
        for info in (ONE, TWO):
            empty(self.store, info)
        assert import_bytes(self.store, self.data, trust=True).num_records == len(self.records)
        assert all(map(same, self.store.get(keys_of(self.records)), self.records))
        for info in (ONE, TWO):
            empty(self.store, info)


def peak_bytes() -> int:
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def fuzz(folder: Path, count: int, seed: int) -> Counter[str]:
    target, outcomes = Target(folder), Counter[str]()
    target.check()
    before_bytes = peak_bytes()
    for number in range(count):
        random = Random(f"{seed} {number}")
        try:
            outcomes[target.feed(tampered(target.data, random))] += 1
            if number % _CHECK_EVERY == _CHECK_EVERY - 1:
                target.check()
        except BaseException:
            sys.stderr.write(f"at number {number} of seed {seed}\n")
            raise
    target.check()
    target.store.close()
    growth_bytes = peak_bytes() - before_bytes
    assert growth_bytes < MAX_GROWTH_BYTES, f"memory grew by {growth_bytes} bytes"
    outcomes["growth KiB"] = growth_bytes >> 10
    return outcomes


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        sys.stdout.write(json.dumps(fuzz(Path(scratch), int(sys.argv[1]), int(sys.argv[2]))) + "\n")
