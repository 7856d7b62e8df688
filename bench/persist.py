"""Whether the store keeps up with prefill: offers of captured state at given rates, through the queue in front of it.

    python -m bench.persist [--dir DIR] [--rates 100 300 600 1200 1500] [--seconds 6]
        [--flush-seconds 60] [--blocks 8] [--scale 1] [--json FILE]

State of Qwen3-4B's shape (147 KB a token, blocks of 37.7 MB), at so many raw MB/s, and as many blocks an offer as a GPU
computes at a time (`--blocks 2`: a CPU). For each rate:

    persisted_MB_s      in the store while state was offered, a second
    lag_*_s             from an offer to its being in the store; p50, p95 and the longest
    at_kill_s           how old the oldest state was that kill -9 would have lost, at worst, sampled every 50 ms
    dropped_MB          refused because the queue was full
    stored_over_raw     0.70 where all was compressed, 1.00 where nothing was
    catch_up_s          from the last offer to everything being in the store; null: not within `--flush-seconds`
    cpu_s_per_GB        of this process, without `--busy`
    faults_per_GB       pages that this process touched for the first time; 244,000 are a GB
    worked_share        of the time of the thread that writes, with a processor, the kernel's part of it included

All but the first two are of what was stored until the end, and a GB is one of raw state.

`--scale`: blocks so many times as small, for a first try. `disk`: what the volume takes in the same run, without a
store: written and synced by 64 MiB, and into the page cache alone. `--busy`: share of the time in which another thread
holds the interpreter's lock, as one that computes does.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from statistics import quantiles

import numpy as np

from adapters.decorators.forwarding_store import ForwardingStore
from adapters.system.clock import SystemClock
from adapters.system.heap import bound_arenas, keep_freed
from application.events import Event, RecordsDropped, RecordsOffered, RecordsPersisted, StoreFault
from application.ports.block_store import PreparedPut, PutOutcome
from application.services.prefix.write_behind import WriteBehind
from application.settings import StoreSettings
from bench.results import Results
from bench.store_support import BLOCK, INFO, Facts
from domain.byte_size import ByteSize
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.record import BlockKey, HostPayload, Record, TensorSpec
from interfaces.composition.store import open_lmdb_store
from interfaces.composition.token_side import SWITCH_INTERVAL_S

NUM_TENSORS = 72
SAMPLE_S = 0.05
BASELINE_BYTES, BASELINE_SYNC_BYTES = 512 << 20, 64 << 20


class Account:
    """An EventSink that keeps what was offered, stored and dropped, and when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, int] = {}  # offered at, by number
        self.lags_s: list[float] = []
        self.persisted_bytes = self.dropped_bytes = 0
        self.faults: list[str] = []

    def emit(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, RecordsPersisted):
                self.persisted_bytes += event.raw_bytes
                self.lags_s.append((event.at_ns - event.offered_ns) / 1e9)
                self._waiting.pop(event.offered_ns, None)
            elif isinstance(event, RecordsOffered):
                self._waiting[event.at_ns] = event.raw_bytes
            elif isinstance(event, RecordsDropped):
                self.dropped_bytes += event.raw_bytes
                # Waits no more; which one it was does not matter, it is the only kind that is dropped late.
            elif isinstance(event, StoreFault):
                self.faults.append(f"{event.kind}: {event.message}")

    def oldest_s(self, now_ns: int) -> float:
        with self._lock:
            return (now_ns - min(self._waiting, default=now_ns)) / 1e9


class Metered(ForwardingStore):
    """Tells what the thread that writes spent its time on."""

    put_s = worked_s = 0.0

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        prepared = self._store.prepare(records)

        def put() -> PutOutcome:
            started, began = time.perf_counter(), time.thread_time()
            try:
                return prepared()
            finally:
                self.put_s += time.perf_counter() - started
                self.worked_s += time.thread_time() - began

        return put


