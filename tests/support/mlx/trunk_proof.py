"""The proof that a family may be served, as a process of its own: `python -m tests.support.mlx.trunk_proof NAME ...`

One line a family, in JSON: the faults that were found, none for one that is right. Compiled, because a compiled
function may keep what it saw first, and in a process of its own, because a module may end it.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.leaves import live_arrays, new_caches
from application.ports.compute import LoadedModel
from domain.models.model_card import DecodeMode
from tests.support.mlx.tiny_models import build, tiny_model
from tests.support.stores.state_replay import (
    Captured,
    capture,
    continue_greedy,
    open_at,
    prompt_of,
    start_greedy,
    whole_state,
)

PROMPT, OTHER = prompt_of(151), prompt_of(90, 3)
CHUNKS = (32, 32, 32, 14, 40, 1)
AT = (96, 110)
"""Positions to resume at: on the grid, and inside a block."""
NUM_NEW = 12
TOLERANCE = 2e-4
"""The largest difference of a logit, in standard deviations, and of a log probability."""


def faults_of(name: str) -> Iterator[str]:
    network, model = build(name), tiny_model(name)
    yield from chunk_faults(network)
    if not model.description.layout.is_reusable:
        yield f"not reusable: {', '.join(model.description.layout.unsupported)}"
        return
    id = open_at(model, PROMPT)
    state, output = whole_state(model, id), continue_greedy(model, id, PROMPT, NUM_NEW)
    for position in AT:
        restored = open_at(model, PROMPT, capture(model, PROMPT, position).on_host())
        if position == AT[0] and whole_state(model, restored) != state:
            yield f"restored at {position} is not recomputed"
        if continue_greedy(model, restored, PROMPT, NUM_NEW) != output:
            yield f"restored at {position} answers otherwise"
    yield from answer_faults(model)
    if model.description.decode_mode is DecodeMode.BATCHED:
        yield from batch_faults(model, output)
    estimated, held = model.description.memory.state_bytes(len(PROMPT), len(PROMPT)), held_bytes(network)
    if not held <= estimated <= 4 * held:
        yield f"its state takes {held} bytes, and was estimated at {estimated}"


def chunk_faults(network: Any) -> Iterator[str]:
    tokens = mx.array([PROMPT], dtype=mx.uint32)
    whole = network(tokens, cache=new_caches(network))[0]
    caches, parts, start = new_caches(network), list[mx.array](), 0
    for count in CHUNKS:
        parts.append(network(tokens[:, start : start + count], cache=caches)[0])
        mx.eval(parts[-1], live_arrays(caches))
        start += count
    difference = mx.max(mx.abs(mx.concatenate(parts) - whole)) / mx.std(whole)
    if not difference.item() <= TOLERANCE:
        yield f"chunks differ from one pass by {difference.item():.1g} standard deviations"


def answer_faults(model: LoadedModel) -> Iterator[str]:
    """A conversation goes on from the state behind an answer as it does recomputed."""
    id = open_at(model, PROMPT[:97])
    start_greedy(model, id, PROMPT[:97])
    tokens = [*PROMPT[:97], *(model.decode([id])[0].token_ids[0] for _ in range(NUM_NEW))]
    position = model.position(id)
    captured = Captured(position, [], model.capture_snapshot(id, 0)).on_host()
    model.close([id])
    prompt = (*tokens[:position], *OTHER)
    found, expected = (next_logprobs(model, prompt, at) for at in (captured, None))
    difference = max(abs(expected[token] - found.get(token, 0)) for token in expected)
    if difference > TOLERANCE:
        yield f"restored behind an answer log probabilities differ by {difference:.1g}"


def next_logprobs(model: LoadedModel, prompt: tuple[int, ...], captured: Captured | None) -> dict[int, float]:
    id = open_at(model, prompt, captured)
    start_greedy(model, id, prompt, num_logprobs=5)
    (result,) = model.decode([id])
    model.close([id])
    assert result.logprobs is not None
    return dict(result.logprobs[0].top)


def batch_faults(model: LoadedModel, expected: list[int]) -> Iterator[str]:
    alone = continue_greedy(model, open_at(model, OTHER), OTHER, NUM_NEW)
    ids = [open_at(model, PROMPT), open_at(model, OTHER)]
    start_greedy(model, ids[0], PROMPT)
    start_greedy(model, ids[1], OTHER)
    steps = [[result.token_ids[0] for result in model.decode(ids)] for _ in range(NUM_NEW)]
    model.close(ids)
    if [list(row) for row in zip(*steps, strict=True)] != [expected, alone]:
        yield "decoded in a batch they answer otherwise"


def held_bytes(network: Any) -> int:
    caches = new_caches(network)
    mx.eval(network(mx.array([PROMPT], dtype=mx.uint32), cache=caches))
    return sum(array.nbytes for array in live_arrays(caches))


def main(names: list[str]) -> None:
    for name in names:
        try:
            found = list(faults_of(name))
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        sys.stdout.write(json.dumps([name, found]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
