"""One chunk, measured at load where it begins a prompt and where it lies far behind: by these two peaks the
configuration's formula is corrected before anything is served."""

import logging
from collections.abc import Generator

from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.device import CPU_GRID, on_cpu, preferred_grid
from domain.ids import SequenceId
from domain.memory.correction import DEEP_CHUNKS
from domain.models.model_card import ModelDescription

_logger = logging.getLogger("cairn.memory")
_ID = SequenceId(-1)
_TOKENS = 100
_SMALL_SHARE = 8


def chunk_to_measure() -> int:
    """Tokens. On a GPU as many as are prefilled at once, since how far it runs ahead depends on that. A CPU runs
    nothing ahead and takes in proportion to the tokens: half a chunk says as much, in a third of the time."""
    return CPU_GRID // 2 if on_cpu() else preferred_grid()


def is_worth_measuring(model: ModelDescription, room_bytes: int | None) -> bool:
    """Whether it matters beside the room there is how far the formula errs. `room_bytes` None: any amount."""
    most_bytes = model.memory.peak_bytes(preferred_grid(), model.context_length)
    return room_bytes is not None and most_bytes > room_bytes // _SMALL_SHARE


def measure_chunks(model: MlxModel, chunk: int, room_bytes: int | None) -> Generator[None, None, dict[int, int]]:
    """The peaks beyond the state by the chunk's end, for `PeakCorrection.of_load`; empty where there is no room to find
    out. Leaves nothing behind. The far chunk, as far as context and room allow, continues the first one's state,
    repeated: its size is what matters."""
    described = model.description
    shape, most_before = described.memory, described.context_length // chunk - 1
    if most_before < 0 or _exceeds(room_bytes, shape.state_bytes(chunk, chunk) + shape.peak_bytes(chunk, chunk)):
        return {}
    tokens = [(17 * index + 5) % min(_TOKENS, described.vocab_size) for index in range(chunk)]
    peaks: dict[int, int] = {}
    try:
        model.open(_ID)
        peaks[chunk] = model.measured_prefill(_ID, tokens)
        yield
        for num_before in range(min(DEEP_CHUNKS, most_before) if described.layout.is_reusable else 0, 0, -1):
            end = (num_before + 1) * chunk
            # A peak grows no faster than the tokens, and the state is there twice while it is put together.
            if _exceeds(room_bytes, 2 * shape.state_bytes(end, chunk) + peaks[chunk] * (num_before + 1)):
                continue
            (block,) = model.capture_blocks(_ID, [(0, chunk)])
            model.restore(_ID, end - chunk, [block] * num_before, model.capture_snapshot(_ID, chunk))
            yield
            peaks[end] = model.measured_prefill(_ID, tokens)
            break
    except Exception as error:  # whatever a family's code does with a state that no prompt gives
        _logger.info("a chunk of %s could not be measured, its memory is estimated: %s", described.id, error)
    finally:
        model.close([_ID])
    return peaks


def _exceeds(room_bytes: int | None, num_bytes: int) -> bool:
    return room_bytes is not None and num_bytes > room_bytes
