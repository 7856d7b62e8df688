"""The next turn of a long conversation: its state taken over, or put together from the blocks in memory.

    python -m bench.next_turn [--shape qwen3-4b | --model DIR] [--tokens 72000] [--new 200] [--rounds 5]
        [--ways "taken over" restored] [--seconds 60] [--json FILE] [--asked]

Both ways take turns on one model, of random weights or from a folder as a server loads it: the state of `--tokens`
tokens is put in place, and `--new` ones are computed on it. Figures: milliseconds until the state is in place
(`placed`) and until the new tokens are computed (`turn`), as a ratio to computing them in that turn (`computing`), and
bytes: the most that was held beyond what was held before (`peak`, where computing that takes as much as the state tells
of buffers copied to grow), and what was copied out of blocks (`copied`). Medians of the rounds, without the first. The
adapter alone: what HTTP, tokenizing and the queue add is `bench.long_context`'s, which runs this for its baseline.
Without --shape and --tokens it is Qwen3-4B's at 72,000 on an accelerator and a tiny one at 4,000 on a CPU.

With --asked it prints a line once the state is there, and then takes a turn over for every line that it reads, and
prints its figures: so another process takes turns with it (`bench.computing_alone`).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import mlx.core as mx

from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.device import describe_device, on_cpu
from bench.decode import prompt_of
from bench.results import Results
from bench.shapes import SHAPES, build_shape
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.record import GroupPayloads
from tests.support.engines.finish_load import finish_load

BLOCK, CHUNK = 256, 2048
MIB = 1 << 20
TAKEN_OVER, RESTORED = "taken over", "restored"

Figures = dict[str, float]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds, and MiB held at most beyond what was held before."""
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    work()
    mx.synchronize()
    return (time.perf_counter() - start) * 1e3, max(0, mx.get_peak_memory() - before) / MIB


class Turns:
    """One state left in the model, which each turn goes on from where the last one ended, and in blocks the state of
    `tokens`, which each turn begins with."""

    def __init__(self, model: MlxModel, tokens: Sequence[int], new: Sequence[int], *, has_blocks: bool = True) -> None:
        """Without blocks nothing can be restored, and they take no memory."""
        self._model, self._new, self._num_tokens = model, new, len(tokens)
        self._left, self._num_left, self._next = SequenceId(0), len(tokens), 1
        model.open(self._left)
        self._blocks: list[GroupPayloads] = []
        for start in range(0, len(tokens), CHUNK):
            model.prefill(self._left, tokens[start : start + CHUNK])
            end = min(start + CHUNK, len(tokens)) // BLOCK * BLOCK if has_blocks else start
            self._blocks += model.capture_blocks(self._left, [(at, at + BLOCK) for at in range(start, end, BLOCK)])
        self._snapshot: GroupPayloads = {}
        if has_blocks:
            self._snapshot = model.capture_snapshot(self._left, len(self._blocks) * BLOCK)
        model.leave(self._left)

    @property
    def copied_mib(self) -> float:
        records = [*self._blocks, self._snapshot]
        return sum(payload.size_bytes for groups in records for payload in groups.values()) / MIB

    def taken_over(self) -> Figures:
        id = self._open()
        figures = self._turn(id, lambda: self._model.take_over(id, self._left, self._num_left))
        self._model.leave(id)
        self._left, self._num_left = id, self._num_left + len(self._new)
        return figures | {"copied_mib": 0.0}

    def restored(self) -> Figures:
        id = self._open()
        put_back = lambda: self._model.restore(id, self._num_tokens, self._blocks, self._snapshot)  # noqa: E731
        figures = self._turn(id, put_back)
        self._model.close([id])
        return figures | {"copied_mib": self.copied_mib}

    def _open(self) -> SequenceId:
        id, self._next = SequenceId(self._next), self._next + 1
        self._model.open(id)
        return id

    def _turn(self, id: SequenceId, put_in_place: Callable[[], object]) -> Figures:
        placed_ms, peak_mib = timed(put_in_place)
        computed_ms, computing_mib = timed(lambda: self._model.prefill(id, self._new))
        return {
            "placed_ms": placed_ms,
            "computing_ms": computed_ms,
            "computing_peak_mib": computing_mib,
            "turn_ms": placed_ms + computed_ms,
            "of_computing": (placed_ms + computed_ms) / computed_ms,
            "peak_mib": peak_mib,
        }


def loaded(engine: MlxEngine, options: argparse.Namespace) -> MlxModel:
    """From a folder it is what a server computes with, down to what a device has fused."""
    if options.model is not None:
        steps = engine.load(ModelSource(ModelId(options.model.name), str(options.model)), LoadOptions())
        return cast(MlxModel, finish_load(steps))
    network, config = build_shape(options.shape)
    return finish_load(assemble(network, ModelId(options.shape), ModelFacts(config)))


def filled(model: MlxModel, options: argparse.Namespace, ways: Sequence[str]) -> Turns:
    prompt = prompt_of(options.tokens + options.new, 1, model.description.vocab_size)
    return Turns(model, prompt[: options.tokens], prompt[options.tokens :], has_blocks=RESTORED in ways)


def answer(model: MlxModel, options: argparse.Namespace) -> None:
    """A turn for each line of standard input. The first one, which compiles kernels, is nobody's."""
    turns = filled(model, options, (TAKEN_OVER,))
    turns.taken_over()
    print(json.dumps({"tokens": options.tokens}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(turns.taken_over()), flush=True)


def compare(model: MlxModel, options: argparse.Namespace, results: Results) -> dict[str, Figures]:
    begun_s = time.monotonic()
    turns = filled(model, options, options.ways)
    filled_s = time.monotonic()
    results.add("model", dtype=model.description.dtype, filled_s=filled_s - begun_s)
    ways = {TAKEN_OVER: turns.taken_over, RESTORED: turns.restored}
    runs: dict[str, list[Figures]] = {name: [] for name in options.ways}
    for number in range(options.rounds + 1):
        if number > 1 and time.monotonic() > filled_s + options.seconds:
            print(f"{number - 1} rounds: the time is over", flush=True)
            break
        for name in runs:
            runs[name].append(ways[name]())
            results.add("turn", way=name, round=number, **runs[name][-1])
    middle = statistics.median
    return {name: {key: middle([run[key] for run in found[1:]]) for key in found[0]} for name, found in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny" if on_cpu() else "qwen3-4b", choices=SHAPES)
    parser.add_argument("--model", type=Path, help="a folder, instead of --shape")
    parser.add_argument("--ways", nargs="+", default=[TAKEN_OVER, RESTORED], choices=[TAKEN_OVER, RESTORED])
    parser.add_argument("--tokens", type=int, default=4_000 if on_cpu() else 72_000)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="of rounds: no other is begun after so long")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--asked", action="store_true", help="a turn for every line of standard input")
    options = parser.parse_args()
    engine = MlxEngine()
    model = loaded(engine, options)
    if options.asked:
        answer(model, options)
    else:
        results = Results(options.json, "next_turn", mlx_device=describe_device())
        sizes = f"{options.tokens:,} tokens and {options.new} new ones"
        print(f"{options.model or options.shape}, {sizes}, {describe_device()}", flush=True)
        for name, figures in compare(model, options, results).items():
            results.add(name, **figures)
            told = "  ".join(f"{key} {value:,.2f}" for key, value in figures.items())
            print(f"{name:>12}  {told}")
    model.release()
    engine.close()


if __name__ == "__main__":
    main()
