"""How fast captured state leaves a CUDA device, and what the memory that it goes to has to do with it.

    python -m bench.copy_out [--mib 36] [--rounds 8] [--threads 1,4] [--json FILE]

Blocks of `--mib` are copied out by as many threads at once, by turns into page-locked memory that is used again, as a
server does, and into ordinary memory, the baseline. What came out is compared with what was there.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import mlx.core as mx
import numpy as np

from adapters.mlx.arrays import evaluate
from adapters.mlx.cuda_download import Downloads
from adapters.mlx.cuda_driver import CudaDriver
from adapters.mlx.cuda_link import find_link
from bench.results import Results, where

PER_THREAD = 4


def copied(downloads: Downloads, places: Sequence[int], size_bytes: int, index: int) -> memoryview:
    return downloads.copy_out(places[index], size_bytes)


def rate(copy_out: Callable[[int], memoryview], expected: Sequence[bytes], num_threads: int) -> float:
    """GB/s. Each thread copies PER_THREAD blocks, one after the other, and lets go of each."""

    def work(_thread: int) -> int:
        return sum(copy_out(index % len(expected)).nbytes for index in range(PER_THREAD))

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(int, range(num_threads)))  # the threads are there
        started = time.perf_counter()
        num_bytes = sum(pool.map(work, range(num_threads)))
        seconds = time.perf_counter() - started
    for index, block in enumerate(expected):
        if bytes(copy_out(index)) != block:
            raise SystemExit("what was copied out is not what was there")
    return num_bytes / seconds / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=36, help="of a block; 36: 256 tokens of Qwen3-4B")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", default="1,4")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "copy_out")
    link = find_link()
    if link is None:
        raise SystemExit("no CUDA link here")
    driver = CudaDriver()
    blocks = [mx.random.randint(0, 256, (options.mib << 20,)).astype(mx.uint8) for _ in range(2)]
    addresses = [link.address_of(block) for block in blocks]
    evaluate([*blocks, *addresses])
    places = [int(np.array(address)[0]) for address in addresses]
    size_bytes = blocks[0].nbytes
    ordinary, locked = Downloads(driver, 0), Downloads(driver)
    expected = [bytes(ordinary.copy_out(place, size_bytes)) for place in places]
    print(where()["device"], flush=True)
    for num_threads in map(int, options.threads.split(",")):
        rates: dict[str, list[float]] = {"ordinary": [], "locked": []}
        for _ in range(options.rounds):
            for name, downloads in (("ordinary", ordinary), ("locked", locked)):
                rates[name].append(rate(partial(copied, downloads, places, size_bytes), expected, num_threads))
        found = {f"{name}_GB_s": median(of[1:] or of) for name, of in rates.items()}
        found["locked_over_ordinary"] = found["locked_GB_s"] / found["ordinary_GB_s"]
        results.add("copy_out", threads=num_threads, mib=options.mib, **found)
        print(num_threads, "threads:", {name: round(value, 2) for name, value in found.items()}, flush=True)
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
