"""A loaded model on MLX: open sequences, prefill one at a time, decode in groups, state in and out.

Prefill runs each sequence alone on plain caches, in the caller's chunks: that is correct for every family and makes
stored state reproducible. See `decoder` and `batch` for decoding and `caches` for the state.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import mlx.core as mx

from adapters.mlx.batch import Row
from adapters.mlx.caches.leaves import Caches, detach_from_chunk, live_arrays, new_caches
from adapters.mlx.caches.rows import cut_row, first_position, make_room_ahead
from adapters.mlx.decoder import Decoder, groups_of, leave_groups
from adapters.mlx.loaded_network import LoadedNetwork
from adapters.mlx.memory import PeakMeter, begin_peak, peak_bytes
from adapters.mlx.pooling import pool_rows
from adapters.mlx.runtime.arrays import ChunkQueue, checked_tokens, clear_beyond, clear_cache, evaluate_soon
from adapters.mlx.runtime.device import spare_bytes
from adapters.mlx.sampling.logit_rules import SamplerRow
from adapters.mlx.sampling.sampled import score_chunk
from adapters.mlx.sampling.sampler import GroupSampler
from adapters.mlx.state.capture import HeldRow, copy_blocks, copy_snapshot
from adapters.mlx.state.restore import GroupSpecs, restore_caches
from adapters.mlx.vision.passes import Pass, chunk_pass
from adapters.mlx.vision.tower import VisionEncoder
from application.ports.compute import (
    NO_DRAFTS,
    NO_IMAGES,
    DecodeResult,
    DecodeStart,
    Draft,
    Images,
    PromptScores,
)
from application.ports.state_access import LeftState
from application.ports.vision import ImageFeatures, PreparedImage
from domain.chunking import Chunking
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.models.capability import Pooling
from domain.models.model_card import ModelDescription
from domain.models.pace import Pace
from domain.prefix.prompt_content import MediaSpan
from domain.prefix.record import GroupPayloads
from domain.speculation.drafter import SpeculationMode
from domain.speculation.gain import WidthCosts

_logger = logging.getLogger("cairn.mlx")

CLEAR_EVERY_STEPS = 256
"""The number of decode steps after which unused buffers are returned to the system."""


class MlxModel:
    """A LoadedModel on MLX; see the port for the contract. Compute thread only."""

    def __init__(
        self,
        network: Any,
        description: ModelDescription,
        num_logits: int,
        specs: GroupSpecs,
        *,
        runs_ahead: bool = False,
        meter: PeakMeter | None = None,
        vision: VisionEncoder | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`network`: an mlx-lm model, evaluated on this thread. `num_logits`: width of its output. `specs`: the pattern
        of captured state, by group. `runs_ahead`: a prefill chunk may be under way when `prefill` returns. `meter`:
        corrects the description's memory; None for one without a correction. `vision`: None for a model that does not
        see. `pace`: measures each chunk; None where it is not kept. `assembly.assemble` returns all of them."""
        self._network = LoadedNetwork(network)
        self._description = description
        self._num_logits = num_logits
        self._specs = specs
        self._rows: dict[SequenceId, Row] = {}
        self._left: dict[SequenceId, _LeftRow] = {}
        self._decoder = Decoder(description, self._network)
        self._num_steps = 0
        self._chunks = ChunkQueue(runs_ahead)
        self._meter = meter or PeakMeter(description.memory, runs_ahead=runs_ahead)
        self._spare_bytes = spare_bytes()
        self._vision = vision
        self._pace = pace or Pace()

    @property
    def description(self) -> ModelDescription:
        return self._description

    def open(self, id: SequenceId) -> None:
        if id in self._rows:
            raise RuntimeError(f"sequence {id} is open already")
        self._rows[id] = Row(id, new_caches(self._network.module))

    def position(self, id: SequenceId) -> int:
        return self._rows[id].position

    def open_ids(self) -> frozenset[SequenceId]:
        return frozenset(self._rows)

    def restore(self, id: SequenceId, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        row = self._rows[id]
        leave_groups([row])
        self._rows[id] = row = row.of_prompt(id, new_caches(self._network.module))
        if position == 0:
            return
        caches = new_caches(self._network.module)
        try:
            restore_caches(caches, self._description.layout, self._specs, position, blocks, snapshot)
        except ComputeFailed:
            raise
        except Exception as error:
            raise ComputeFailed(f"cannot restore the state at position {position}: {error}") from error
        row.caches, row.position = caches, position

    def set_media(self, id: SequenceId, media: Sequence[MediaSpan]) -> None:
        row = self._row_of_prompt(id)
        if row.position or self._vision is None:
            raise RuntimeError(f"sequence {id} is not empty, or the model does not see")
        row.media, row.shift = tuple(media), sum(span.shift for span in media)

    def encode_image(self, image: PreparedImage) -> ImageFeatures:
        if self._vision is None:
            raise ComputeFailed("this model does not see images")
        self._chunks.finish()
        features = self._vision.encode(image)
        self._describe_memory()
        clear_beyond(self._spare_bytes)
        return features

    def prefill(
        self,
        id: SequenceId,
        token_ids: Sequence[int],
        *,
        num_prompt_logprobs: int | None = None,
        images: Images = NO_IMAGES,
    ) -> PromptScores:
        row, begun = self._row_of_prompt(id, token_ids), perf_counter()
        try:
            is_measured = num_prompt_logprobs is None and self._meter.begin(len(token_ids), self._chunks.finish)
            logits = self._feed(row, token_ids, images)
            scores = self._score(row, logits, token_ids, num_prompt_logprobs)
            self._chunks.put(live_arrays(row.caches))  # without the logits, which are not needed
            if is_measured and self._meter.end(len(token_ids), row.position + len(token_ids), self._chunks.finish):
                self._describe_memory()
        except Exception as error:
            self.close([id])
            raise ComputeFailed(f"prefill failed: {error}") from error
        self._advance(row, len(token_ids), begun)
        clear_beyond(self._spare_bytes)
        return scores

    def measured_prefill(self, id: SequenceId, token_ids: Sequence[int]) -> int:
        """Computes a chunk like `prefill` and waits for it. Returns its peak memory above what it leaves, in bytes."""
        row = self._row_of_prompt(id, token_ids)
        self._chunks.finish()
        begin_peak()
        self._feed(row, token_ids)
        self._chunks.put(live_arrays(row.caches))
        self._chunks.finish()
        row.position += len(token_ids)
        return peak_bytes()

    def correct(self, chunk: int, peaks: Mapping[int, int]) -> None:
        """Corrects the memory estimate by what a load measured: see `PeakCorrection.of_load`."""
        self._meter.loaded(chunk, peaks)
        self._describe_memory()

    def chunk_by(self, chunking: Chunking) -> None:
        """Describes the chunks by this rule."""
        self._description = replace(self._description, chunking=chunking)
        if not self._description.image_is_whole:
            self._meter.chunk_by(chunking)
        self._describe_memory()

    def may_draft(self, mode: SpeculationMode, costs: WidthCosts) -> None:
        """Lets the drafters of `mode` propose tokens, by these measured costs of passes."""
        self._description = replace(self._description, speculation=mode, width_costs=costs)

    def start_decode(
        self,
        id: SequenceId,
        token_ids: Sequence[int],
        start: DecodeStart,
        *,
        num_prompt_logprobs: int | None = None,
        images: Images = NO_IMAGES,
    ) -> PromptScores:
        row, begun = self._row_of_prompt(id, token_ids), perf_counter()
        try:
            logits = self._feed(row, token_ids, images)
            row.sampler = SamplerRow(start, self._num_logits)
            alone = GroupSampler([row.sampler])
            scores = self._score(row, logits, token_ids, num_prompt_logprobs)
            row.first = alone.sample(logits[-1:])
            self._chunks.put([*row.first.arrays(), *alone.history(), *live_arrays(row.caches)])
            alone.detach()
        except Exception as error:
            self.close([id])
            raise ComputeFailed(f"the end of the prompt failed: {error}") from error
        self._advance(row, len(token_ids), begun)
        return scores

    def decode(
        self, ids: Sequence[SequenceId], drafts: Mapping[SequenceId, Draft] = NO_DRAFTS
    ) -> Sequence[DecodeResult]:
        results = self._decoder.step([self._rows[id] for id in ids], self._description.memory, drafts)
        self.close([result.id for result in results if result.error is not None])
        self._num_steps += 1
        if self._num_steps % CLEAR_EVERY_STEPS == 0:
            clear_cache()
        return results

    def pool(self, id: SequenceId, rows: Sequence[Sequence[int]], pooling: Pooling) -> Sequence[bytes]:
        row, vocab_size = self._row_of_prompt(id), self._description.vocab_size
        try:
            return pool_rows(self._network.module, row.caches, rows, pooling, vocab_size)
        except Exception as error:
            self.close([id])
            raise ComputeFailed(f"pooling failed: {error}") from error
        finally:
            clear_beyond(self._spare_bytes)

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        return copy_blocks(self._description.layout, self._held(id), spans)

    def capture_snapshot(self, id: SequenceId, block_start: int) -> GroupPayloads:
        return copy_snapshot(self._description.layout, self._held(id), block_start)

    def close(self, ids: Sequence[SequenceId]) -> None:
        rows = [row for id in ids if (row := self._rows.pop(id, None)) is not None]
        leave_groups(rows)
        if rows and not self._rows:
            clear_cache()

    def keep_live(self, id: SequenceId, *, may_copy: bool = True) -> LeftState | None:
        try:
            left = _left_of(self._rows[id], may_copy=may_copy)
            found = left.described() if left is not None else None
        except Exception as error:
            _logger.warning("the state of sequence %s could not be kept: %s", id, error)
            left = found = None
        if left is not None:
            self._left[id] = left
        self.close([id])
        return found

    def left_ids(self) -> frozenset[SequenceId]:
        return frozenset(self._left)

    def drop(self, ids: Sequence[SequenceId]) -> None:
        dropped = [left for id in ids if (left := self._left.pop(id, None)) is not None]
        if dropped and not self._rows:
            dropped.clear()
            clear_cache()

    def take_over(self, id: SequenceId, left: SequenceId, position: int) -> None:
        row = self._row_of_prompt(id)
        if row.position:
            raise RuntimeError(f"sequence {id} has state already")
        taken = self._left.pop(left)
        try:
            cut_row(taken.caches, taken.num_tokens, position)
        except Exception as error:
            raise ComputeFailed(f"cannot take over a state at position {position}: {error}") from error
        row.caches, row.position = taken.caches, position

    def give_back(self) -> None:
        """Frees the spare rows of all batches."""
        for group in groups_of(self._rows.values()):
            group.give_back()

    def release(self) -> None:
        """Closes every sequence and frees the weights. The model is unusable afterwards."""
        self._rows.clear()
        self._left.clear()
        self._chunks.drop()
        self._network.release()
        self._vision = None
        clear_cache()

    def _row_of_prompt(self, id: SequenceId, token_ids: Sequence[int] | None = None) -> Row:
        row = self._rows[id]
        if row.sampler is not None or (token_ids is not None and not token_ids):
            raise RuntimeError(f"sequence {id} decodes already, or token_ids is empty")
        return row

    def _advance(self, row: Row, num_tokens: int, begun: float) -> None:
        start, row.position = row.position, row.position + num_tokens
        self._pace.add(start, row.position, perf_counter() - begun)

    def _feed(self, row: Row, token_ids: Sequence[int], images: Images = NO_IMAGES) -> mx.array:
        """Appends tokens to the state and returns their logits [tokens, vocab]. All lazy."""
        tokens = checked_tokens(token_ids, self._description.vocab_size)[None]
        make_room_ahead(row.caches, len(token_ids))
        seen = Pass(tokens, row.caches)
        if self._vision is not None and row.media:
            seen = chunk_pass(self._network.module, self._vision.scheme, tokens, row, images)
        logits = self._network.forward(*seen)[0]
        detach_from_chunk(row.caches)
        return logits

    def _score(self, row: Row, logits: mx.array, token_ids: Sequence[int], num_tops: int | None) -> PromptScores:
        before, row.last_logits = row.last_logits, None
        if num_tops is None:
            return ()
        scores, row.last_logits = score_chunk(logits, token_ids, before, num_tops)
        return scores

    def _describe_memory(self) -> None:
        memory = self._meter.shape
        memory = memory if self._vision is None else replace(memory, image=self._vision.cost)
        self._description = replace(self._description, memory=memory)

    def _held(self, id: SequenceId) -> HeldRow:
        row = self._rows[id]
        if row.group is None:
            return HeldRow(row.caches, 0, row.position)
        if not row.group.caches:
            raise ComputeFailed(f"the state of sequence {id} was lost: {row.failure}")
        return HeldRow(row.group.caches, row.group.rows.index(row), row.position)


@dataclass(frozen=True, slots=True)
class _LeftRow:
    """The state of a sequence that ended: plain caches of `num_tokens` tokens, for another sequence to take over."""

    caches: Caches
    num_tokens: int

    def described(self) -> LeftState:
        size_bytes = sum(array.nbytes for array in live_arrays(self.caches))
        return LeftState(self.num_tokens, first_position(self.caches, self.num_tokens), size_bytes)


def _left_of(row: Row, *, may_copy: bool) -> _LeftRow | None:
    """Takes a row out of its group and returns its state; None if there is none."""
    if row.failure is not None or not row.position:
        return None
    caches = row.caches if row.group is None else row.group.take_out(row, may_copy=may_copy)
    if not caches:
        return None
    # A recurrent state may still be a graph, which keeps its inputs alive.
    evaluate_soon(live_arrays(caches))
    return _LeftRow(caches, row.position)
