"""The cost of a pass by rows and width, measured while a model is loaded: it decides whether drafts pay.

Each measurement stands at a length of its own, as verifications do: cuDNN plans each pair of lengths, and a pass at a
length that was seen before would look eight times as fast as it will be. What is measured includes choosing and reading
a token at each position. The result is kept by the model's content. Its first loads on a machine are measured, and the
least of each is kept, because other work makes a pass dearer and never cheaper:

    {"<digest> <runtime>, <arithmetic>, <dtype>, <drafter>":
        [[rows], [widths], [[ms of a width], of rows], draft_ms, loads that were measured]}
"""

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from math import inf
from time import perf_counter
from typing import Any, cast

from adapters.mlx.memory import MeasuredFile
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.device import on_cpu
from application.ports.compute import DecodeStart
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.models.model_card import DecodeMode, ModelDescription
from domain.request.sampling import SamplingParams
from domain.speculation.drafter import Drafter
from domain.speculation.gain import MOST_ROWS, WidthCosts

WIDTHS = (1, 2, 3, 5, 9, 17)
DRAFT_DEPTH = 4

LEAST_BYTES = 4 * 2**20
"""Models of fewer weights do not draft: their passes are too short to measure."""

BUDGET_S = 0.5
"""After so long no further round of measurements begins, once there were two: one alone may have been disturbed."""

MOST_S = 2.0
"""After so long measuring ends, with the widths and rows that were measured by then."""

WARM_UP_S = 20.0
"""A GPU's kernels are compiled by the first pass of each width and number of rows. Those passes are not measured, and
may take so long together, once on a machine."""

MEASURED_LOADS = 3
"""A machine that was busy at one load may have been idle at another."""

COSTS_NAME = "width-costs.json"

_MOST_ROUNDS = 4
_MORE_PLAIN = (1, 1)
"""A disturbed plain step would make all drafts look cheap, so it is measured more often than wider passes."""

_FIRST_LENGTH, _MORE_A_ROUND = 64, sum((*_MORE_PLAIN, *WIDTHS)) + 4
_NUM_TOY_TOKENS = 100
_IDS = tuple(SequenceId(-2 - index) for index in range(MOST_ROWS))

_logger = logging.getLogger("cairn.mlx")


def find_costs(
    model: MlxModel,
    file: MeasuredFile,
    *,
    does_refeed: bool,
    room_bytes: int | None = None,
    num_bytes: int = LEAST_BYTES,
    clock: Callable[[], float] = perf_counter,
) -> Generator[Future[Any] | None, None, None]:
    """Sets the model's costs, remembered or measured, if it may draft. `does_refeed`: see `refeeds`. `room_bytes`:
    memory that measuring may take; None for any. `num_bytes`: the least weights of a model that is measured. `clock`:
    seconds."""
    described = model.description
    length = _FIRST_LENGTH + _MOST_ROUNDS * _MORE_A_ROUND
    needed = MOST_ROWS * described.memory.state_bytes(length)
    needed += described.memory.decode_bytes(MOST_ROWS * WIDTHS[-1], length)
    if room_bytes is not None and needed > room_bytes:
        return
    if described.weight_bytes < num_bytes or not any(map(described.speculation.allows, Drafter)):
        return
    key = _key_of(described)
    known, num_loads = _known((yield from file.recall(key)) if key else None, does_refeed)
    costs = known
    if num_loads < MEASURED_LOADS:
        costs = yield from measure_costs(model, does_refeed, clock)
        # What is cut short, by a busy machine for example, is not remembered.
        is_whole = costs is not None and (costs.rows, costs.widths) == (_rows_of(described), WIDTHS)
        if costs is None or not is_whole:
            costs = known or costs
        else:
            costs = costs if known is None else _least(costs, known)
            if key:
                file.remember(key, [costs.rows, costs.widths, costs.pass_ms, costs.draft_ms, num_loads + 1])
    if costs is not None:
        model.set_costs(costs)


