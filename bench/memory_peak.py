"""Estimated and measured memory of prefill, for real shapes with random weights in bfloat16.

    python -m bench.memory_peak [--shapes llama-8b,qwen3-4b] [--at 8k,32k,64k] [--rounds 2] [--seconds 220]
        [--json FILE]

Each prompt is prefilled in chunks as the server does it; at each position named, one chunk is measured by itself
(`mx.get_peak_memory` after `mx.reset_peak_memory`). `formula` is what the configuration alone says of it, and
`estimate` what the model's `MemoryShape` says once a load has measured a chunk. Ratios are estimate over measured: of
everything, and of what prefill needs beyond weights and states. Beside them the rates: of the prefill since the last
position, and of decoding alone behind the last one. Needs no downloads. `--seconds` bounds the prefill of each shape,
once its model is there: positions that it does not allow are left out, and named. How long the model took is a line of
its own.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx.loading.assembly import assemble, measure_chunks
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.device import describe_device, preferred_grid
from application.ports.compute import DecodeStart
from bench.results import Results
from bench.shapes import build_shape
from domain.ids import ModelId, SequenceId
from domain.request.sampling import SamplingParams
from tests.support.engines.finish_load import finish_load

NUM_STEPS, WARM_STEPS = 40, 8
LINES = {"built_s": "model", "left_out": "left out", "decode_ms": "decode", "ratio": "peak"}
"""What a line tells of, by the figure that only such a line has."""


def measure(name: str, marks: list[int], seconds: float, num_rounds: int) -> Iterator[dict[str, Any]]:
    """One line for the model, one for each position of each round, and one for decoding after it."""
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
            start, started_at = time.perf_counter(), end
            while end < mark - chunk and time.monotonic() < deadline_s:
                end += chunk
                model.prefill(id, tokens)
            if end < mark - chunk:
                yield {"shape": name, "round": number, "left_out": mark}
                break
            mx.synchronize()
            rate = (end - started_at) / (time.perf_counter() - start) if end > started_at else None
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
                "prefill_tokens_s": rate,
            }
        yield {"shape": name, "round": number, "at": end, "decode_ms": decode_ms(model, id)}
        model.close([id])
    model.release()
    del model, network
    gc.collect()
    mx.clear_cache()


def decode_ms(model: MlxModel, id: SequenceId) -> float:
    """The median step of one stream."""
    model.start_decode(id, [7], DecodeStart((7,), SamplingParams(temperature=0), seed=1))
    times: list[float] = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        model.decode([id])
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[WARM_STEPS:])


def tell(line: dict[str, Any]) -> str:
    if "built_s" in line:
        told = f"{line['dtype']}, {line['weight_bytes'] / 1e9:.2f} GB, built in {line['built_s']:.1f} s"
        return f"{line['shape']:<16} {told}, a chunk measured in {line['measured_s']:.1f} s"
    if "left_out" in line:
        return f"{line['shape']:<16} {line['left_out']:>7} left out, and what follows it: the time is over"
    if "decode_ms" in line:
        return f"{line['shape']:<16} {line['at']:>7} a decode step takes {line['decode_ms']:.2f} ms"
    sizes = " ".join(
        f"{name} {line[name] / 2**20:9.0f}" if line[name] is not None else f"{name}         -"
        for name in ("estimate", "measured", "formula", "beyond", "beyond_measured", "active_after")
    )
    rate = f" | {line['prefill_tokens_s']:.0f} tokens/s" if line["prefill_tokens_s"] else ""
    ratios = f"ratio {line['ratio']:.2f} beyond {line['beyond_ratio']:.2f}"
    return f"{line['shape']:<16} {line['at']:>7} {sizes} | {ratios}{rate}"


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
            kind = next((one for one in ("built_s", "left_out", "decode_ms") if one in line), "ratio")
            results.add(LINES[kind], **line)
            print(tell(line), flush=True)
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
