"""A store on disk for tests, and the faults that it reported."""

from pathlib import Path

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from tests.support.telemetry.recording import RecordingEvents

PAUSE_S = 60.0


def open_store(
    path: Path, events: RecordingEvents | None = None, clock: FakeClock | None = None, **options: object
) -> LmdbBlockStore:
    """`options`: of LmdbOptions; the quota is 32 MiB without one."""
    chosen = LmdbOptions(**{"quota_bytes": 32 << 20, "pause_s": PAUSE_S, **options})  # type: ignore[arg-type]
    return LmdbBlockStore(path, chosen, ZstdStateCodec(), events or RecordingEvents(), clock or FakeClock())


def faults(events: RecordingEvents) -> list[str]:
    """Returns the kinds of the faults, in order."""
    return [event.kind for event in events.of(StoreFault)]
