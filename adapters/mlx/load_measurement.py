"""One chunk of the real size, measured at load where it begins a prompt and where it lies far behind: by these two
peaks the configuration's formula is corrected before anything is served."""

import logging
from collections.abc import Generator

from adapters.mlx.model import MlxModel
from domain.ids import SequenceId
from domain.memory.correction import DEEP_CHUNKS

_logger = logging.getLogger("cairn.memory")
_ID = SequenceId(-1)
_TOKENS = 100


def measure_chunks(model: MlxModel, chunk: int, room_bytes: int | None) -> Generator[None, None, dict[int, int]]:
    """The peaks beyond the state by the chunk's end, for `PeakCorrection.of_load`; empty where there is no room to find
    out. Leaves nothing behind. The far chunk continues the first one's state, repeated: its size is what matters."""
    described = model.description
    num_before = min(DEEP_CHUNKS, described.context_length // chunk - 1) if described.layout.is_reusable else 0
    shape, end = described.memory, (num_before + 1) * chunk
    needed_bytes = 2 * shape.state_bytes(end, chunk) + shape.peak_bytes(chunk, end)
    if num_before < 0 or (room_bytes is not None and needed_bytes > room_bytes):
        return {}
    tokens = [(17 * index + 5) % min(_TOKENS, described.vocab_size) for index in range(chunk)]
    peaks: dict[int, int] = {}
    try:
        model.open(_ID)
        peaks[chunk] = model.measured_prefill(_ID, tokens)
        yield
        if num_before:
            (block,) = model.capture_blocks(_ID, [(0, chunk)])
            model.restore(_ID, end - chunk, [block] * num_before, model.capture_snapshot(_ID, chunk))
            yield
            peaks[end] = model.measured_prefill(_ID, tokens)
    except Exception as error:  # whatever a family's code does with a state that no prompt gives
        _logger.info("a chunk of %s could not be measured, its memory is estimated: %s", described.id, error)
    finally:
        model.close([_ID])
    return peaks


__all__ = ("measure_chunks",)
