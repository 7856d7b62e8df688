"""Writing blocks and reading them back as MLX arrays, against one safetensors file a block (see bench/store.py)."""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import mlx.core as mx
import numpy as np
from zstandard import ZstdDecompressor, frame_content_size

from adapters.lmdb.block_store import LmdbBlockStore
from adapters.zstd.codec import ZstdStateCodec
from bench.store_support import BLOCK, ROUNDS, Facts, drop_caches, open_store, put, record, timed
from domain.ids import GroupIndex
from domain.prefix.record import HostPayload, Record, StatePayload, TensorSpec


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
    exponents = _exponent_planes(records)

    def read(store: LmdbBlockStore) -> None:
        # Four blocks at a time, the next four while these are uploaded; so their memory is used again.
        parts = [keys[start : start + 4] for start in range(0, len(keys), 4)]
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

    times = _Times()
    for _ in range(ROUNDS):
        for name, threads in (("zstd", 1), ("zstd", 2), ("raw", 1), ("raw", 2)):
            for is_cold in (False, True):
                store = open_store(folder / name, 4 * total, threads=threads)
                store.get(keys[:1])  # the file's structure is verified by then, as it is when a server has started
                if is_cold:
                    drop_caches(folder)
                else:
                    read(store)
                times.add(f"read_{'cold' if is_cold else 'warm'}_{name}_{threads}", lambda store=store: read(store))
                store.close()
        drop_caches(folder)
        times.add("read_cold_file", load_files)
        times.add("read_warm_file", load_files)
        times.add("read_hot", read_hot)
        times.add("huffman", lambda: _decompress(exponents))
    facts: Facts = {f"{name}_MB_s": total / min(all_s) / 1e6 for name, all_s in times.wall_s.items()}
    facts |= {
        "warm_zstd_2_over_file": times.ratio("read_warm_zstd_2", "read_warm_file"),
        "warm_raw_2_over_file": times.ratio("read_warm_raw_2", "read_warm_file"),
        "warm_goal": 1.5,
        "hot_over_file": times.ratio("read_hot", "read_warm_file"),
        "hot_goal": 1.0,
        "cold_zstd_2_over_file": times.ratio("read_cold_zstd_2", "read_cold_file"),
        "cold_raw_2_over_file": times.ratio("read_cold_raw_2", "read_cold_file"),
        "cold_goal": 1.0,
        # CPU time of everything, of the file being 1; `huffman`: zstd's work alone, which no reader can avoid.
        "cpu_zstd": times.cpu_ratio("read_warm_zstd_2", "read_warm_file"),
        "cpu_raw": times.cpu_ratio("read_warm_raw_2", "read_warm_file"),
        "cpu_huffman": times.cpu_ratio("huffman", "read_warm_file"),
    }
    return facts


class _Times:
    def __init__(self) -> None:
        self.wall_s: dict[str, list[float]] = {}
        self.cpu_s: dict[str, list[float]] = {}

    def add(self, name: str, work: Callable[[], object]) -> None:
        used_s = time.process_time()
        self.wall_s.setdefault(name, []).append(timed(work))
        self.cpu_s.setdefault(name, []).append(time.process_time() - used_s)

    def ratio(self, name: str, baseline: str) -> float:
        """Of the best rounds; medians where the disk is in it, whose speed changes between rounds."""
        best = median if "cold" in name else min
        return best(self.wall_s[name]) / best(self.wall_s[baseline])

    def cpu_ratio(self, name: str, baseline: str) -> float:
        return min(self.cpu_s[name]) / min(self.cpu_s[baseline])


def _exponent_planes(records: list[Record]) -> list[bytes]:
    """What is compressed of each block: one zstd frame, the first plane of the codec frame's only segment."""
    codec = ZstdStateCodec()
    return [bytes(codec.encode(one.groups[GroupIndex(0)])[1]) for one in records]


def _decompress(planes: list[bytes]) -> None:
    decompressor, size = ZstdDecompressor(), frame_content_size(planes[0])
    out = bytearray(size)
    for plane in planes:
        reader, filled = decompressor.stream_reader(plane, read_size=1 << 22), 0
        while filled < size:
            filled += reader.readinto(memoryview(out)[filled:])
