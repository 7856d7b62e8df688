"""The cost of a pass by rows and width, measured while a model is loaded: it decides whether drafts pay.

Decode steps with drafts are timed, as the engine runs them. A bias holds every answer to one token, so all drafts are
accepted and each step stands at a length of its own: cuDNN plans each pair of lengths, and a pass at a length that was
seen before would look eight times as fast as it will be. The result is kept by the model's content.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from statistics import median
from time import perf_counter
from typing import Any, cast

from adapters.mlx.memory import MeasuredFile
from adapters.mlx.runtime.device import on_cpu
from application.ports.compute import DecodeStart, Draft, LoadedModel
from domain.errors import ComputeFailed
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.models.state_layout import HitPolicy
from domain.request.sampling import SamplingParams
from domain.speculation.gain import MOST_ROWS, WIDTHS, WidthCosts

LEAST_BYTES = 4 * 2**20
"""Models of fewer weights do not draft: their passes are too short to measure."""

MOST_S = 2.0
"""After so long no further round begins. A GPU compiles its kernels in the first one, so it takes LEAST_GPU_ROUNDS."""

ROUNDS, LEAST_GPU_ROUNDS = 5, 3

_PLAN = (1, 2, *WIDTHS[1:])
"""The widths of a round. The first step with a draft also waits for the pass that the plain one has queued, so it does
not count."""

_DRAFT_DEPTH, _FIRST_LENGTH = 4, 16
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
    room_bytes: int | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Generator[Future[Any] | None, None, WidthCosts | None]:
    """Returns the model's costs, remembered or measured; None if they cannot be measured. `content`: identity of the
    model's content and of what computes it. `room_bytes`: memory that measuring may take; None for any. `clock`:
    seconds."""
    memory, drafter = model.description.memory, model.description.own_drafter
    needed = MOST_ROWS * memory.state_bytes(_LENGTH) + memory.decode_bytes(MOST_ROWS, _LENGTH, WIDTHS[-1])
    if room_bytes is not None and needed > room_bytes:
        return None
    key = f"costs of {content}, {drafter.value if drafter is not None else 'no drafter'}"
    refeeds = any(group.policy is not HitPolicy.ALL for group in model.description.layout.groups)
    try:
        pass_ms, draft_ms = cast(Any, (yield from file.recall(key)))
        return WidthCosts.measured(pass_ms, draft_ms=draft_ms, refeeds=refeeds)
    except (TypeError, ValueError, OverflowError):  # none, or an invalid one
        pass
    try:
        pass_ms, draft_ms = yield from _measured(model, clock)
        costs = WidthCosts.measured(pass_ms, draft_ms=draft_ms, refeeds=refeeds)
    except Exception as error:  # a family's code may raise anything
        _logger.warning("%s does not draft: its passes could not be measured: %s", model.description.id, error)
        return None
    finally:
        model.close(_IDS)
    if model.description.weights_digest:  # without one it cannot be recognised
        file.remember(key, [pass_ms, draft_ms])
    return costs


def _measured(model: LoadedModel, clock: Callable[[], float]) -> Generator[None, None, tuple[list[list[float]], float]]:
    """Returns `pass_ms` and `draft_ms` of WidthCosts, the medians of some rounds; measured a step at a time. A step
    waits for a pass that an earlier one has queued, so the least of several would be too little."""
    drafts = [Draft((_TOKEN,) * width) for width in _PLAN]
    if model.description.own_drafter is not None:
        drafts.append(Draft((), _DRAFT_DEPTH))
    medians: list[list[float]] = []
    end, least = clock() + MOST_S, 1 if on_cpu() else LEAST_GPU_ROUNDS
    for ids in (_IDS[:1], _IDS):
        rounds: list[list[float]] = []
        while len(rounds) < least or (len(rounds) < ROUNDS and clock() < end):
            yield from _start(model, ids)
            rounds.append([])
            for draft in drafts:
                yield
                rounds[-1].append(_step_ms(model, ids, draft, clock))
            model.close(ids)
        plain, _, *wider = map(median, zip(*rounds, strict=True))
        medians.append([plain, *wider])
    drafting_ms = medians[0][-1] - medians[0][WIDTHS.index(1 + _DRAFT_DEPTH)] if len(drafts) > len(_PLAN) else 0.0
    return [costs[: len(WIDTHS)] for costs in medians], max(0.0, drafting_ms / _DRAFT_DEPTH)


def _start(model: LoadedModel, ids: Sequence[SequenceId]) -> Generator[None, None, None]:
    """Opens sequences of one prompt, which decode together."""
    prompt = IdRow([_TOKEN] * _FIRST_LENGTH)
    for id in ids:
        model.open(id)
        model.start_decode(id, prompt, DecodeStart(prompt, _HELD, seed=0))
    for _ in range(3):  # the first token, a step alone, and the step in which they join
        yield
        model.decode(ids)


def _step_ms(model: LoadedModel, ids: Sequence[SequenceId], draft: Draft, clock: Callable[[], float]) -> float:
    """Returns the milliseconds of a step with this draft of all rows. Raises ComputeFailed if it fails, or if the draft
    is not accepted."""
    begun = clock()
    results = model.decode(ids, dict.fromkeys(ids, draft) if draft != _PLAIN else {})
    took = clock() - begun
    for result in results:
        if result.error is not None:
            raise result.error
        if result.num_accepted != max(draft.depth, len(draft.token_ids) - 1):
            raise ComputeFailed("the bias does not decide the tokens")
    return 1e3 * took
