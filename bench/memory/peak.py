"""Estimated and measured memory of prefill, for real shapes with random weights in bfloat16.

    python -m bench.memory.peak [--shapes llama-8b,qwen3-4b] [--at 8k,32k,64k] [--rounds 2] [--seconds 220]
        [--json FILE]

Each prompt is prefilled in chunks as the server does it; at each position named, one chunk is measured by itself
(`mx.get_peak_memory` after `mx.reset_peak_memory`). `formula` is what the configuration alone says of it, and
`estimate` what the model's `MemoryShape` says once a load has measured a chunk. Ratios are estimate over measured: of
everything, and of what prefill needs beyond weights and states. `--seconds` bounds the prefill of each shape,
once its model is built: positions that it does not allow are left out, and named. Needs no downloads.
"""

import argparse
import gc
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx.loading.assembly import assemble, measure_chunks
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.runtime.device import describe_device, preferred_grid
from bench.common.results import Results
from bench.common.shapes import build_shape
from domain.ids import ModelId, SequenceId
from tests.support.engines.finish_load import finish_load

LINES = {"built_s": "model", "left_out": "left out", "ratio": "peak"}
"""The kind of a line, by the figure that only such a line has."""


def measure(name: str, marks: list[int], seconds: float, num_rounds: int) -> Iterator[dict[str, Any]]:
    """One line for the model, and one for each position of each round."""
    begun_s = time.monotonic()
    network, config = build_shape(name)
    built_s = time.monotonic() - begun_s
    model = finish_load(assemble(network, ModelId(name), ModelFacts(config)))
    formula, chunk = model.description.memory, preferred_grid()
    model.correct(chunk, finish_load(measure_chunks(model, chunk, None)))
    shape = model.description.memory
    tokens = [(17 * index + 5) % 500 for index in range(chunk)]
    yield {
        "shape": name,
        "dtype": model.description.dtype,
        "weight_bytes": shape.weight_bytes,
        "built_s": built_s,
        "measured_s": time.monotonic() - begun_s - built_s,
    }
    deadline_s = time.monotonic() + seconds
    for number in range(num_rounds):
        id, end = SequenceId(number), 0
        model.open(id)
        for mark in marks:
            while end < mark - chunk and time.monotonic() < deadline_s:
                end += chunk
                model.prefill(id, tokens)
            if end < mark - chunk:
                yield {"shape": name, "round": number, "left_out": mark}
                break
            mx.synchronize()
            mx.clear_cache()
            mx.reset_peak_memory()
            model.prefill(id, tokens)
            mx.synchronize()
            end, measured = mark, mx.get_peak_memory()
            known = shape.weight_bytes + shape.state_bytes(end, chunk)
            step = shape.chunk_bytes(chunk, end)
            yield {
                "shape": name,
                "round": number,
                "at": end,
                "estimate": known + step,
                "measured": measured,
                "ratio": (known + step) / measured,
                "beyond": step,
                "formula": formula.chunk_bytes(chunk, end),
                "beyond_measured": measured - known,
                "beyond_ratio": step / max(measured - known, 1),
                "active_after": mx.get_active_memory() - known,
            }
        model.close([id])
    model.release()
    del model, network
    gc.collect()
    mx.clear_cache()


def described(line: dict[str, Any]) -> str:
    if "built_s" in line:
        told = f"{line['dtype']}, {line['weight_bytes'] / 1e9:.2f} GB, built in {line['built_s']:.1f} s"
        return f"{line['shape']:<16} {told}, a chunk measured in {line['measured_s']:.1f} s"
    if "left_out" in line:
        return f"{line['shape']:<16} {line['left_out']:>7} left out, and what follows it: the time is over"
    sizes = " ".join(
        f"{name} {line[name] / 2**20:9.0f}"
        for name in ("estimate", "measured", "formula", "beyond", "beyond_measured", "active_after")
    )
    ratios = f"ratio {line['ratio']:.2f} beyond {line['beyond_ratio']:.2f}"
    return f"{line['shape']:<16} {line['at']:>7} {sizes} | {ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="llama-8b,qwen3-4b,qwen3.5-4-layers")
    parser.add_argument("--at", default="8k,32k,64k")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "memory_peak", mlx_device=describe_device())
    grid = preferred_grid()
    marks = sorted(
        {max(grid, int(mark.lower().removesuffix("k")) * 1024 // grid * grid) for mark in options.at.split(",")}
    )
    print(f"{describe_device()}, MLX {version('mlx')}, chunks of {grid} tokens, sizes in MiB")
    for name in options.shapes.split(","):
        for line in measure(name, marks, options.seconds, options.rounds):
            kind = next((one for one in ("built_s", "left_out") if one in line), "ratio")
            results.add(LINES[kind], **line)
            print(described(line), flush=True)
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
