"""The cost of a grammar a token: constrained against free decoding, step by step in turns, in one run.

    python -m bench.constrained [--model cairn-demo] [--rows 1 8] [--turns 60] [--seconds 90]
        [--json FILE]

Both decode the same prompt on the same model, to the same length: the grammar allows any text, or a JSON array of
strings, and never ends. They take turns of some steps, so that other work of the machine affects both. Reported: the
median step of either, the median over the turns of their ratio with its quartiles, and the difference of the compute
thread's processor time (what a worker does, and what waiting takes, is not in it). The cost is per step and not per
parameter: the embedded model, whose step takes some milliseconds, shows the most of it. `--seconds` bounds the turns of
all, each case its share: fewer turns are reported as such.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from adapters.system.blas import load_blas
from tests.support.engines.finish_load import finish_load

load_blas()

from adapters.huggingface.model_folder import embedded_folder  # noqa: E402 - a BLAS counts only before MLX
from adapters.llguidance.compiler import LlguidanceCompiler  # noqa: E402
from adapters.mlx.engine import MlxEngine  # noqa: E402
from adapters.mlx.runtime.device import describe_device  # noqa: E402
from adapters.tokenizers.loader import HfTokenizerLoader  # noqa: E402
from application.ports.compute import DecodeStart, LoadedModel  # noqa: E402
from application.ports.token_constraint import TokenConstraint  # noqa: E402
from application.services.lane import Lane  # noqa: E402
from bench.common.results import Results  # noqa: E402
from domain.ids import ModelId, SequenceId  # noqa: E402
from domain.models.model_card import LoadOptions, ModelSource  # noqa: E402
from domain.request.grammar import Grammar, json_schema_grammar, lark_grammar  # noqa: E402
from domain.request.sampling import SamplingParams  # noqa: E402

GREEDY = SamplingParams(temperature=0)
NUM_WORKERS = 4
WARM_UP = 60
"""Until kernels are compiled."""
NUM_SKIPPED, NUM_COUNTED = 4, 8
"""Steps of a turn. The first was computed in the turn before, and the next find caches and pools of the others."""
GRAMMARS: dict[str, Grammar] = {
    "any text": lark_grammar("start: /(?s:.*)/", "grammar"),
    "JSON": json_schema_grammar({"type": "array", "items": {"type": "string"}, "minItems": 10_000}, "grammar"),
}


class Step(NamedTuple):
    """Lower quartiles. `cpu_s`: of the compute thread's processor time."""

    taken_s: float
    cpu_s: float


class Compare:
    """One loaded model."""

    def __init__(
        self, model: LoadedModel, compiler: LlguidanceCompiler, source: ModelSource, prompt: Sequence[int]
    ) -> None:
        self._model = model
        self._compiler = compiler
        self._source = source
        self._prompt = tuple(prompt)
        self._next_id = 0

    def turns(self, grammar: Grammar, num_rows: int, num_turns: int, seconds: float) -> list[tuple["Step", "Step"]]:
        """Returns at least two turns of so many rows, free and all with this grammar."""
        free, held = ([self._start(one) for _ in range(num_rows)] for one in (None, grammar))
        for ids in (free, held):
            self._steps(ids, WARM_UP)
        taken: list[tuple[Step, Step]] = []
        deadline_s = time.monotonic() + seconds
        for turn in range(num_turns):
            if turn > 1 and time.monotonic() > deadline_s:
                break
            order = (free, held) if turn % 2 else (held, free)
            first, second = (self._steps(ids, NUM_COUNTED, NUM_SKIPPED) for ids in order)
            taken.append((first, second) if turn % 2 else (second, first))
        self._model.close([*free, *held])
        return taken

    def _steps(self, ids: Sequence[SequenceId], num_counted: int, num_skipped: int = 0) -> "Step":
        """The mean of those that count."""
        started, cpu_started = time.perf_counter(), time.thread_time()
        for number in range(num_skipped + num_counted):
            if number == num_skipped:
                started, cpu_started = time.perf_counter(), time.thread_time()
            errors = [result.error for result in self._model.decode(ids) if result.error is not None]
            if errors:
                raise errors[0]
        taken_s, cpu_s = time.perf_counter() - started, time.thread_time() - cpu_started
        return Step(taken_s / num_counted, cpu_s / num_counted)

    def _start(self, grammar: Grammar | None) -> SequenceId:
        id, ends = SequenceId(self._next_id), self._model.description.eos_token_ids
        self._next_id += 1
        constraint: TokenConstraint | None = None
        if grammar is not None:
            constraint = self._compiler.compile(self._source.id, grammar, ends)
            while not constraint.poll():
                time.sleep(0.001)
        self._model.open(id)
        self._model.prefill(id, self._prompt[:-1])
        # No end in either: both decode for as long.
        start = DecodeStart(self._prompt, GREEDY, seed=0, min_tokens=10**6, eos_token_ids=ends, constraint=constraint)
        self._model.start_decode(id, self._prompt[-1:], start)
        return id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cairn-demo", help="an embedded model, or a folder")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "constrained", mlx_device=describe_device())
    source = ModelSource(ModelId(options.model), str(embedded_folder(ModelId(options.model)) or options.model))
    tokenizers, engine = HfTokenizerLoader(), MlxEngine()
    tokenizer, model = tokenizers.load(source), finish_load(engine.load(source, LoadOptions()))
    compiler = LlguidanceCompiler(Lane("bench-grammar", NUM_WORKERS))
    compiler.attach(source.id, tokenizer.vocabulary())
    compare = Compare(model, compiler, source, tokenizer.encode("Tell me about the sea. " * 8).token_ids)
    share_s = options.seconds / (len(options.rows) * len(GRAMMARS))
    for num_rows in options.rows:
        for name, grammar in GRAMMARS.items():
            turns = compare.turns(grammar, num_rows, options.turns, share_s)
            free_s, held_s = (statistics.median(step.taken_s for step in steps) for steps in zip(*turns, strict=True))
            low, over, high = statistics.quantiles((held.taken_s / free.taken_s - 1 for free, held in turns), n=4)
            cpu_over_s = statistics.median(held.cpu_s - free.cpu_s for free, held in turns)
            results.add(
                name,
                rows=num_rows,
                turns=len(turns),
                free_s=free_s,
                held_s=held_s,
                overhead=over,
                overhead_quartiles=[low, high],
                cpu_over_s=cpu_over_s,
            )
            print(
                f"{num_rows} rows, {name}: {free_s * 1e3:.2f} ms free, {held_s * 1e3:.2f} ms held, {over:+.1%} "
                f"({low:+.1%} to {high:+.1%}); {cpu_over_s * 1e6:+.0f} us of the compute thread; {len(turns)} turns",
                flush=True,
            )
    model.close(tuple(model.open_ids()))
    engine.close()


if __name__ == "__main__":
    main()
