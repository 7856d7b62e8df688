"""Restoring against recomputing, and what capture costs, at real shapes: for machines with a GPU.

    python -m bench.restore SHAPE[,SHAPE...] [--tokens 8192,32768] [--batches 1,8,32] [--seconds 240]
        [--json FILE]

Ratios: restore rate to prefill rate of the same run; prefill with capture to prefill without; prefill to mlx-lm's own
loop over chunks; decode to mlx-lm's BatchGenerator, by the lower quartile of the steps, both sides taking turns.
State that is restored is compared with what was captured, bit for bit in every eighth block. No size and no batch is
begun after `--seconds`.
`--plug-in MODULE` imports MODULE and calls its `patch()` first, for a kernel that the installed mlx-lm lacks.
"""

import argparse
import gc
import importlib
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.caches.layout import new_caches
from adapters.mlx.cuda_link import find_link
from adapters.mlx.device import describe_device
from adapters.mlx.file_limit import mlx_lm_module
from adapters.mlx.model import MlxModel
from adapters.mlx.upload import upload
from adapters.zstd.codec import ZstdStateCodec
from application.ports.compute import DecodeStart
from application.services.prefix.fetch import RECORDS_PER_READ
from application.services.token_side.model_loads import whole
from bench.results import Results
from bench.shapes import build_shape
from domain.ids import ModelId, SequenceId
from domain.payload import GroupPayloads, HostPayload, SplitPayload
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
    """Prefill in chunks, capturing each chunk's blocks if wanted; seconds until all of it is computed."""
    model.open(id)

    def run() -> list[GroupPayloads]:
        blocks: list[GroupPayloads] = []
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            model.prefill(id, chunk)
            if captures:
                blocks += model.capture_blocks(id, [(at, at + BLOCK) for at in range(start, start + len(chunk), BLOCK)])
        return blocks

    spent_s, blocks = timed(run)
    snapshot: GroupPayloads = {}
    snapshot_s = 0.0
    if captures and model.description.layout.needs_snapshots:
        snapshot_s, snapshot = timed(lambda: model.capture_snapshot(id, len(tokens)))
    return {"s": spent_s, "snapshot_s": snapshot_s, "blocks": blocks, "snapshot": snapshot}


def plain_prefill(network: Any, tokens: list[int]) -> float:
    """Seconds of the loop in mlx-lm's generate_step: a chunk, evaluate, return unused memory."""
    caches = new_caches(network)

    def run() -> None:
        for start in range(0, len(tokens), CHUNK):
            network(mx.array([tokens[start : start + CHUNK]]), cache=caches)
            mx.eval([cache.state for cache in caches])
            mx.clear_cache()

    return timed(run)[0]


