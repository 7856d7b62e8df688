"""What a row's settings cost the other rows of a decode group: sampling alone, without a model.

    python -m bench.sampling [--rows 8] [--vocab 152000] [--repeats 20] [--json FILE]

The baseline is the same number of greedy rows in the same run. Each mixture is told as a multiple of it, and of its odd
row alone: a row should cost its neighbours nothing, so the mixture what both cost apart. Lower quartiles.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from adapters.system.blas import load_blas

load_blas()

import mlx.core as mx  # noqa: E402 - a BLAS only counts when it is there before MLX

from adapters.mlx.arrays import evaluate  # noqa: E402
from adapters.mlx.sampler import GroupSampler  # noqa: E402
from adapters.mlx.sampler_row import SamplerRow  # noqa: E402
from application.ports.compute import DecodeStart  # noqa: E402
from domain.sampling import SamplingParams  # noqa: E402

GREEDY = SamplingParams(temperature=0)
ODD_ROWS = {
    "temperature": SamplingParams(temperature=1),
    "min_p": SamplingParams(temperature=1, min_p=0.05),
    "top_k 40": SamplingParams(temperature=1, top_k=40),
    "top_p 0.9": SamplingParams(temperature=1, top_p=0.9),
    "penalties": SamplingParams(temperature=0, frequency_penalty=1),
    "logprobs": SamplingParams(temperature=0, num_logprobs=5),
}


def step_s(settings: Sequence[SamplingParams], logits: mx.array, repeats: int) -> float:
    """Seconds of one sampling step for rows of these settings."""
    vocab_size = logits.shape[-1]
    rows = [SamplerRow(DecodeStart((), one, seed=seed), vocab_size) for seed, one in enumerate(settings)]
    sampler = GroupSampler(rows)
    taken: list[float] = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        sampled = sampler.sample(logits[: len(rows)])
        evaluate([*sampled.arrays(), *sampler.history()])
        taken.append(time.perf_counter() - started)
    return statistics.quantiles(taken[1:], n=4)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=152_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logits = mx.random.normal((options.rows, options.vocab), key=mx.random.key(1)) * 3
    evaluate([logits])
    greedy = step_s([GREEDY] * options.rows, logits, options.repeats)
    print(f"{options.rows} greedy rows: {greedy * 1e3:.2f} ms")
    results: dict[str, dict[str, float]] = {}
    for name, odd in ODD_ROWS.items():
        alone = step_s([odd], logits, options.repeats)
        mixed = step_s([GREEDY] * (options.rows - 1) + [odd], logits, options.repeats)
        results[name] = {"over greedy": mixed / greedy, "over both apart": mixed / (alone + greedy)}
        told = ", ".join(f"{value:.2f} {what}" for what, value in results[name].items())
        print(f"one of them with {name}: {mixed * 1e3:.2f} ms, {told}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
