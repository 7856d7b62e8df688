"""The next turn of a long conversation on the adapter alone, one for each line of standard input.

    python -m bench.common.as_served bench.common.next_turn --model DIR --tokens 72000 --new 200

Prefills a state of `--tokens` tokens and prints a line of JSON. For each line that it reads it then takes the state of
the turn before over, computes `--new` tokens on it and prints `computing_ms`: `bench.common.computing_alone` takes
turns with it. HTTP, tokenizing and the queue are not in it.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import mlx.core as mx

from adapters.mlx.engine import MlxEngine
from adapters.mlx.model import MlxModel
from bench.decode import prompt_of
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.engines.finish_load import finish_load

CHUNK = 2048


class Turns:
    """A state that is left in the model, and that each turn extends."""

    def __init__(self, model: MlxModel, tokens: Sequence[int], new: Sequence[int]) -> None:
        self._model, self._new, self._num_left, self._left = model, new, len(tokens), SequenceId(0)
        model.open(self._left)
        for start in range(0, len(tokens), CHUNK):
            model.prefill(self._left, tokens[start : start + CHUNK])
        model.keep_live(self._left)

    def turn(self) -> dict[str, float]:
        id = SequenceId(self._left + 1)
        self._model.open(id)
        self._model.take_over(id, self._left, self._num_left)
        mx.synchronize()
        start = time.perf_counter()
        self._model.prefill(id, self._new)
        mx.synchronize()
        computing_ms = (time.perf_counter() - start) * 1e3
        self._model.keep_live(id)
        self._left, self._num_left = id, self._num_left + len(self._new)
        return {"computing_ms": computing_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=72_000)
    parser.add_argument("--new", type=int, default=200)
    options = parser.parse_args()
    engine = MlxEngine()
    source = ModelSource(ModelId(options.model.name), str(options.model))
    model = cast(MlxModel, finish_load(engine.load(source, LoadOptions())))
    prompt = prompt_of(options.tokens + options.new, 1, model.description.vocab_size)
    turns = Turns(model, prompt[: options.tokens], prompt[options.tokens :])
    turns.turn()  # compiles kernels
    print(json.dumps({"tokens": options.tokens}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(turns.turn()), flush=True)
    model.release()
    engine.close()


if __name__ == "__main__":
    main()