def prefill_rates(network: Any, model: MlxModel, tokens: list[int], turns: int = 3) -> dict[str, float]:
    """Median seconds without capture, with it, and of mlx-lm's loop, taking turns in another order each time."""

    def through_model(captures: bool) -> float:
        spent_s = prefill(model, SequenceId(1), tokens, captures)["s"]
        model.close([SequenceId(1)])
        return spent_s

    sides: dict[str, Callable[[], float]] = {
        "plain": lambda: plain_prefill(network, tokens),
        "own": lambda: through_model(captures=False),
        "captured": lambda: through_model(captures=True),
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = [*sides]
    for turn in range(turns):
        for name in names[turn % 3 :] + names[: turn % 3]:
            found[name].append(sides[name]())
            gc.collect()
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def read_all(payloads: list[GroupPayloads]) -> None:
    """Every byte once, into memory that is there already, as an encoder would."""
    scratch = np.zeros(max(payload.size_bytes for groups in payloads for payload in groups.values()), np.uint8)
    for groups in payloads:
        for payload in groups.values():
            for view in payload.buffers():
                scratch[: len(view)] = np.frombuffer(view, np.uint8)


def to_host(groups: GroupPayloads) -> GroupPayloads:
    return {
        index: HostPayload(payload.specs, tuple(memoryview(bytes(view)) for view in payload.buffers()))
        for index, payload in groups.items()
    }


def is_equal(model: MlxModel, id: SequenceId, blocks: list[GroupPayloads]) -> bool:
    """Whether the state holds these blocks bit for bit: every eighth, and the last."""
    for number in sorted({*range(0, len(blocks), 8), len(blocks) - 1}):
        found = model.capture_blocks(id, [(number * BLOCK, (number + 1) * BLOCK)])[0]
        for index, payload in blocks[number].items():
            if [bytes(view) for view in payload.buffers()] != [bytes(view) for view in found[index].buffers()]:
                return False
    return True


def reuse_rates(network: Any, model: MlxModel, tokens: list[int]) -> dict[str, Any]:
    """Prefill, capture, export and restore of one context."""
    count = len(tokens)
    seconds = prefill_rates(network, model, tokens)
    done = prefill(model, SequenceId(1), tokens, captures=True)
    snapshot_s = min([done["snapshot_s"], *(timed(lambda: snapshot_of(model, count))[0] for _ in range(3))])
    payloads = [*done["blocks"], done["snapshot"]]
    size = sum(payload.size_bytes for groups in payloads for payload in groups.values())
    model.close([SequenceId(1)])
    model.open(SequenceId(2))

    def restore(blocks: list[GroupPayloads], snapshot: GroupPayloads) -> float:
        return timed(lambda: model.restore(SequenceId(2), count, blocks, snapshot))[0]

    def hot() -> float:
        restore(done["blocks"], done["snapshot"])
        return statistics.median(restore(done["blocks"], done["snapshot"]) for _ in range(3))

    hot_s = hot()
    export_s = timed(lambda: read_all(payloads))[0]
    exported_s = hot()
    host, host_snapshot = [to_host(groups) for groups in done["blocks"]], to_host(done["snapshot"])
    restore(host, host_snapshot)
    host_s = statistics.median(restore(host, host_snapshot) for _ in range(3))
    host_is_equal = is_equal(model, SequenceId(2), done["blocks"])
    host.clear()
    uploaded = upload_rates(model, done["blocks"], done["snapshot"], count)
    model.close([SequenceId(2)])
    return uploaded | {
        "tokens": count,
        "state_bytes": size,
        "prefill_tok_s": count / seconds["own"],
        "prefill_over_mlx_lm": seconds["plain"] / seconds["own"],
        "capture_share": seconds["captured"] / seconds["own"] - 1,
        "snapshot_ms": snapshot_s * 1e3,
        "export_GB_s": size / export_s / 1e9,
        "restore_hot_tok_s": count / hot_s,
        "restore_hot_after_export_tok_s": count / exported_s,
        "restore_host_tok_s": count / host_s,
        "restore_host_GB_s": size / host_s / 1e9,
        "hot_over_prefill": seconds["own"] / hot_s,
        "host_over_prefill": seconds["own"] / host_s,
        "planes_over_prefill": seconds["own"] / (uploaded["upload_s"] + uploaded["restore_uploaded_ms"] / 1e3),
        "host_is_equal": host_is_equal,
    }


def upload_rates(model: MlxModel, blocks: list[GroupPayloads], snapshot: GroupPayloads, count: int) -> dict[str, Any]:
    """State as the store gives it to a device of its own, in planes, uploaded read by read; then restored from there.
    What a step of other streams waits for is the longest of either. Medians of three. `decode_s`: of one thread."""
    codec = ZstdStateCodec(keeps_planes=True)
    frames = [{index: codec.encode(payload) for index, payload in groups.items()} for groups in (*blocks, snapshot)]
    runs: list[dict[str, float]] = []
    for _ in range(3):
        decode_s = 0.0
        there: list[GroupPayloads] = []
        kinds: list[bool] = []
        pauses: list[float] = []
        for at in range(0, len(frames), RECORDS_PER_READ):
            start = time.perf_counter()
            read = [{index: codec.decode(one) for index, one in f.items()} for f in frames[at : at + RECORDS_PER_READ]]
            decode_s += time.perf_counter() - start
            flat = [payload for groups in read for payload in groups.values()]
            kinds += [isinstance(payload, SplitPayload) for payload in flat]
            spent_s, moved = timed(lambda flat=flat: upload(flat))
            rest = iter(moved)
            there += [{index: next(rest) for index in groups} for groups in read]
            pauses.append(spent_s)
        restore_s, _ = timed(lambda there=there: model.restore(SequenceId(2), count, there[:-1], there[-1]))
        runs.append(
            {
                "decode_s": decode_s,
                "upload_s": sum(pauses),
                "upload_longest_ms": max(pauses) * 1e3,
                "restore_uploaded_ms": restore_s * 1e3,
            }
        )
    told = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    equal = is_equal(model, SequenceId(2), blocks)
    return told | {"planes_are_equal": equal, "share_in_planes": sum(kinds) / len(kinds)}


def snapshot_of(model: MlxModel, position: int) -> GroupPayloads:
    return model.capture_snapshot(SequenceId(1), position) if model.description.layout.needs_snapshots else {}


def decode_steps(model: MlxModel, rows: int, tokens: list[int], steps: int) -> list[float]:
    """Seconds of each step."""
    ids = [SequenceId(100 + row) for row in range(rows)]
    for row, id in enumerate(ids):
        prefill(model, id, tokens[row : row + 511], captures=False)
        model.start_decode(id, [tokens[row + 511]], DecodeStart((7,), SamplingParams(temperature=0), seed=1))
    for _ in range(4):
        model.decode(ids)
    found: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        model.decode(ids)
        found.append(time.perf_counter() - start)
    model.close(ids)
    return found


def generator_steps(network: Any, rows: int, tokens: list[int], steps: int) -> list[float]:
    """mlx-lm's own batch loop on the same prompts."""
    generator = mlx_lm_module("generate").BatchGenerator(
        network, max_tokens=steps + 16, completion_batch_size=rows, prefill_batch_size=min(rows, 8)
    )
    generator.insert([tokens[row : row + 512] for row in range(rows)])
    full: list[float] = []
    while len(full) < steps + 4:
        start = time.perf_counter()
        answers = generator.next()[1]
        if len(answers) == rows:
            full.append(time.perf_counter() - start)
        elif full:
            break
    generator.close()
    return full[4:]


def decode_rates(network: Any, model: MlxModel, rows: int, tokens: list[int], steps: int) -> dict[str, float]:
    """Tokens a second by the lower quartile of both sides' steps, after a round that compiles and chooses kernels."""
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(6):
        own, other = decode_steps(model, rows, tokens, steps), generator_steps(network, rows, tokens, steps)
        if turn:
            ours, theirs = [*ours, *own], [*theirs, *other]
    rates = [rows / statistics.quantiles(found, n=4)[0] for found in (ours, theirs)]
    return {"tok_s": rates[0], "batch_generator_tok_s": rates[1], "ratio": rates[0] / rates[1]}


def measure(shape: str, sizes: list[int], batches: list[int], steps: int, seconds: float, results: Results) -> None:
    begun_s = time.monotonic()
    network, config = build_shape(shape)
    built_s = time.monotonic() - begun_s
    model = whole(assemble(network, ModelId(shape), ModelFacts(config)))
    numbers = random.Random(0)
    tokens = [numbers.randrange(model.description.vocab_size) for _ in range(max(*sizes, 2048))]
    prefill(model, SequenceId(0), tokens[: 2 * CHUNK], captures=True)  # kernels are compiled and chosen here
    model.close([SequenceId(0)])
    facts = {"dtype": model.description.dtype, "weight_bytes": model.description.weight_bytes, "built_s": built_s}
    results.add("model", shape=shape, cuda_link=find_link() is not None, **facts)
    mode = model.description.decode_mode.value
    print(f"{shape}: {facts['weight_bytes'] / 1e9:.2f} GB, built in {built_s:.1f} s, {mode}", flush=True)
    for size in sizes:
        if time.monotonic() > begun_s + seconds:
            print(f"  {size} tokens left out: the time is over", flush=True)
            continue
        rates = reuse_rates(network, model, tokens[:size])
        results.add("reuse", shape=shape, **rates)
        print("  " + ", ".join(f"{name} {value:.4g}" for name, value in rates.items()), flush=True)
        if not (rates["host_is_equal"] and rates["planes_are_equal"]):
            raise SystemExit("restored state differs from what was captured")
        gc.collect()
        mx.clear_cache()
    for rows in batches:
        if time.monotonic() > begun_s + seconds:
            print(f"  {rows} rows left out: the time is over", flush=True)
            continue
        rate = decode_rates(network, model, rows, tokens, steps)
        results.add("decode", shape=shape, rows=rows, **rate)
        print(f"  decode {rows}: " + ", ".join(f"{name} {value:.4g}" for name, value in rate.items()), flush=True)
    model.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes")
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=240, help="for each shape")
    parser.add_argument("--plug-in", metavar="MODULE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.plug_in:
        importlib.import_module(options.plug_in).patch()
    results = Results(options.json, "restore", mlx_device=describe_device(), plug_in=options.plug_in)
    sizes = [int(size) for size in options.tokens.split(",")]
    batches = [int(rows) for rows in options.batches.split(",") if rows]
    for shape in options.shapes.split(","):
        measure(shape, sizes, batches, options.steps, options.seconds, results)
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
