"""The store of the tests about a bad sector. Their processes import this module, and little else with it."""

import json
import sys
from pathlib import Path

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from domain.prefix.record import Record
from tests.support.stores.store_records import chain, namespace_of, snapshot
from tests.support.telemetry.recording import RecordingEvents

INFO = namespace_of("one")
SIZE_BYTES = 60_000


def content() -> list[Record]:
    """Six blocks in a row, a branch after the first one, and a snapshot on the fourth."""
    blocks = chain(INFO, 6, size_bytes=SIZE_BYTES)
    return [
        *blocks,
        *chain(INFO, 2, seed=1, size_bytes=SIZE_BYTES, after=blocks[0]),
        snapshot(blocks[3], [7], size_bytes=SIZE_BYTES),
    ]


def opened(path: Path) -> tuple[LmdbBlockStore, RecordingEvents]:
    events = RecordingEvents()
    return LmdbBlockStore(path, LmdbOptions(8 << 20), ZstdStateCodec(compress=False), events, FakeClock()), events


def say(found: list[bool], events: RecordingEvents) -> None:
    faults = [[one.kind, one.message] for one in events.of(StoreFault)]
    sys.stdout.write(json.dumps({"found": found, "faults": faults}))