def payloads(count: int, scale: int) -> list[HostPayload]:
    """Normal numbers with a scale for each channel, as bfloat16; rotated, so that no two blocks are equal."""
    random = np.random.default_rng(0)
    specs = (TensorSpec("bfloat16", (1, 8, BLOCK, 128)),) * max(1, NUM_TENSORS // scale)
    of_channel = np.exp(random.standard_normal((8, 1, 128), np.float32))
    tensors: list[memoryview] = []
    for _ in specs:
        numbers = random.standard_normal((8, BLOCK, 128), np.float32) * of_channel
        tensors.append((numbers.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).data.cast("B"))
    return [HostPayload(specs, tuple(tensors[at % len(specs) :] + tensors[: at % len(specs)])) for at in range(count)]


def chained(number: int, parent: BlockHash, payload: HostPayload) -> Record:
    key = BlockKey(INFO.namespace, BlockHash(sha256(number.to_bytes(8, "big")).digest()))
    return Record(key, parent, (number + 1) * BLOCK, IdRow(range(BLOCK)), {GroupIndex(0): payload})


def disk(folder: Path) -> Facts:
    """The volume alone, as `dd` would find it."""
    chunk = os.urandom(1 << 20)
    facts: Facts = {}
    for name, sync_bytes in (("synced_MB_s", BASELINE_SYNC_BYTES), ("page_cache_MB_s", 0)):
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            started = time.perf_counter()
            for at in range(0, BASELINE_BYTES, len(chunk)):
                file.write(chunk)
                if sync_bytes and (at + len(chunk)) % sync_bytes == 0:
                    os.fdatasync(file.fileno())
            facts[name] = BASELINE_BYTES / (time.perf_counter() - started) / 1e6
    return facts


class Beside:
    """While it is entered: samples how old the oldest waiting state is, and holds the interpreter's lock for a share of
    the time."""

    def __init__(self, account: Account, clock: SystemClock, busy: float) -> None:
        self._account, self._clock, self._busy = account, clock, busy
        self._has_ended = threading.Event()
        self._threads = [threading.Thread(target=self._sample), threading.Thread(target=self._hold)]
        self.worst_s = self.held_s = 0.0

    def __enter__(self) -> "Beside":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join()

    def _sample(self) -> None:
        while not self._has_ended.wait(SAMPLE_S):
            self.worst_s = max(self.worst_s, self._account.oldest_s(self._clock.now_ns()))

    def _hold(self) -> None:
        while self._busy and not self._has_ended.is_set():
            until = time.perf_counter() + 0.01 * self._busy
            while time.perf_counter() < until:
                pass
            time.sleep(0.01 * (1 - self._busy))
        self.held_s = time.thread_time()


def offer_at(writer: WriteBehind, rate_mb_s: float, seconds: float, sources: list[HostPayload], num_blocks: int) -> int:
    """Offers `num_blocks` at a time for so long; returns the bytes offered."""
    parent, number, offered_bytes, started = BlockHash(INFO.namespace), 0, 0, time.perf_counter()
    while (now_s := time.perf_counter() - started) < seconds:
        time.sleep(max(0.0, offered_bytes / rate_mb_s / 1e6 - now_s))
        batch: list[Record] = []
        for _ in range(num_blocks):
            batch.append(chained(number, parent, sources[number % len(sources)]))
            parent, number = BlockHash(batch[-1].key.hash), number + 1  # type: ignore[union-attr]
        offered_bytes += sum(record.raw_bytes for record in batch)
        if not writer.offer(INFO, batch):
            parent = BlockHash(INFO.namespace)  # another prompt: what follows a refused block is refused as well
    return offered_bytes


def run(folder: Path, rate_mb_s: float, options: argparse.Namespace, sources: list[HostPayload]) -> Facts:
    """One rate, into a store of its own."""
    account, clock = Account(), SystemClock()
    settings = StoreSettings(dir=str(folder), quota=ByteSize(num_bytes=16 << 30))
    store = Metered(open_lmdb_store(settings, account, clock))
    writer = WriteBehind(store, account, clock, max_bytes=options.queue_mib << 20)
    with Beside(account, clock, options.busy) as beside:
        used_s, started, num_faults = time.process_time(), time.perf_counter(), _num_faults()
        offered_bytes = offer_at(writer, rate_mb_s, options.seconds, sources, options.blocks)
        spent_s, persisted_bytes = time.perf_counter() - started, account.persisted_bytes
        is_flushed = writer.flush(options.flush_seconds)
        catch_up_s = time.perf_counter() - started - spent_s if is_flushed else None
    used_s = time.process_time() - used_s - beside.held_s
    num_faults = _num_faults() - num_faults
    raw_gb = max(account.persisted_bytes, 1) / 1e9
    usage = store.usage()
    stored_bytes = sum(one.stored_bytes for one in usage.namespaces)
    raw_bytes = sum(one.raw_bytes for one in usage.namespaces)
    writer.close(options.flush_seconds)
    store.close()
    lags_s = sorted(account.lags_s)
    cuts_s = quantiles(lags_s, n=20) if len(lags_s) > 1 else (lags_s or [float("inf")]) * 19
    return {
        "offered_MB_s": offered_bytes / spent_s / 1e6,
        "persisted_MB_s": persisted_bytes / spent_s / 1e6,
        "lag_p50_s": cuts_s[9],
        "lag_p95_s": cuts_s[18],
        "lag_max_s": max(lags_s, default=float("inf")),
        "at_kill_s": beside.worst_s,
        "dropped_MB": account.dropped_bytes / 1e6,
        "stored_over_raw": stored_bytes / max(raw_bytes, 1),
        "catch_up_s": catch_up_s,
        "cpu_s_per_GB": used_s / raw_gb,
        "faults_per_GB": num_faults / raw_gb,
        "worked_share": store.worked_s / max(store.put_s, 1e-9),
        "faults": account.faults,
    }


def _num_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to measure; default: the temporary folder")
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 300, 600, 1200, 1500], help="raw MB/s")
    parser.add_argument("--seconds", type=float, default=6.0, help="of offering, for each rate")
    parser.add_argument("--queue-mib", type=int, default=2048, help="what may wait")
    parser.add_argument("--busy", type=float, default=0.3)
    parser.add_argument("--flush-seconds", type=float, default=60.0)
    parser.add_argument("--blocks", type=int, default=8, help="an offer")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "persist")
    # As the server does.
    bound_arenas()
    keep_freed()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sources = payloads(16, options.scale)
    for rate in options.rates:
        folder = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir=options.dir))
        try:
            facts = {"disk": disk(folder)} | run(folder / "store", rate, options, sources)
            results.add("rate", rate_MB_s=rate, **facts)
            print(f"{rate:g} MB/s", json.dumps(facts, indent=2), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
