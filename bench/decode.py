"""Decode throughput of the batch loop against a bare loop on the same model, in one run.

    python -m bench.decode [--model DIR] [--rows 1,4,8] [--prompt 256] [--tokens 64] [--repeats 6] [--json FILE]

The baseline is the least that batched greedy decoding can be: the network, its batch caches (plain ones for one row),
one argmax a step, and the next step queued before the last one is read. Both sides take turns, and the rate is that of
the lower quartile of all step times: whatever else the machine does only ever slows a step down.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from adapters.system.blas import load_blas
from tests.support.engines.finish_load import finish_load

load_blas()

import mlx.core as mx  # noqa: E402 - a BLAS only counts when it is there before MLX

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder  # noqa: E402
from adapters.mlx.caches.leaves import live_arrays, new_caches  # noqa: E402
from adapters.mlx.caches.rows import merge  # noqa: E402
from adapters.mlx.loading.assembly import assemble  # noqa: E402
from adapters.mlx.loading.network import load_folder  # noqa: E402
from adapters.mlx.loading.weights_digest import Digests  # noqa: E402
from adapters.mlx.model import MlxModel  # noqa: E402
from application.ports.compute import DecodeStart  # noqa: E402
from domain.ids import ModelId, SequenceId  # noqa: E402
from domain.models.model_card import LoadOptions  # noqa: E402
from domain.request.sampling import SamplingParams  # noqa: E402

CHUNK = 512


def prompt_of(length: int, salt: int, vocab_size: int) -> list[int]:
    return [(index * 7919 + salt * 104_729 + 11) % vocab_size for index in range(length)]


def bare_loop(network: Any, prompts: list[list[int]], num_tokens: int) -> list[float]:
    """Seconds of each step."""
    rows = []
    for prompt in prompts:
        caches = new_caches(network)
        for start in range(0, len(prompt) - 1, CHUNK):
            network(mx.array([prompt[start : min(start + CHUNK, len(prompt) - 1)]]), cache=caches)
            mx.eval(live_arrays(caches))
        rows.append(caches)
    batch = rows[0] if len(rows) == 1 else merge(rows)
    tokens = mx.argmax(network(mx.array([prompt[-1:] for prompt in prompts]), cache=batch)[:, -1], axis=-1)
    mx.async_eval(tokens)
    clock = [time.perf_counter()]
    for _ in range(num_tokens):
        following = mx.argmax(network(tokens[:, None], cache=batch)[:, -1], axis=-1)
        mx.async_eval(following)
        tokens.tolist()
        tokens = following
        clock.append(time.perf_counter())
    mx.eval(tokens)
    return durations(clock)


def batch_loop(model: MlxModel, prompts: list[list[int]], num_tokens: int) -> list[float]:
    """Seconds of each step through the port; the first two, until the rows have joined, are left out."""
    ids = [SequenceId(index) for index in range(len(prompts))]
    for id, prompt in zip(ids, prompts, strict=True):
        model.open(id)
        for start in range(0, len(prompt) - 1, CHUNK):
            model.prefill(id, prompt[start : min(start + CHUNK, len(prompt) - 1)])
        model.start_decode(id, prompt[-1:], DecodeStart(tuple(prompt), SamplingParams(temperature=0), seed=1))
    model.decode(ids)
    model.decode(ids)
    clock = [time.perf_counter()]
    for _ in range(num_tokens):
        model.decode(ids)
        clock.append(time.perf_counter())
    model.close(ids)
    return durations(clock)


def durations(clock: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(clock)]


def compare(folder: Path, rows: list[int], prompt: int, tokens: int, repeats: int) -> list[dict[str, Any]]:
    network, facts = finish_load(load_folder(folder, LoadOptions(), Digests(b"")))
    model = finish_load(assemble(network, ModelId(folder.name), facts))
    results: list[dict[str, Any]] = []
    for count in rows:
        prompts = [prompt_of(prompt - 7 * index, index, model.description.vocab_size) for index in range(count)]
        bare_s: list[float] = []
        own_s: list[float] = []
        for _ in range(repeats):
            bare_s += bare_loop(network, prompts, tokens)
            own_s += batch_loop(model, prompts, tokens)
        bare, own = (count / statistics.quantiles(steps, n=4)[0] for steps in (bare_s, own_s))
        results.append({"model": folder.name, "rows": count, "bare": bare, "cairn": own, "ratio": own / bare})
        print(f"{folder.name:20s} {count:3d} rows  bare {bare:8.1f}  cairn {own:8.1f} tokens/s  ratio {own / bare:.3f}")
    return results


def bare_rates(folder: Path, rows: Sequence[int], prompt: int, tokens: int, repeats: int = 3) -> dict[int, float]:
    """Tokens a second of the bare loop alone, by number of rows: the median step of each."""
    network, facts = finish_load(load_folder(folder, LoadOptions(), Digests(b"")))
    vocab_size = finish_load(assemble(network, ModelId(folder.name), facts)).description.vocab_size
    rates: dict[int, float] = {}
    for count in rows:
        prompts = [prompt_of(prompt, index, vocab_size) for index in range(count)]
        steps = [step for _ in range(repeats) for step in bare_loop(network, prompts, tokens)]
        rates[count] = count / statistics.median(steps)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", help="model folder (default: both embedded models)")
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--prompt", type=int, default=256, help="prompt tokens of the longest row")
    parser.add_argument("--tokens", type=int, default=64, help="timed tokens a row")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folders = given.model or [folder for id in EMBEDDED_IDS if (folder := embedded_folder(id)) is not None]
    rows = [int(count) for count in given.rows.split(",")]
    results = [one for folder in folders for one in compare(folder, rows, given.prompt, given.tokens, given.repeats)]
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
