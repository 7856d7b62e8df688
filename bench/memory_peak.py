"""Estimated and measured memory of prefill, for real shapes with random weights in bfloat16.

    python -m bench.memory_peak [--shapes llama-8b,qwen3-4b] [--at 8k,32k,64k] [--seconds 220] [--json FILE]

Each prompt is prefilled in chunks as the server does it; at each position named, one chunk is measured by itself
(`mx.get_peak_memory` after `mx.reset_peak_memory`). `estimate` is what the model's `MemoryShape` says, from shapes and
traces alone; `traced` is the simulation of that very chunk, without the plane that was laid through a few of them, and
`one at a time` the same if MLX waited for every operation. Ratios are estimate over measured: of everything, and of
what prefill needs beyond weights and states. Needs no downloads. Shapes that the time does not allow are left out.
"""

import argparse
import gc
import json
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.caches.state_costs import lazy_caches
from adapters.mlx.device import describe_device, preferred_grid
from adapters.mlx.graph_trace import trace_chunk
from adapters.mlx.memory_shape import run_ahead
from application.services.token_side.model_loads import whole
from bench.shapes import build_shape
from domain.ids import ModelId, SequenceId
from domain.memory.op_trace import RunAhead

ONE_AT_A_TIME = RunAhead(0, 0)


def measure(name: str, marks: list[int], deadline_s: float) -> Iterator[dict[str, Any]]:
    """One line for each position."""
    network, config = build_shape(name)
    model = whole(assemble(network, ModelId(name), ModelFacts(config)))
    shape, layout = model.description.memory, model.description.layout
    chunk, id = preferred_grid(), SequenceId(0)
    pattern = lazy_caches(network, 16)
    tokens = [(17 * index + 5) % 500 for index in range(chunk)]
    model.open(id)
    for end in range(chunk, marks[-1] + 1, chunk):
        if time.monotonic() > deadline_s:
            break
        if end not in marks:
            model.prefill(id, tokens)
            continue
        mx.synchronize()
        mx.clear_cache()
        mx.reset_peak_memory()
        model.prefill(id, tokens)
        mx.synchronize()
        measured = mx.get_peak_memory()
        trace = None if layout.needs_snapshots else trace_chunk(network, layout, pattern, chunk, end)
        known = shape.weight_bytes + shape.state_bytes(end, chunk)
        step = shape.step.bytes_at(chunk, end)
        yield {
            "shape": name,
            "at": end,
            "estimate": known + step,
            "measured": measured,
            "ratio": (known + step) / measured,
            "beyond": step,
            "beyond_measured": measured - known,
            "beyond_ratio": step / max(measured - known, 1),
            "active_after": mx.get_active_memory() - known,
            "traced": trace.peak_bytes(run_ahead()) if trace else None,
            "one_at_a_time": trace.peak_bytes(ONE_AT_A_TIME) if trace else None,
        }
    model.release()
    del model, network, pattern
    gc.collect()
    mx.clear_cache()


def tell(line: dict[str, Any]) -> str:
    sizes = " ".join(
        f"{name} {line[name] / 2**20:9.0f}" if line[name] is not None else f"{name}         -"
        for name in ("estimate", "measured", "beyond", "beyond_measured", "traced", "one_at_a_time", "active_after")
    )
    return f"{line['shape']:<16} {line['at']:>7} {sizes} | ratio {line['ratio']:.2f} beyond {line['beyond_ratio']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="llama-8b,qwen3-4b,qwen3.5-4-layers")
    parser.add_argument("--at", default="8k,32k,64k")
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    deadline_s = time.monotonic() + options.seconds
    grid = preferred_grid()
    marks = sorted(
        {max(grid, int(mark.lower().removesuffix("k")) * 1024 // grid * grid) for mark in options.at.split(",")}
    )
    print(f"{describe_device()}, MLX {version('mlx')}, chunks of {grid} tokens, sizes in MiB")
    lines: list[dict[str, Any]] = []
    for name in options.shapes.split(","):
        for line in measure(name, marks, deadline_s):
            lines.append(line)
            print(tell(line), flush=True)
    if options.json:
        options.json.write_text(json.dumps(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
