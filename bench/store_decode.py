"""Decoding blocks of a dense 8B model, merged by the host or left in planes for a device (see bench/store.py).

By threads: raw bytes a second, and those a second of processor time, both sides in turns. `calls`: into C for one
block, between each two of which a thread may lose the interpreter to another one.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from adapters.zstd.codec import ZstdStateCodec
from bench.store_support import ROUNDS, Facts
from bench.store_throughput import synthetic

PIECE_BYTES = 262_120
"""As the store cuts what it writes."""

NUM_BLOCKS = 4


def decode(folder: Path, options: argparse.Namespace) -> Facts:
    """Without a store: its frames lie in memory, cut into pieces as in the map."""
    payloads = synthetic(NUM_BLOCKS)
    raw_bytes = payloads[0].size_bytes
    frames = [_pieces(b"".join(ZstdStateCodec().encode(payload))) for payload in payloads]
    del payloads
    codecs = {"merged": ZstdStateCodec(), "planes": ZstdStateCodec(keeps_planes=True)}
    facts: Facts = {f"calls_{name}": _num_calls(codec, frames[0]) for name, codec in codecs.items()}
    for num_threads in (1, 2, 4, 8):
        wall: dict[str, list[float]] = {name: [] for name in codecs}
        cpu: dict[str, list[float]] = {name: [] for name in codecs}
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in range(ROUNDS + 1):
                for name, codec in codecs.items():
                    wall_s, cpu_s = time.perf_counter(), time.process_time()
                    # Results go as they come, so that their memory is used again.
                    work = [pool.submit(_size_of, codec, frame) for frame in frames * 2]
                    assert sum(one.result() for one in work) == 2 * NUM_BLOCKS * raw_bytes
                    wall[name].append(time.perf_counter() - wall_s)
                    cpu[name].append(time.process_time() - cpu_s)
        total = 2 * NUM_BLOCKS * raw_bytes
        for name in codecs:
            facts[f"{name}_{num_threads}_MB_s"] = total / min(wall[name][1:]) / 1e6
            facts[f"{name}_{num_threads}_cpu_MB_s"] = total / min(cpu[name][1:]) / 1e6
        facts[f"cpu_planes_over_merged_{num_threads}"] = median(
            one / other for one, other in zip(cpu["planes"][1:], cpu["merged"][1:], strict=True)
        )
    return facts


def _size_of(codec: ZstdStateCodec, frame: list[memoryview]) -> int:
    return codec.decode(frame).size_bytes


def _pieces(frame: bytes) -> list[memoryview]:
    view = memoryview(frame)
    return [view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES)]


def _num_calls(codec: ZstdStateCodec, frame: list[memoryview]) -> int:
    codec.decode(frame)
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    sys.setprofile(note)
    try:
        codec.decode(frame)
    finally:
        sys.setprofile(None)
    return count
