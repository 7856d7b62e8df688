"""Runs of one LoadedModel that must agree: computed cold, restored from captured state, decoded alone or in company.

Prompts are prefilled on a grid and their state is captured block by block on the way, as the prefix cache does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from application.ports.compute import DecodeStart, LoadedModel
from domain.ids import SequenceId
from domain.prefix.record import GroupPayloads, HostPayload, StatePayload, TensorSpec
from domain.request.sampling import SamplingParams
from domain.scheduling.plan_step import next_chunk_end

BLOCK = 32
GRID = 32
_ids = count(1)

StateBytes = dict[int, tuple[tuple[TensorSpec, bytes], ...]]
"""Captured state by group, as bytes: equal if and only if every bit is."""


@dataclass
class Captured:
    """State on the way to `position`: every full block before it, and a snapshot there."""

    position: int
    blocks: list[GroupPayloads] = field(default_factory=list)
    snapshot: GroupPayloads = field(default_factory=dict)

    def on_host(self) -> "Captured":
        """The same as plain bytes, as a store would give it back."""
        return Captured(self.position, [to_host(block) for block in self.blocks], to_host(self.snapshot))


def new_id() -> SequenceId:
    return SequenceId(next(_ids))


def prompt_of(length: int, salt: int = 0, vocab_size: int = 256) -> tuple[int, ...]:
    """A prompt without a pattern that a model could lean on."""
    return tuple((index * 7919 + index * index * 31 + salt * 104_729 + 3) % vocab_size for index in range(length))


def to_host(payloads: GroupPayloads) -> GroupPayloads:
    return {index: _host(payload) for index, payload in payloads.items()}


def _host(payload: StatePayload) -> HostPayload:
    return HostPayload(payload.specs, tuple(memoryview(bytes(data)) for data in payload.buffers()))


def state_bytes(payloads: GroupPayloads) -> StateBytes:
    return {
        int(index): tuple(zip(payload.specs, (bytes(data) for data in payload.buffers()), strict=True))
        for index, payload in payloads.items()
    }


def prefill(model: LoadedModel, id: SequenceId, tokens: Sequence[int], end: int, grid: int = GRID) -> None:
    """Compute up to `end` on the grid, from wherever the sequence is."""
    start = model.position(id)
    while start < end:
        bound = next_chunk_end(start, end, grid)
        model.prefill(id, tokens[start:bound])
        start = bound


def capture(model: LoadedModel, tokens: Sequence[int], position: int, grid: int = GRID) -> Captured:
    """Compute `tokens` up to `position` in a sequence of its own, capturing after every chunk, and close it."""
    id = new_id()
    model.open(id)
    found = Captured(position)
    while (start := model.position(id)) < position:
        prefill(model, id, tokens, next_chunk_end(start, position, grid), grid)
        firsts = range(len(found.blocks) * BLOCK, model.position(id) - BLOCK + 1, BLOCK)
        found.blocks += model.capture_blocks(id, [(first, first + BLOCK) for first in firsts])
    found.snapshot = model.capture_snapshot(id, len(found.blocks) * BLOCK)
    model.close([id])
    return found


def open_at(
    model: LoadedModel, tokens: Sequence[int], captured: Captured | None = None, grid: int = GRID
) -> SequenceId:
    """A sequence with all of `tokens` but the last computed, from `captured` on if given."""
    id = new_id()
    model.open(id)
    if captured is not None:
        model.restore(id, captured.position, captured.blocks, captured.snapshot)
        assert model.position(id) == captured.position
    prefill(model, id, tokens, len(tokens) - 1, grid)
    return id


def whole_state(model: LoadedModel, id: SequenceId) -> StateBytes:
    """Everything the sequence holds that resuming at its position needs, as bytes."""
    return state_bytes(model.capture_snapshot(id, 0))


def start_greedy(model: LoadedModel, id: SequenceId, tokens: Sequence[int], num_logprobs: int | None = None) -> None:
    """With all of `tokens` that the sequence does not hold yet as the end of the prompt."""
    sampling = SamplingParams(temperature=0, num_logprobs=num_logprobs)
    model.start_decode(id, tokens[model.position(id) :], DecodeStart(tuple(tokens), sampling, seed=1))


def continue_greedy(model: LoadedModel, id: SequenceId, tokens: Sequence[int], num_new: int) -> list[int]:
    """Decode alone and close."""
    start_greedy(model, id, tokens)
    output: list[int] = []
    for _ in range(num_new):
        (result,) = model.decode([id])
        assert result.error is None, result.error
        output.append(result.token_ids[0])
    model.close([id])
    return output
