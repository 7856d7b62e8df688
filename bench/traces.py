"""How long it takes to find out what a network needs of memory: traced, and from what an earlier start traced.

    python -m bench.traces [--shapes qwen3-4b,llama-8b] [--turns 3] [--json FILE]

In turns: `traced` by a start that knows nothing, `remembered` by one with the file that the first turn left, both in
one process that forgets what it traced. Medians of wall time and of the thread's own CPU time, and how many chunks were
traced. No weight is computed, so any shape does on any machine. Needs no downloads.
"""

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx import memory_shape, step_trace
from adapters.mlx.assembly import context_length_of
from adapters.mlx.caches.layout import layout_of, new_caches
from adapters.mlx.device import describe_device
from adapters.mlx.graph_trace import trace_chunk
from adapters.mlx.planned_network import network_of
from adapters.mlx.trace_memory import TraceMemory
from application.services.token_side.model_loads import whole
from bench.results import Results
from bench.shapes import SHAPES


def start(network: Any, config: dict[str, Any], memory_dir: Path) -> tuple[float, float, int]:
    """Seconds of wall and of CPU time, and chunks traced."""
    memory_shape._traced_steps.clear()
    ends: list[int] = []

    def counted(*arguments: Any) -> Any:
        ends.append(arguments[-1])
        return trace_chunk(*arguments)

    step_trace.trace_chunk = counted
    layout = layout_of(new_caches(network))
    with ThreadPoolExecutor(1) as disk:
        begun_s, cpu_s = time.perf_counter(), time.thread_time()
        traces = TraceMemory(memory_dir, disk)
        whole(memory_shape.shape_of_network(network, layout, config, context_length_of(config), traces))
        return time.perf_counter() - begun_s, time.thread_time() - cpu_s, len(ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3-4b,llama-8b")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "traces", mlx_device=describe_device())
    for name in options.shapes.split(","):
        config = SHAPES[name][0]
        network = network_of(config, "bfloat16")
        found: dict[str, list[tuple[float, float, int]]] = {"traced": [], "remembered": []}
        with tempfile.TemporaryDirectory() as root:
            start(network, config, Path(root, "kept"))
            for turn in range(options.turns):
                found["traced"].append(start(network, config, Path(root, str(turn))))
                found["remembered"].append(start(network, config, Path(root, "kept")))
        for way, starts in found.items():
            wall_s, cpu_s, num_traced = map(statistics.median, zip(*starts, strict=True))
            results.add("start", shape=name, way=way, wall_s=wall_s, cpu_s=cpu_s, traced=num_traced)
            print(
                f"{name:<16} {way:<10} {wall_s:7.3f} s, {cpu_s:7.3f} s of CPU, {num_traced} chunks traced", flush=True
            )
    mx.clear_streams()


if __name__ == "__main__":
    main()