def measure_costs(
    model: MlxModel, does_refeed: bool, clock: Callable[[], float]
) -> Generator[None, None, WidthCosts | None]:
    """Returns the costs, measured a pass at a time; None if the model cannot compute one. Leaves nothing behind."""
    found: dict[tuple[int, int], float] = {}
    rows_of = _rows_of(model.description)
    plan = [(num_round, rows) for rows in rows_of for num_round in (0, 1)]  # one row first: it drafts most
    plan += [(num_round, rows) for num_round in range(2, _MOST_ROUNDS) for rows in rows_of]
    try:
        if not on_cpu():
            yield from _warm_up(model, rows_of, clock)
        draft_ms, begun = 0.0, clock()
        for num_round, rows in plan:
            if clock() - begun > (BUDGET_S if num_round > 1 else MOST_S):
                break
            ids = _IDS[:rows]
            _start(model, ids, _FIRST_LENGTH + num_round * _MORE_A_ROUND)
            for width in (*_MORE_PLAIN, *WIDTHS):
                yield
                at = clock()
                if at - begun > MOST_S or not model.try_pass(ids, width):
                    break
                found[rows, width] = min(found.get((rows, width), inf), 1e3 * (clock() - at))
            if rows == 1 and model.description.own_drafter is not None:
                at = clock()
                model.try_drafting(ids[0], DRAFT_DEPTH)
                draft_ms = min(draft_ms or inf, 1e3 * (clock() - at) / DRAFT_DEPTH)
            model.close(ids)
        widths = [width for width in WIDTHS if (1, width) in found]
        whole = [rows for rows in rows_of if all((rows, width) in found for width in widths)]
        cells = {(rows, width): found[rows, width] for rows in whole for width in widths}
        return WidthCosts.measured(cells, draft_ms=draft_ms, refeeds=does_refeed)
    except Exception as error:  # a family's code may raise anything
        _logger.warning("%s does not draft: its passes could not be measured: %s", model.description.id, error)
        return None
    finally:
        model.close(_IDS)


def _warm_up(model: MlxModel, rows_of: Sequence[int], clock: Callable[[], float]) -> Generator[None, None, None]:
    end = clock() + WARM_UP_S
    for rows in rows_of:
        _start(model, _IDS[:rows], _FIRST_LENGTH)
        for width in WIDTHS:
            yield
            if clock() > end:
                break
            model.try_pass(_IDS[:rows], width)
        model.close(_IDS)


def _rows_of(model: ModelDescription) -> tuple[int, ...]:
    """The numbers of rows to measure. A CPU's costs grow evenly between one row and several."""
    if model.decode_mode is DecodeMode.SINGLE:
        return (1,)
    return (1, MOST_ROWS) if on_cpu() else (1, 2, MOST_ROWS)


def _start(model: MlxModel, ids: Sequence[SequenceId], num_tokens: int) -> None:
    """Opens sequences of one prompt, which decode together."""
    num_toys = min(_NUM_TOY_TOKENS, model.description.vocab_size)
    prompt = IdRow([(17 * index + 5) % num_toys for index in range(num_tokens)])
    model.open(ids[0])
    model.measured_prefill(ids[0], prompt[:-1])
    model.fork(ids[0], ids[1:])
    start = DecodeStart(prompt, SamplingParams(temperature=0), seed=0)
    for id in ids:
        model.start_decode(id, prompt[-1:], start)
    for _ in range(3):  # the first token, a step alone, and the step in which they join
        if error := next((result.error for result in model.decode(ids) if result.error is not None), None):
            raise error


def _key_of(model: ModelDescription) -> str:
    """Empty for a model without a digest, which cannot be recognised."""
    drafter = model.own_drafter.value if model.own_drafter is not None else "no drafter"
    found = f"{model.weights_digest.hex()} {model.runtime}, {model.arithmetic}, {model.dtype}, {drafter}"
    return found if model.weights_digest else ""


def _known(entry: object, does_refeed: bool) -> tuple[WidthCosts | None, int]:
    """The costs of an entry, and the number of loads that were measured; None and 0 if it is invalid."""
    try:
        rows, widths, pass_ms, draft_ms, num_loads = cast(Any, entry)
        cells = {
            (int(row), int(width)): float(cost)
            for row, costs in zip(rows, pass_ms, strict=True)
            for width, cost in zip(widths, costs, strict=True)
        }
        return WidthCosts.measured(cells, draft_ms=float(draft_ms), refeeds=does_refeed), int(num_loads)
    except (TypeError, ValueError, OverflowError):
        return None, 0


def _least(costs: WidthCosts, other: WidthCosts) -> WidthCosts:
    """The less of each cost. Both are of the same rows and widths, or the first counts."""
    if (costs.rows, costs.widths) != (other.rows, other.widths):
        return costs
    cells = {
        (row, width): min(costs.cost(row, width), other.cost(row, width)) for row in costs.rows for width in WIDTHS
    }
    return WidthCosts.measured(cells, draft_ms=min(costs.draft_ms, other.draft_ms), refeeds=costs.refeeds)
