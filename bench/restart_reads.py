"""What a restart waits for: all of a long prefix read from the store, decoded, and taken to the device if there is one.

    python -m bench.restart_reads [--dir DIR] [--gb 8] [--records raw zstd mixed] [--ways gather map] [--rounds 3]
        [--threads N] [--scale 1] [--cold] [--busy] [--json FILE]

Blocks of Qwen3-4B's shape (37.7 MB each), read in the order of the prompt as `PrefixFetch` does: RECORDS_PER_READ a
read, READS_AHEAD of them. Ways take turns, each in a store opened anew: `gather`, a frame put together by the kernel;
`map`, its pieces where they lie. For each, the median of the rounds after the first:

    GB_s                raw bytes a second, until the last one is where it belongs
    first_GB_s          of the first round; of the way that is named first, in a process that has no memory yet
    cpu_s               of this process
    waited_s, landed_s  of the thread that computes: for a read, and landing what it brought
    over_copy           times as long as the file's bytes take, copied out of a map by as many threads
    over_codec          times as long as decoding the same frames in memory by as many threads

`--cold`: with the file's pages dropped from the page cache. `--busy`: while another thread wants the interpreter's lock
all the time, so that each hand-over of it shows. `--scale`: blocks so many times as small, for a first try.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.lmdb.gathering import Gathering
from adapters.system.clock import SystemClock
from adapters.zstd.buffer_pool import FRAMES
from adapters.zstd.codec import ZstdStateCodec
from application.ports.record_writer import PutOutcome
from application.services.prefix.fetch import READS_AHEAD, RECORDS_PER_READ
from application.services.prefix.store_lanes import StoreLanes
from application.services.prefix.stored_tier import StoredTier, Upload
from bench.event_log import EventLog
from bench.persist import chained, payloads
from bench.results import Results
from bench.store_support import INFO, Facts, drop_caches, timed
from domain.ids import BlockHash, GroupIndex
from domain.record import BlockKey
from interfaces.composition.backends import share_locked_memory
from interfaces.composition.store_rates import num_threads
from interfaces.composition.token_side import SWITCH_INTERVAL_S

NUM_SOURCES = 8
COPY_BYTES = 8 << 20


def opened(folder: Path, options: argparse.Namespace, *, compress: bool, gathers: bool = False) -> LmdbBlockStore:
    gathering = Gathering(lambda size_bytes: FRAMES.take(size_bytes).data) if gathers else None
    settings = LmdbOptions(int(options.gb * 3e9) + (1 << 30), num_threads=options.threads, durability="fast")
    codec = ZstdStateCodec(compress=compress, keeps_planes=True)
    return LmdbBlockStore(folder, settings, codec, EventLog(), SystemClock(), gathering=gathering)


def fill(folder: Path, records: str, options: argparse.Namespace) -> list[BlockKey]:
    """`mixed`: the second half raw, as it is written in a hurry."""
    sources, keys = payloads(NUM_SOURCES, options.scale), list[BlockKey]()
    count = max(2 * RECORDS_PER_READ, round(options.gb * 1e9 / sources[0].size_bytes))
    parent = BlockHash(INFO.namespace)
    for first, last, compress in ((0, count // 2, records != "raw"), (count // 2, count, records == "zstd")):
        store = opened(folder, options, compress=compress)
        store.open_namespace(INFO)
        for number in range(first, last):
            record = chained(number, parent, sources[number % NUM_SOURCES])
            assert store.put([record]) is PutOutcome.STORED
            assert isinstance(record.key, BlockKey)
            keys.append(record.key)
            parent = BlockHash(record.key.hash)
        store.close()
    return keys


def read_all(
    folder: Path, keys: Sequence[BlockKey], way: str, upload: Upload | None, options: argparse.Namespace
) -> Facts:
    """One restart."""
    if options.cold:
        drop_caches(folder)
    store = opened(folder, options, compress=True, gathers=way == "gather")
    lanes = StoreLanes(SystemClock(), EventLog())
    tier = StoredTier("store", store, lanes, upload=upload)
    arrived = threading.Event()
    parts = [keys[at : at + RECORDS_PER_READ] for at in range(0, len(keys), RECORDS_PER_READ)]
    wanted, waited_s, landed_s, num_read, raw_bytes = frozenset([GroupIndex(0)]), 0.0, 0.0, 0, 0
    held: list[object] = []
    started_s, used_s = time.perf_counter(), time.process_time()
    reads = [tier.fetch(part, [wanted] * len(part), arrived.set) for part in parts[:READS_AHEAD]]
    for at in range(len(parts)):
        before_s = time.perf_counter()
        read = reads.pop(0)
        assert read is not None
        while not read.is_done:
            arrived.wait(0.5)
            arrived.clear()
        between_s = time.perf_counter()
        landed = tier.uploaded(read.answer or ())
        sizes = [record.raw_bytes for record in landed if record is not None]
        num_read, raw_bytes = num_read + len(sizes), raw_bytes + sum(sizes)
        if upload is not None:
            held.append(landed)
        del read, landed
        waited_s, landed_s = waited_s + between_s - before_s, landed_s + time.perf_counter() - between_s
        if (coming := at + READS_AHEAD) < len(parts):
            reads.append(tier.fetch(parts[coming], [wanted] * len(parts[coming]), arrived.set))
    spent_s, used_s = time.perf_counter() - started_s, time.process_time() - used_s
    assert num_read == len(keys)
    lanes.close()
    store.close()
    times = {"spent_s": spent_s, "cpu_s": used_s, "waited_s": waited_s, "landed_s": landed_s}
    return {"GB_s": raw_bytes / spent_s / 1e9, **times}


def hold_the_lock() -> None:
    while True:
        pass


def in_threads(count: int, work: Callable[[int], object], num_items: int) -> float:
    with ThreadPoolExecutor(count) as pool:
        return timed(lambda: list(pool.map(work, range(num_items))))


def copied_s(folder: Path, count: int) -> float:
    """The file's bytes, copied out of a map of their own."""
    source = np.memmap(folder / "data.mdb", np.uint8, "r")
    targets = threading.local()

    def copy(number: int) -> None:
        part = source[number * COPY_BYTES : (number + 1) * COPY_BYTES]
        if not hasattr(targets, "memory"):
            targets.memory = np.empty(COPY_BYTES, np.uint8)
        np.copyto(targets.memory[: part.size], part)

    return in_threads(count, copy, -(-source.size // COPY_BYTES))


def decoded_s(records: str, num_records: int, options: argparse.Namespace) -> float:
    codecs = [
        ZstdStateCodec(compress=compress, keeps_planes=True) for compress in {records != "raw", records == "zstd"}
    ]
    sources = payloads(2, options.scale)
    frames = [[memoryview(b"".join(codec.encode(one)))] for codec in codecs for one in sources]
    return in_threads(
        options.threads, lambda number: codecs[0].decode(frames[number % len(frames)]).size_bytes, num_records
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to measure; default: the temporary folder")
    parser.add_argument("--gb", type=float, default=8.0, help="raw bytes of state, in 1e9")
    parser.add_argument("--records", nargs="+", choices=("raw", "zstd", "mixed"), default=["raw", "zstd"])
    parser.add_argument("--ways", nargs="+", choices=("gather", "map"), default=["gather", "map"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=num_threads())
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "restart_reads")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if options.busy:
        threading.Thread(target=hold_the_lock, daemon=True).start()
    upload = share_locked_memory()
    for records in options.records:
        folder = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir=options.dir))
        try:
            keys = fill(folder, records, options)
            rounds: dict[str, list[Facts]] = {way: [] for way in options.ways}
            for _ in range(options.rounds + 1):
                for way in options.ways:
                    rounds[way].append(read_all(folder, keys, way, upload, options))
            copy_s = median(copied_s(folder, options.threads) for _ in range(options.rounds))
            codec_s = median(decoded_s(records, len(keys), options) for _ in range(options.rounds))
            for way, found in rounds.items():
                facts: Facts = {name: median(one[name] for one in found[1:]) for name in found[0]}
                facts["first_GB_s"] = found[0]["GB_s"]
                facts["over_copy"], facts["over_codec"] = facts["spent_s"] / copy_s, facts["spent_s"] / codec_s
                results.add("restart", records=records, way=way, uploads=upload is not None, **facts)
                print(records, way, json.dumps(facts, indent=2), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
