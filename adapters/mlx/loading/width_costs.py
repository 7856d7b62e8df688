"""The cost of a pass by rows and width, measured while a model is loaded: it decides whether drafts pay.

Decode steps with drafts are timed, as the engine runs them. A bias holds every answer to one token, so all drafts are
accepted and each step stands at a length of its own: cuDNN plans each pair of lengths, and a pass at a length that was
seen before would look eight times as fast as it will be. The result is kept by the model's content.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from math import inf
from time import perf_counter
from typing import Any, cast

from adapters.mlx.memory import MeasuredFile
from adapters.mlx.runtime.device import on_cpu
from application.ports.compute import DecodeStart, Draft, LoadedModel
from domain.errors import ComputeFailed
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.request.sampling import SamplingParams
from domain.speculation.gain import MOST_ROWS, WIDTHS, WidthCosts

LEAST_BYTES = 4 * 2**20
"""Models of fewer weights do not draft: their passes are too short to measure."""

MOST_S, MOST_GPU_S = 2.0, 20.0
"""After so long measuring ends, with the widths and rows that were measured by then. A GPU's kernels are compiled in
the first round, which does not count."""

_ROUNDS, _DRAFT_DEPTH = 3, 4
_PLAN = (1, 1, 1, 2, *WIDTHS[1:])
"""The widths of a round. A disturbed plain step would make all drafts look cheap, so it is measured three times. The
first step with a draft also waits for the pass that the last plain one has queued, so there is another of its width."""

_FIRST_LENGTH = 64
_LENGTH = _FIRST_LENGTH + sum(_PLAN) + 16
_TOKEN = 1
_PLAIN = Draft((_TOKEN,))
_HELD = SamplingParams(temperature=0, logit_bias=((_TOKEN, 100.0),))
_IDS = tuple(SequenceId(-2 - index) for index in range(MOST_ROWS))

_logger = logging.getLogger("cairn.mlx")


def find_costs(
    model: LoadedModel,
    file: MeasuredFile,
    content: str,
    *,
    does_refeed: bool,
    room_bytes: int | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Generator[Future[Any] | None, None, WidthCosts | None]:
    """Returns the model's costs, remembered or measured; None if they cannot be measured. `content`: identity of the
    model's content and of what computes it. `does_refeed`: see `WidthCosts.refeeds`. `room_bytes`: memory that
    measuring may take; None for any. `clock`: seconds."""
    memory, drafter = model.description.memory, model.description.own_drafter
    needed = MOST_ROWS * memory.state_bytes(_LENGTH) + memory.decode_bytes(MOST_ROWS, _LENGTH, WIDTHS[-1])
    if room_bytes is not None and needed > room_bytes:
        return None
    key = f"costs of {content}, {drafter.value if drafter is not None else 'no drafter'}"
    try:
        pass_ms, draft_ms = cast(Any, (yield from file.recall(key)))
        return WidthCosts.measured(pass_ms, draft_ms=draft_ms, refeeds=does_refeed)
    except (TypeError, ValueError, OverflowError):  # none, or an invalid one
        pass
    try:
        pass_ms, draft_ms = yield from _measured(model, clock)
        costs = WidthCosts.measured(pass_ms, draft_ms=draft_ms, refeeds=does_refeed)
    except Exception as error:  # a family's code may raise anything
        _logger.warning("%s does not draft: its passes could not be measured: %s", model.description.id, error)
        return None
    finally:
        model.close(_IDS)
    # What was cut short, by a busy machine for example, is not remembered, nor is a model that cannot be recognised.
    if model.description.weights_digest and [len(by_width) for by_width in pass_ms] == [len(WIDTHS)] * 2:
        file.remember(key, [pass_ms, draft_ms])
    return costs


def _measured(model: LoadedModel, clock: Callable[[], float]) -> Generator[None, None, tuple[list[list[float]], float]]:
    """Returns `pass_ms` and `draft_ms` of WidthCosts, the least of some rounds; measured a step at a time."""
    pass_ms: list[list[float]] = []
    drafting_ms, end = inf, clock() + (MOST_S if on_cpu() else MOST_GPU_S)
    for ids in (_IDS[:1], _IDS):
        least: dict[int, float] = {}
        for is_counted in [True] * _ROUNDS if on_cpu() else [False, *[True] * _ROUNDS]:
            yield from _start(model, ids)
            for width in _PLAN:
                yield
                took, at = _step_ms(model, ids, Draft((_TOKEN,) * width), clock)
                if at > end:
                    break
                if is_counted:
                    least[width] = min(took, least.get(width, inf))
            else:
                if len(ids) == 1 and model.description.own_drafter is not None:
                    drafting_ms = min(drafting_ms, _step_ms(model, ids, Draft((), _DRAFT_DEPTH), clock)[0])
            model.close(ids)
        if least:
            pass_ms.append(list(least.values()))
    by_width = dict(zip(WIDTHS, pass_ms[0], strict=False))
    draft_ms = (drafting_ms - by_width[1 + _DRAFT_DEPTH]) / _DRAFT_DEPTH if drafting_ms < inf else 0.0
    return pass_ms, max(0.0, draft_ms)


def _start(model: LoadedModel, ids: Sequence[SequenceId]) -> Generator[None, None, None]:
    """Opens sequences of one prompt, which decode together."""
    prompt = IdRow([_TOKEN] * _FIRST_LENGTH)
    model.open(ids[0])
    model.prefill(ids[0], prompt[:-1])
    model.fork(ids[0], ids[1:])
    for id in ids:
        model.start_decode(id, prompt[-1:], DecodeStart(prompt, _HELD, seed=0))
    for _ in range(3):  # the first token, a step alone, and the step in which they join
        yield
        model.decode(ids)


def _step_ms(
    model: LoadedModel, ids: Sequence[SequenceId], draft: Draft, clock: Callable[[], float]
) -> tuple[float, float]:
    """Returns the milliseconds of a step with this draft of all rows, and the time when it began. Raises ComputeFailed
    if it fails, or if the draft is not accepted."""
    at = clock()
    results = model.decode(ids, dict.fromkeys(ids, draft) if draft != _PLAIN else {})
    took = clock() - at
    for result in results:
        if result.error is not None:
            raise result.error
        if result.num_accepted != max(draft.depth, len(draft.token_ids) - 1):
            raise ComputeFailed("the bias does not decide the tokens")
    return 1e3 * took, at
