"""What a row's joining and leaving cost a running batch, and whether many streams of one long prompt fit.

    python -m bench.joins [--shape llama-8b] [--tokens 8000] [--rows 1,8,31] [--streams 32] [--steps 8]
        [--seconds 240] [--json FILE]

First the caches alone, of the shape's size with random contents: time and bytes of a row that joins a batch of so many,
in place and where the buffers must grow for it, and of a row that leaves, each beside mlx-lm's own batch caches. Bytes
are the most that was held at once beyond what was held before, the newcomer's own included before. Then the model with
random weights: one prompt, half of the streams forked from it and half restored from its captured blocks, all decoded
together; the most that was held, beside what the ledger's sums say of it before. What is not begun within `--seconds`
is left out, and told. Without --shape it is Llama-3-8B's on an accelerator and a tiny one on a CPU.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.caches.layout import Caches, live_arrays
from adapters.mlx.caches.library import lib
from adapters.mlx.caches.rows import append_rows, keep_rows
from adapters.mlx.device import describe_device, on_cpu
from application.ports.compute import DecodeStart
from application.services.token_side.model_loads import whole
from bench.decode import prompt_of
from bench.results import Results
from bench.shapes import SHAPES, build_shape
from domain.decode_groups import rows_capacity, rows_in_place
from domain.ids import ModelId, SequenceId
from domain.payload import GroupPayloads
from domain.sampling import SamplingParams

CHUNK = 2048
BLOCK = 256
REPEATS = 3
MIB = 1 << 20


def measured(work: Callable[[], object]) -> dict[str, float]:
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    try:
        work()
        mx.synchronize()
    except Exception as error:
        return {"error": str(error)}  # type: ignore[dict-item]
    return {"ms": (time.perf_counter() - start) * 1e3, "peak_mib": (mx.get_peak_memory() - before) / MIB}


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    return min(runs, key=lambda run: run.get("ms", float("inf")))


class Rows:
    """Plain caches of a shape, filled at random: as long as they are read and not understood, they cost the same."""

    def __init__(self, config: dict[str, Any], num_tokens: int) -> None:
        self._heads = config["num_key_value_heads"]
        self._dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self._layers = config["num_hidden_layers"]
        self._tokens = num_tokens

    def new(self) -> Caches:
        caches = [lib.KVCache() for _ in range(self._layers)]
        for cache in caches:
            shape = (1, self._heads, self._tokens, self._dim)
            cache.update_and_fetch(mx.random.normal(shape, mx.bfloat16), mx.random.normal(shape, mx.bfloat16))
            mx.eval(cache.keys, cache.values)
        return caches

    def batch(self, num_rows: int, capacity: int) -> Caches:
        batch = self.new()
        for count in range(1, num_rows):
            append_rows(batch, count, [self.new()], capacity)
        return batch


def in_place(rows: Rows, count: int) -> dict[str, float]:
    batch, row = rows.batch(count, count + 1), rows.new()
    return measured(lambda: append_rows(batch, count, [row], count + 1))


def growing(rows: Rows, count: int) -> dict[str, float]:
    batch, row = rows.batch(count, count), rows.new()
    return measured(lambda: append_rows(batch, count, [row], rows_capacity(count + 1)))


def leaving(rows: Rows, count: int) -> dict[str, float]:
    batch = rows.batch(count + 1, count + 1)
    return measured(lambda: keep_rows(batch, rows_in_place(count + 1, range(1, count + 1))))


def mlx_lm_joining(rows: Rows, count: int) -> dict[str, float]:
    plain, row = [rows.new() for _ in range(count)], rows.new()
    batch: list[Any] = []
    for _ in range(len(row)):
        batch.append(lib.BatchKVCache.merge([caches.pop(0) for caches in plain]))
        mx.eval(batch[-1].keys, batch[-1].values)

    def join() -> None:
        for mine, newcomer in zip(batch, row, strict=True):
            mine.extend(newcomer.merge([newcomer]))
        mx.eval([array for cache in batch for array in (cache.keys, cache.values)])

    return measured(join)


def compare_joins(
    config: dict[str, Any], num_tokens: int, counts: list[int], deadline_s: float, results: Results
) -> None:
    rows = Rows(config, num_tokens)
    row_mib = sum(array.nbytes for array in live_arrays(rows.new())) / MIB
    print(f"a row: {row_mib:.1f} MiB, a layer of it {row_mib / config['num_hidden_layers']:.2f} MiB")
    for count in counts:
        for work in (in_place, growing, leaving, mlx_lm_joining):
            if time.monotonic() > deadline_s:
                print(f"{count:3d} rows  {work.__name__:15s} left out: the time is over", flush=True)
                continue
            mx.clear_cache()
            result = best([work(rows, count) for _ in range(REPEATS)])
            results.add(work.__name__, rows=count, **result)
            told = result.get("error") or f"{result['ms']:9.1f} ms  {result['peak_mib']:10.1f} MiB at most"
            print(f"{count:3d} rows  {work.__name__:15s} {told}", flush=True)


def many_streams(shape: str, num_tokens: int, num_streams: int, num_steps: int) -> dict[str, Any]:
    network, config = build_shape(shape)
    model = whole(assemble(network, ModelId(shape), ModelFacts(config)))
    weights = mx.get_active_memory()
    prompt = prompt_of(num_tokens, 1, model.description.vocab_size)
    ids = [SequenceId(index) for index in range(num_streams)]
    clock = time.perf_counter()
    model.open(ids[0])
    blocks: list[GroupPayloads] = []
    for start in range(0, num_tokens, CHUNK):
        end = min(start + CHUNK, num_tokens)
        model.prefill(ids[0], prompt[start:end])
        spans = [(at, at + BLOCK) for at in range(start, end - BLOCK + 1, BLOCK)]
        blocks += model.capture_blocks(ids[0], spans)
    tail = model.capture_snapshot(ids[0], len(blocks) * BLOCK)
    mx.synchronize()
    prefilled = time.perf_counter()
    num_forked = num_streams // 2
    mx.reset_peak_memory()
    model.fork(ids[0], ids[1:num_forked])
    for id in ids[num_forked:]:
        model.open(id)
        model.restore(id, num_tokens, blocks, tail)
    for index, id in enumerate(ids):
        model.start_decode(id, [index], DecodeStart((*prompt, index), SamplingParams(temperature=0), seed=1))
    mx.synchronize()
    start_peak = mx.get_peak_memory()
    mx.reset_peak_memory()
    started = time.perf_counter()
    times: list[float] = []
    for _ in range(num_steps):
        before = time.perf_counter()
        errors = [result.error for result in model.decode(ids) if result.error is not None]
        times.append((time.perf_counter() - before) * 1e3)
        if errors:
            raise RuntimeError(f"{len(errors)} of {num_streams} failed: {errors[0]}")
    held = mx.get_active_memory() - weights
    alone = num_streams * model.description.memory.state_bytes(num_tokens + num_steps)
    memory, peak = model.description.memory, mx.get_peak_memory()
    hot = sum(payload.size_bytes for groups in [*blocks, tail] for payload in groups.values())
    ledger = memory.weight_bytes + alone + hot + memory.decode_bytes(num_streams, num_tokens + num_steps)
    result = {
        "ledger_mib": ledger / MIB, "peak_over_ledger": max(peak, start_peak) / ledger, "hot_mib": hot / MIB,
        "shape": shape, "streams": num_streams, "tokens": num_tokens, "weights_mib": weights / MIB,
        "states_alone_mib": alone / MIB, "held_mib": held / MIB, "start_peak_mib": start_peak / MIB,
        "decode_peak_mib": peak / MIB,
        "prefill_s": prefilled - clock, "start_s": started - prefilled,
        "first_steps_ms": times[:3], "step_ms": statistics.median(times[3:] or times),
    }  # fmt: skip
    model.close(ids)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[*SHAPES])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rows", default="1,8,31")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results, deadline_s = Results(given.json, "joins", mlx_device=describe_device()), time.monotonic() + given.seconds
    shape = given.shape or ("tiny" if on_cpu() else "llama-8b")
    num_tokens = given.tokens or (512 if on_cpu() else 8000)
    counts = [int(count) for count in given.rows.split(",") if count]
    compare_joins(SHAPES[shape][0], num_tokens, counts, deadline_s, results)
    mx.clear_cache()
    if time.monotonic() < deadline_s:
        streams = many_streams(shape, num_tokens, given.streams, given.steps)
        results.add("streams", **streams)
        print(json.dumps(streams, indent=1), flush=True)
    else:
        print(f"{given.streams} streams left out: the time is over", flush=True)
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
