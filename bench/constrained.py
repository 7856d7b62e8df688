"""What a grammar costs a token: constrained against free decoding, step by step in turns, in one run.

    python -m bench.constrained [--model cairn-demo] [--rows 1 8] [--steps 100] [--rounds 5] [--json FILE]

Both decode the same prompt to the same length on the same model: the grammar allows any text, or a JSON array of
strings, and never ends. Told: the lower quartile of the decode steps of either (whatever else the machine does only
ever slows a step down), and the median over the rounds of their ratio; the same of the compute thread's processor time,
which others disturb less (what a worker does, and what waiting for it takes, is not in it).
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from adapters.system.blas import load_blas
from application.services.token_side.model_loads import whole

load_blas()

from adapters.huggingface.embedded_models import embedded_folder  # noqa: E402 - a BLAS counts only before MLX
from adapters.llguidance.compiler import LlguidanceCompiler  # noqa: E402
from adapters.mlx.engine import MlxEngine  # noqa: E402
from adapters.tokenizers.loader import HfTokenizerLoader  # noqa: E402
from application.ports.compute import DecodeStart, LoadedModel  # noqa: E402
from application.ports.token_constraint import TokenConstraint  # noqa: E402
from application.services.lane import Lane  # noqa: E402
from domain.grammar import Grammar, json_schema_grammar, lark_grammar  # noqa: E402
from domain.ids import ModelId, SequenceId  # noqa: E402
from domain.model_card import LoadOptions, ModelSource  # noqa: E402
from domain.sampling import SamplingParams  # noqa: E402

GREEDY = SamplingParams(temperature=0)
NUM_WORKERS = 4
WARM_UP = 40
"""Until kernels are compiled, and the order of reading is chosen (`adapters/mlx/reading_order`)."""
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

    def step(self, grammar: Grammar | None, num_rows: int, num_steps: int) -> "Step":
        """Of so many rows, free or all with this grammar."""
        ids = [self._start(grammar) for _ in range(num_rows)]
        taken_s: list[float] = []
        cpu_s: list[float] = []
        for _ in range(num_steps + WARM_UP):
            started, cpu_started = time.perf_counter(), time.thread_time()
            errors = [result.error for result in self._model.decode(ids) if result.error is not None]
            cpu_s.append(time.thread_time() - cpu_started)
            taken_s.append(time.perf_counter() - started)
            if errors:
                raise errors[0]
        self._model.close(ids)
        return Step(*(statistics.quantiles(one[WARM_UP:], n=4)[0] for one in (taken_s, cpu_s)))

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
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    source = ModelSource(ModelId(options.model), str(embedded_folder(ModelId(options.model)) or options.model))
    tokenizers, engine = HfTokenizerLoader(), MlxEngine()
    tokenizer, model = tokenizers.load(source), whole(engine.load(source, LoadOptions()))
    compiler = LlguidanceCompiler(Lane("bench-grammar", NUM_WORKERS), tokenizers.vocabulary)
    compiler.attach(source)
    compare = Compare(model, compiler, source, tokenizer.encode("Tell me about the sea. " * 8).token_ids)
    results: dict[str, dict[str, float]] = {}
    for num_rows in options.rows:
        for name, grammar in GRAMMARS.items():
            rounds = [
                (compare.step(None, num_rows, options.steps), compare.step(grammar, num_rows, options.steps))
                for _ in range(options.rounds)
            ]
            free, held = (statistics.median(step.taken_s for step in steps) for steps in zip(*rounds, strict=True))
            over = statistics.median(held.taken_s / free.taken_s for free, held in rounds) - 1
            cpu_over_s = statistics.median(held.cpu_s - free.cpu_s for free, held in rounds)
            results[f"{num_rows} rows, {name}"] = {
                "free_s": free,
                "held_s": held,
                "overhead": over,
                "cpu_over_s": cpu_over_s,
            }
            print(
                f"{num_rows} rows, {name}: {free * 1e3:.2f} ms free, {held * 1e3:.2f} ms held, {over:+.1%}; "
                f"{cpu_over_s * 1e6:+.0f} us of the compute thread",
                flush=True,
            )
    model.close(tuple(model.open_ids()))
    engine.close()
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
