"""What a decode step asks of the interpreter, counted: bytecodes and calls on the compute thread, by rows and settings.

    python -m bench.step_counts [--model cairn-demo] [--rows 1 8 32] [--json FILE]

Counts, not times: another program beside it changes nothing. A row's share is the difference between the most and the
fewest rows; the baseline is greedy decoding in the same run. What MLX does below is not in it.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from adapters.huggingface.embedded_models import embedded_folder
from adapters.llguidance.compiler import LlguidanceCompiler
from adapters.mlx.engine import MlxEngine
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.compute import DecodeStart
from application.ports.token_constraint import TokenConstraint
from application.services.lane import Lane
from application.services.token_side.model_loads import whole
from domain.grammar import Grammar, json_schema_grammar
from domain.ids import ModelId, SequenceId
from domain.model_card import LoadOptions, ModelSource
from domain.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
ENDLESS = json_schema_grammar({"type": "array", "items": {"type": "string"}, "minItems": 10_000}, "grammar")
KINDS: dict[str, tuple[SamplingParams, Grammar | None]] = {
    "greedy": (GREEDY, None),
    "top_p 0.9": (SamplingParams(temperature=1, top_p=0.9), None),
    "5 logprobs": (SamplingParams(temperature=0, num_logprobs=5), None),
    "JSON": (GREEDY, ENDLESS),
}
WARM_UP = 8
NUM_STEPS = 5


def counts(step: Callable[[], object]) -> tuple[int, int]:
    """Bytecodes and calls, of this thread."""
    found = {"opcode": 0, "call": 0}

    def seen(frame: FrameType, event: str, _argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event in found:
            found[event] += 1
        return seen

    sys.settrace(seen)
    try:
        step()
    finally:
        sys.settrace(None)
    return found["opcode"], found["call"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cairn-demo", help="an embedded model, or a folder")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    source = ModelSource(ModelId(options.model), str(embedded_folder(ModelId(options.model)) or options.model))
    tokenizers, engine = HfTokenizerLoader(), MlxEngine()
    tokenizer, model = tokenizers.load(source), whole(engine.load(source, LoadOptions()))
    compiler = LlguidanceCompiler(Lane("bench-grammar", 1), tokenizers.vocabulary)
    compiler.attach(source)
    prompt = tokenizer.encode("Tell me about the sea.").token_ids
    ends = model.description.eos_token_ids

    def held(grammar: Grammar | None) -> TokenConstraint | None:
        if grammar is None:
            return None
        constraint = compiler.compile(source.id, grammar, ends)
        while not constraint.poll():
            time.sleep(0.001)
        return constraint

    results: dict[str, dict[int, tuple[float, float]]] = {}
    for name, (sampling, grammar) in KINDS.items():
        results[name] = {}
        for num_rows in options.rows:
            ids = [SequenceId(row) for row in range(num_rows)]
            for id in ids:
                model.open(id)
                start = DecodeStart(prompt, sampling, seed=id, eos_token_ids=ends, constraint=held(grammar))
                model.start_decode(id, prompt, start)
            for _ in range(WARM_UP):
                model.decode(ids)
            steps = [counts(lambda ids=ids: model.decode(ids)) for _ in range(NUM_STEPS)]
            model.close(ids)
            bytecodes, calls = (statistics.median(one) for one in zip(*steps, strict=True))
            results[name][num_rows] = bytecodes, calls
            print(f"{name}, {num_rows} rows: {bytecodes:.0f} bytecodes, {calls:.0f} calls", flush=True)
        few, many = min(options.rows), max(options.rows)
        if few < many:
            per_row = [(b - a) / (many - few) for a, b in zip(results[name][few], results[name][many], strict=True)]
            print(f"{name}, a row: {per_row[0]:.0f} bytecodes, {per_row[1]:.1f} calls", flush=True)
    engine.close()
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
