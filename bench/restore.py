"""Restoring against recomputing, and what capture costs, at real shapes: for machines with a GPU.

    python -m bench.restore SHAPE[,SHAPE...] [--tokens 8192,32768] [--batches 1,8,32] [--json FILE]

Ratios: restore rate to prefill rate of the same run; capture time to prefill time; decode to mlx-lm's BatchGenerator.
"""

import argparse
import gc
import json
import random
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.device import describe_device
from adapters.mlx.file_limit import mlx_lm_module
from adapters.mlx.model import MlxModel
from application.ports.compute import DecodeStart
from bench.shapes import build_shape
from domain.ids import ModelId, SequenceId
from domain.payload import GroupPayloads, HostPayload
from domain.sampling import SamplingParams

BLOCK = 256
CHUNK = 2048


def timed(work: Any) -> tuple[float, Any]:
    mx.synchronize()
    start = time.perf_counter()
    result = work()
    mx.synchronize()
    return time.perf_counter() - start, result


def prefill(model: MlxModel, id: SequenceId, tokens: list[int], captures: bool) -> dict[str, Any]:
    """Prefill in chunks, capturing each chunk's blocks if wanted."""
    model.open(id)
    compute_s, capture_s, blocks = 0.0, 0.0, []
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        compute_s += timed(lambda chunk=chunk: model.prefill(id, chunk))[0]
        if captures:
            spans = [(at, at + BLOCK) for at in range(start, start + len(chunk), BLOCK)]
            spent, found = timed(lambda spans=spans: model.capture_blocks(id, spans))
            capture_s, blocks = capture_s + spent, [*blocks, *found]
    snapshot: GroupPayloads = {}
    snapshot_s = 0.0
    if captures and model.description.layout.needs_snapshots:
        snapshot_s, snapshot = timed(lambda: model.capture_snapshot(id, len(tokens)))
    return {"s": compute_s, "capture_s": capture_s, "snapshot_s": snapshot_s, "blocks": blocks, "snapshot": snapshot}


def to_host(groups: GroupPayloads) -> GroupPayloads:
    return {
        index: HostPayload(payload.specs, tuple(memoryview(bytes(view)) for view in payload.buffers()))
        for index, payload in groups.items()
    }


def reuse_rates(model: MlxModel, tokens: list[int]) -> dict[str, Any]:
    """Prefill, capture, export and restore of one context."""
    done = prefill(model, SequenceId(1), tokens, captures=True)
    size = sum(payload.size_bytes for groups in [*done["blocks"], done["snapshot"]] for payload in groups.values())
    model.close([SequenceId(1)])
    model.open(SequenceId(2))

    def restore(blocks: list[GroupPayloads], snapshot: GroupPayloads) -> float:
        return timed(lambda: model.restore(SequenceId(2), len(tokens), blocks, snapshot))[0]

    restore(done["blocks"], done["snapshot"])
    device_s = min(restore(done["blocks"], done["snapshot"]) for _ in range(3))
    export_s, host = timed(lambda: [to_host(groups) for groups in done["blocks"]])
    host_snapshot = to_host(done["snapshot"])
    host_s = min(restore(host, host_snapshot) for _ in range(3))
    model.close([SequenceId(2)])
    count = len(tokens)
    return {
        "tokens": count,
        "state_bytes": size,
        "prefill_tok_s": count / done["s"],
        "capture_share": done["capture_s"] / done["s"],
        "snapshot_ms": done["snapshot_s"] * 1e3,
        "export_GB_s": size / export_s / 1e9,
        "restore_hot_tok_s": count / device_s,
        "restore_hot_GB_s": size / device_s / 1e9,
        "restore_host_tok_s": count / host_s,
        "restore_host_GB_s": size / host_s / 1e9,
        "hot_over_prefill": done["s"] / device_s,
        "host_over_prefill": done["s"] / host_s,
    }


def decode_rate(model: MlxModel, rows: int, tokens: list[int], steps: int) -> float:
    ids = [SequenceId(100 + row) for row in range(rows)]
    for id in ids:
        prefill(model, id, tokens[id : id + 512], captures=False)
        model.start_decode(id, DecodeStart(7, (7,), SamplingParams(temperature=0), 1))
    for _ in range(6):
        model.decode(ids)
    spent, _ = timed(lambda: [model.decode(ids) for _ in range(steps)])
    model.close(ids)
    return rows * steps / spent


def generator_rate(network: Any, rows: int, tokens: list[int], steps: int) -> float:
    """mlx-lm's own batch loop on the same prompts."""
    generator = mlx_lm_module("generate").BatchGenerator(
        network, max_tokens=steps + 16, completion_batch_size=rows, prefill_batch_size=min(rows, 8)
    )
    generator.insert([tokens[row : row + 512] for row in range(rows)])
    full: list[float] = []
    while len(full) < steps:
        start = time.perf_counter()
        answers = generator.next()[1]
        if len(answers) == rows:
            full.append(time.perf_counter() - start)
        elif full:
            break
    generator.close()
    full = full[4:]
    return rows * len(full) / sum(full)


def measure(shape: str, sizes: list[int], batches: list[int], steps: int) -> dict[str, Any]:
    network, config = build_shape(shape)
    model = assemble(network, ModelId(shape), ModelFacts(config))
    numbers = random.Random(0)
    tokens = [numbers.randrange(model.description.vocab_size) for _ in range(max(*sizes, 2048))]
    prefill(model, SequenceId(0), tokens[: 2 * CHUNK], captures=True)  # kernels are compiled and chosen here
    model.close([SequenceId(0)])
    result: dict[str, Any] = {"shape": shape, "device": describe_device(), "reuse": [], "decode": {}}
    print(f"{shape}: {model.description.weight_bytes / 1e9:.2f} GB, {model.description.decode_mode.value}", flush=True)
    for size in sizes:
        rates = reuse_rates(model, tokens[:size])
        result["reuse"].append(rates)
        print("  " + ", ".join(f"{name} {value:.4g}" for name, value in rates.items()), flush=True)
        gc.collect()
        mx.clear_cache()
    for rows in batches:
        ours = decode_rate(model, rows, tokens, steps)
        theirs = generator_rate(network, rows, tokens, steps)
        result["decode"][rows] = {"tok_s": ours, "batch_generator_tok_s": theirs}
        print(f"  decode {rows}: {ours:.1f} tok/s, BatchGenerator {theirs:.1f}, ratio {ours / theirs:.3f}", flush=True)
    model.release()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes")
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [int(size) for size in options.tokens.split(",")]
    batches = [int(rows) for rows in options.batches.split(",")]
    results = [measure(shape, sizes, batches, options.steps) for shape in options.shapes.split(",")]
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
