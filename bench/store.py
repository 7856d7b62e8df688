"""The block store against one safetensors file a block, in one run.

    python -m bench.store [CASE ...] [--dir DIR] [--blocks 16] [--records 100000]

Cases: density, throughput, open, churn, engine. Baselines, measured on the same volume between our own rounds: a block
is saved with `mx.save_safetensors` and renamed, loaded with `mx.load`; a scan lists a folder, stats and parses every
header. Rates are of raw bytes; times are the best of the rounds unless they are quantiles. `cold`: the page cache is
told to forget the files first.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from adapters.system.blas import load_blas

load_blas()

import mlx.core as mx  # noqa: E402 - a BLAS only counts when it is there before MLX
import numpy as np  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from adapters.fake.clock import FakeClock  # noqa: E402
from adapters.huggingface.embedded_models import EMBEDDED_IDS, embedded_folder  # noqa: E402
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions  # noqa: E402
from adapters.mlx.assembly import assemble  # noqa: E402
from adapters.mlx.loader import load_folder  # noqa: E402
from adapters.system.clock import SystemClock  # noqa: E402
from adapters.zstd.codec import ZstdStateCodec  # noqa: E402
from application.ports.block_store import PutOutcome  # noqa: E402
from application.services.write_behind import WriteBehind  # noqa: E402
from domain.ids import BlockHash, GroupIndex, SequenceId  # noqa: E402
from domain.payload import GroupPayloads, HostPayload, StatePayload, TensorSpec  # noqa: E402
from domain.record import BlockKey, Namespace, NamespaceInfo, Record  # noqa: E402
from tests.support.recording import RecordingEvents  # noqa: E402

BLOCK = 256
INFO = NamespaceInfo(Namespace(sha256(b"bench").digest()), "bench", "{}")
ROUNDS = 5
Facts = dict[str, Any]


def open_store(
    path: Path, quota_bytes: int, *, compress: bool = True, threads: int = 2, sync: bool = True
) -> LmdbBlockStore:
    options = LmdbOptions(quota_bytes, num_threads=threads, durability="safe" if sync else "fast")
    return LmdbBlockStore(path, options, ZstdStateCodec(compress=compress), RecordingEvents(), SystemClock())


def record(number: int, groups: GroupPayloads, *, parent: BlockHash | None = None) -> Record:
    key = BlockKey(INFO.namespace, BlockHash(sha256(number.to_bytes(8, "big")).digest()))
    return Record(key, parent or BlockHash(INFO.namespace), BLOCK, tuple(range(BLOCK)), groups)


def put(store: LmdbBlockStore, records: list[Record]) -> None:
    assert store.put(records) is PutOutcome.STORED


def arrays_of(payload: StatePayload) -> list[mx.array]:
    return [
        mx.array(np.frombuffer(view, np.uint16)).view(mx.bfloat16).reshape(spec.shape)
        for spec, view in zip(payload.specs, payload.buffers(), strict=True)
    ]


def save_file(path: Path, arrays: list[mx.array]) -> None:
    """A whole file or none, as the peers write it."""
    partial = path.with_name(f"{path.stem}.part.safetensors")
    mx.save_safetensors(str(partial), {str(index): array for index, array in enumerate(arrays)})
    partial.rename(path)


def drop_caches(path: Path) -> None:
    os.sync()
    for file in path.rglob("*"):
        if file.is_file() and hasattr(os, "posix_fadvise"):
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def density(folder: Path, options: argparse.Namespace) -> Facts:
    """Stored bytes of real bfloat16 state of the embedded models."""
    facts: Facts = {}
    text = "".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
    for id in EMBEDDED_IDS:
        source = embedded_folder(id)
        assert source is not None
        tokens = Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids[: 6 * BLOCK]
        network, model_facts = load_folder(source, "bfloat16", None)
        model = assemble(network, id, model_facts)
        model.open(SequenceId(1))
        groups: list[GroupPayloads] = []
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            model.prefill(SequenceId(1), tokens[start : start + BLOCK])
            groups += model.capture_blocks(SequenceId(1), [(start, start + BLOCK)])
        store = open_store(folder / id, 1 << 30)
        records = [record(number, one) for number, one in enumerate(groups)]
        put(store, records)
        raw = sum(payload.size_bytes for one in groups for payload in one.values())
        space = store.usage().namespaces[0]
        facts[id] = {
            "raw_bytes_a_token": raw / len(records) / BLOCK,
            "stored_bytes_a_token": space.stored_bytes / len(records) / BLOCK,
            "stored_over_raw": space.stored_bytes / raw,
            "goal": 0.69,
        }
        store.close()
        model.release()
    return facts


def synthetic(count: int) -> list[HostPayload]:
    """Blocks of a dense 8B model, 32 MiB each: normal numbers with a scale for each channel."""
    random = np.random.default_rng(0)
    specs = (TensorSpec("bfloat16", (1, 8, BLOCK, 128)),) * 64
    scale = np.exp(random.standard_normal((8, 1, 128), np.float32))
    tensors: list[memoryview] = []
    for _ in specs:
        numbers = random.standard_normal((8, BLOCK, 128), np.float32) * scale
        words = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        tensors.append(words.reshape(-1).data.cast("B"))
    # Rotated, so that no two blocks are equal and making them takes no time.
    return [HostPayload(specs, tuple(tensors[index % 64 :] + tensors[: index % 64])) for index in range(count)]


def throughput(folder: Path, options: argparse.Namespace) -> Facts:
    payloads = synthetic(options.blocks)
    total = sum(payload.size_bytes for payload in payloads)
    records = [record(number, {GroupIndex(0): payload}) for number, payload in enumerate(payloads)]
    files = folder / "files"
    files.mkdir()
    arrays = [arrays_of(payload) for payload in payloads]
    mx.eval(arrays)

    def save_files() -> None:
        for index, one in enumerate(arrays):
            save_file(files / f"{index}.safetensors", one)
        os.sync()

    write_file_s = timed(save_files)
    arrays.clear()
    facts: Facts = {"raw_MB": total / 1e6, "write_file_MB_s": total / write_file_s / 1e6}

    def load_files() -> None:
        for index in range(len(records)):
            mx.eval(list(mx.load(str(files / f"{index}.safetensors")).values()))

    for name, compress in (("zstd", True), ("raw", False)):
        store = open_store(folder / name, 4 * total, compress=compress)
        write_s = timed(lambda store=store: [put(store, [one]) for one in records])
        facts[f"write_{name}_MB_s"] = total / write_s / 1e6
        facts[f"stored_{name}_over_raw"] = store.usage().stored_bytes / total
        store.close()
    facts |= _reads(folder, records, total, load_files)
    return facts


def _reads(folder: Path, records: list[Record], total: int, load_files: Callable[[], None]) -> Facts:
    keys = [one.key for one in records]
    stores = [(name, threads) for name in ("zstd", "raw") for threads in (1, 2)]

    def read(store: LmdbBlockStore) -> None:
        # Two blocks at a time, the next two while these are uploaded; so their memory is used again.
        parts = [keys[start : start + 2] for start in range(0, len(keys), 2)]
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(store.get, parts[0])
            for following in [*parts[1:], []]:
                records, coming = coming.result(), ahead.submit(store.get, following)
                for found in records:
                    assert found is not None
                    mx.eval(arrays_of(found.groups[GroupIndex(0)]))
                del records, found

    def read_hot() -> None:
        for one in records:
            mx.eval(arrays_of(one.groups[GroupIndex(0)]))

    times: dict[str, list[float]] = {}
    cpu_s: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, threads in stores:
            path = folder / name
            store = open_store(path, 4 * total, threads=threads)
            read(store)
            used_s = time.process_time()
            times.setdefault(f"read_warm_{name}_{threads}", []).append(timed(lambda store=store: read(store)))
            cpu_s[f"cpu_{name}_{threads}"] = min(
                time.process_time() - used_s, cpu_s.get(f"cpu_{name}_{threads}", float("inf"))
            )
            store.close()
            store = open_store(path, 4 * total, threads=threads)
            store.get(keys[:1])  # the file's structure is verified by then, as it is when a server has started
            drop_caches(folder)
            times.setdefault(f"read_cold_{name}_{threads}", []).append(timed(lambda store=store: read(store)))
            store.close()
        drop_caches(folder)
        times.setdefault("read_cold_file", []).append(timed(load_files))
        used_s = time.process_time()
        times.setdefault("read_warm_file", []).append(timed(load_files))
        cpu_s["cpu_file"] = min(time.process_time() - used_s, cpu_s.get("cpu_file", float("inf")))
        times.setdefault("read_hot", []).append(timed(read_hot))
    facts: Facts = {f"{name}_MB_s": total / min(all_s) / 1e6 for name, all_s in times.items()}
    warm, cold = min(times["read_warm_file"]), min(times["read_cold_file"])
    facts |= {
        "warm_zstd_2_over_file": min(times["read_warm_zstd_2"]) / warm,
        "warm_goal": 1.5,
        "warm_zstd_cpu_over_file": cpu_s["cpu_zstd_2"] / cpu_s["cpu_file"],
        "warm_raw_2_over_file": min(times["read_warm_raw_2"]) / warm,
        "hot_over_file": min(times["read_hot"]) / warm,
        "hot_goal": 1.0,
        "cold_zstd_2_over_file": min(times["read_cold_zstd_2"]) / cold,
        "cold_goal": 1.0,
    }
    return facts


def open_time(folder: Path, options: argparse.Namespace) -> Facts:
    """Opening, with a first lookup, against scanning a folder of files in 16 x 16 subfolders."""
    count = options.records
    header = json.dumps({"k": {"dtype": "BF16", "shape": [1, 1, 16, 2], "data_offsets": [0, 64]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(64)
    files = folder / "files"
    for number in range(256):
        (files / f"{number:02x}").mkdir(parents=True)
    for number in range(count):
        (files / f"{number % 256:02x}" / f"{number}.safetensors").write_bytes(content)
    store = open_store(folder / "store", 4 << 30, sync=False)
    payload = HostPayload((TensorSpec("bfloat16", (1, 1, 16, 2)),), (memoryview(bytes(64)),))
    for start in range(0, count, 1000):
        put(store, [record(number, {GroupIndex(0): payload}) for number in range(start, min(count, start + 1000))])
    store.close()

    def scan() -> None:
        found: dict[str, tuple[int, Any]] = {}
        for entry in os.scandir(files):
            for file in os.scandir(entry.path):
                size = file.stat().st_size
                with open(file.path, "rb") as opened:
                    (length,) = struct.unpack("<Q", opened.read(8))
                    found[file.name] = (size, json.loads(opened.read(length)))
        assert len(found) == count

    def open_and_look() -> None:
        nonlocal store
        store = open_store(folder / "store", 4 << 30)
        assert store.lookup([record(count // 2, {}).key])[0].value == "hit"  # type: ignore[list-item]

    opens: list[float] = []
    for _ in range(ROUNDS):
        opens.append(timed(open_and_look))
        store.close()
    scan_s = min(timed(scan) for _ in range(2))
    drop_caches(folder)
    cold_s = timed(open_and_look)
    store.close()
    return {
        "records": count,
        "open_ms": min(opens) * 1e3,
        "open_cold_ms": cold_s * 1e3,
        "scan_files_s": scan_s,
        "scan_over_open": scan_s / min(opens),
        "goal": 1000,
    }


def churn(folder: Path, options: argparse.Namespace) -> Facts:
    """Put latency at a full quota, sizes of 0.1 to 8 MiB. `growth`: the last tenth against the first after filling."""
    source = memoryview(np.random.default_rng(1).bytes(9 << 20))
    random = np.random.default_rng(2)
    quota_bytes = 1 << 30
    store = open_store(folder / "store", quota_bytes, compress=False)
    latencies: list[float] = []
    by_size: dict[int, list[float]] = {}
    cpu_by_size: dict[int, list[float]] = {}
    number = 0
    while store.usage().evicted == 0 or len(latencies) < options.puts:
        size = int(2 ** random.uniform(np.log2(100 << 10), np.log2(8 << 20)))
        payload = HostPayload((TensorSpec("uint8", (size,)),), (source[number % 4096 : number % 4096 + size],))
        one = record(number, {GroupIndex(0): payload})
        # CPU time of the putting thread, which does all of it: on a busy machine the wall clock measures the others.
        used_s = time.thread_time()
        spent = timed(lambda one=one: put(store, [one]))
        used_s = time.thread_time() - used_s
        store.touch([record(int(random.integers(0, number + 1)), {}).key])
        number += 1
        if store.usage().evicted:
            latencies.append(spent)
            by_size.setdefault(size.bit_length(), []).append(spent)
            cpu_by_size.setdefault(size.bit_length(), []).append(used_s)
    usage, file_bytes = store.usage(), (folder / "store" / "data.mdb").stat().st_size
    store.close()
    tenth = len(latencies) // 10
    median, p99 = statistics.median(latencies), statistics.quantiles(latencies, n=100)[98]
    return {
        "puts": len(latencies),
        "live_over_quota": usage.stored_bytes / quota_bytes,
        "file_over_quota": file_bytes / quota_bytes,
        "median_ms": median * 1e3,
        "p99_ms": p99 * 1e3,
        "p99_over_median_all_sizes": p99 / median,
        # The sizes themselves differ by eighty times, so the goal is for puts of about one size.
        "p99_over_median_worst_size": _worst_p99(by_size),
        "cpu_p99_over_median_worst_size": _worst_p99(cpu_by_size),
        "goal": 5,
        "growth": statistics.median(latencies[-tenth:]) / statistics.median(latencies[:tenth]),
    }


def _worst_p99(times: dict[int, list[float]]) -> float:
    """p99 over median, of the sizes (by power of two) where it is worst."""
    return max(
        statistics.quantiles(same, n=100)[98] / statistics.median(same) for same in times.values() if len(same) >= 50
    )


def engine(folder: Path, options: argparse.Namespace) -> Facts:
    """What offering captured blocks costs the thread that computes, against computing and capturing alone."""
    source = embedded_folder(EMBEDDED_IDS[0])
    assert source is not None
    network, model_facts = load_folder(source, "auto", None)
    model = assemble(network, EMBEDDED_IDS[0], model_facts)
    tokens = [int(token) for token in np.random.default_rng(0).integers(1, 4000, 4 * BLOCK)]
    store = open_store(folder / "store", 2 << 30)
    writer = WriteBehind(store, RecordingEvents(), FakeClock(), max_bytes=1 << 30)
    number = 0

    def prefill(*, offers: bool) -> tuple[float, float]:
        nonlocal number
        model.open(SequenceId(1))
        start, offered_s = time.perf_counter(), 0.0
        for at in range(0, len(tokens), 2 * BLOCK):
            model.prefill(SequenceId(1), tokens[at : at + 2 * BLOCK])
            blocks = model.capture_blocks(SequenceId(1), [(at, at + BLOCK), (at + BLOCK, at + 2 * BLOCK)])
            for groups in blocks if offers else []:
                one = record(number, groups)
                number += 1
                offered_s += timed(lambda one=one: writer.offer(INFO, [one]))
        spent = time.perf_counter() - start
        model.close([SequenceId(1)])
        assert writer.flush(60)
        return spent, offered_s

    prefill(offers=True)
    with_offers, without, offered = [], [], []
    for _ in range(ROUNDS):
        without.append(prefill(offers=False)[0])
        spent, offered_s = prefill(offers=True)
        with_offers.append(spent)
        offered.append(offered_s / spent)
    counts = writer.close(60)
    store.close()
    assert not counts.dropped
    return {
        "offer_share_of_prefill": statistics.median(offered),
        "goal": 0.02,
        "prefill_with_writer_over_without": min(with_offers) / min(without),
        "persisted": counts.persisted,
    }


CASES = {"density": density, "throughput": throughput, "open": open_time, "churn": churn, "engine": engine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES))
    parser.add_argument("--dir", type=Path, help="where to measure; default: the temporary folder")
    parser.add_argument("--blocks", type=int, default=16, help="of 32 MiB, for throughput")
    parser.add_argument("--records", type=int, default=100_000, help="for open")
    parser.add_argument("--puts", type=int, default=2000, help="for churn")
    options = parser.parse_args()
    for case in options.cases:
        folder = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir=options.dir))
        try:
            print(case, json.dumps(CASES[case](folder, options), indent=2, default=str), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
