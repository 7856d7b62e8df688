"""A toy language model whose next token depends on the whole state of every layer.

Each token's hidden value is a function of the token, its position and the digests of all leaves, and each leaf takes in
a function of that value. So a value depends on the entire prefix, as a real model's does, and a wrong restore changes
every later token.
"""

import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from threading import get_ident

from adapters.fake.leaves import GOLDEN, MASK, Words, mix
from adapters.fake.options import VECTOR_SIZE, FakeOptions
from adapters.fake.sampler import next_token, score_token
from adapters.fake.state import ToyState
from adapters.fake.vision import ToyWords
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
from domain.errors import ComputeFailed, DomainError
from domain.ids import SequenceId
from domain.models.capability import Pooling
from domain.models.model_card import ContextLength, ModelDescription, ModelSource
from domain.prefix.prompt_content import MediaSpan
from domain.prefix.record import GroupPayloads
from domain.request.stream import TokenLogprob
from domain.speculation.drafter import Drafter, SpeculationMode


class FakeModel:
    """A LoadedModel in plain Python: about 5 microseconds a token and layer.

    `num_encoded`: passes of the tower. Misuse (an id that is not open, an empty chunk, a span beyond the position,
    another thread) raises RuntimeError.
    """

    def __init__(
        self, source: ModelSource, options: FakeOptions, speculation: SpeculationMode = SpeculationMode.AUTO
    ) -> None:
        self._options = options
        self._states: dict[SequenceId, ToyState] = {}
        self._left: dict[SequenceId, ToyState] = {}
        self._thread = get_ident()
        self.num_encoded = 0
        self._salts = {
            path: mix(options.weights * GOLDEN + index) for index, (path, _) in enumerate(options.layout.leaves())
        }
        self._description = ModelDescription(
            id=source.id,
            model_type="fake",
            vocab_size=options.vocab_size,
            context=ContextLength(options.context_length, "config.json"),
            eos_token_ids=frozenset({options.eos_id}),
            dtype="uint64",
            weight_bytes=options.weight_bytes,
            layout=options.layout,
            decode_mode=options.decode_mode,
            reuse_note=options.reuse_note,
            memory=options.memory,
            speculation=SpeculationMode.OFF if options.width_costs is None else speculation,
            own_drafter=Drafter.HEAD if options.drafter and speculation.allows(Drafter.HEAD) else None,
            width_costs=options.width_costs,
            image_is_whole=options.image_is_whole,
            chunking=options.chunking,
            weights_digest=sha256(f"fake weights {options.weights}".encode()).digest(),
        )

    @property
    def description(self) -> ModelDescription:
        return self._description

    def open(self, id: SequenceId) -> None:
        self._check_thread()
        if id in self._states:
            raise RuntimeError(f"sequence {id} is open already")
        self._states[id] = self._empty()

    def restore(self, id: SequenceId, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        self._check_thread()
        before, state = self._state(id), self._empty()
        try:
            self._begin("restore", id)
            state = ToyState.refilled(self._options.layout, position, blocks, snapshot)
        finally:
            state.calls, state.media = before.calls, before.media
            self._states[id] = state

    def position(self, id: SequenceId) -> int:
        return self._state(id).position

    def set_media(self, id: SequenceId, media: Sequence[MediaSpan]) -> None:
        state = self._begin("set_media", id)
        if state.position or self._options.images is None:
            raise RuntimeError(f"sequence {id} is not empty, or the model does not see")
        state.media = tuple(media)

    def encode_image(self, image: PreparedImage) -> ImageFeatures:
        self._check_thread()
        self.num_encoded += 1
        if self._options.hook is not None:
            self._options.hook("encode_image", None, self.num_encoded - 1)
        return ToyWords(Words("Q", [mix(word + self._options.weights * GOLDEN) for word in ToyWords.of(image).words]))

    def prefill(
        self,
        id: SequenceId,
        token_ids: Sequence[int],
        *,
        num_prompt_logprobs: int | None = None,
        images: Images = NO_IMAGES,
    ) -> PromptScores:
        state = self._begin("prefill", id)
        if not token_ids or state.start is not None:
            raise RuntimeError(f"sequence {id} decodes already, or token_ids is empty")
        return self._feed(state, token_ids, num_prompt_logprobs, images)

    def start_decode(
        self,
        id: SequenceId,
        token_ids: Sequence[int],
        start: DecodeStart,
        *,
        num_prompt_logprobs: int | None = None,
        images: Images = NO_IMAGES,
    ) -> PromptScores:
        state = self._begin("start_decode", id)
        if not token_ids or state.start is not None:
            raise RuntimeError(f"sequence {id} decodes already, or token_ids is empty")
        scores = self._feed(state, token_ids, num_prompt_logprobs, images)
        try:
            state.output_ids = list(start.output_ids)
            state.start, state.ahead = start, self._choose(state, start)
        except DomainError:
            self._states.pop(id, None)
            raise
        return scores

    def decode(
        self, ids: Sequence[SequenceId], drafts: Mapping[SequenceId, Draft] = NO_DRAFTS
    ) -> Sequence[DecodeResult]:
        return [self._decode_one(id, drafts.get(id)) for id in ids]

    def pool(self, id: SequenceId, rows: Sequence[Sequence[int]], pooling: Pooling) -> Sequence[bytes]:
        """A vector of VECTOR_SIZE numbers in 0..1, each a function of the whole text; the first is the score."""
        state = self._begin("pool", id)
        if not all(rows) or state.start is not None:
            raise RuntimeError(f"sequence {id} decodes already, or a row is empty")
        size, values = 1 if pooling.score_ids else pooling.dimensions or VECTOR_SIZE, list[bytes]()
        for row in rows:
            whole = state.copied()
            for token in row:
                self._append(whole, token, 1)
            digest = self._reduce(whole)
            values.append(struct.pack(f"<{size}f", *(mix(digest + index) / (MASK + 1) for index in range(size))))
        return values

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        state = self._begin("capture_blocks", id)
        if any(not 0 <= start < end <= state.position for start, end in spans):
            raise RuntimeError(f"spans {spans} reach beyond position {state.position}")
        return [state.slices(self._options.layout, start, end) for start, end in spans]

    def capture_snapshot(self, id: SequenceId, block_start: int) -> GroupPayloads:
        state = self._begin("capture_snapshot", id)
        return state.snapshot(self._options.layout, block_start)

    def close(self, ids: Sequence[SequenceId]) -> None:
        self._check_thread()
        for id in ids:
            self._states.pop(id, None)

    def keep_live(self, id: SequenceId, *, may_copy: bool = True) -> LeftState | None:
        try:
            self._begin("keep_live", id)
        except DomainError:
            return None
        state = self._states.pop(id)
        if not state.position or not (may_copy or not self._states):  # beside other sequences it is a row of a batch
            return None
        self._left[id] = state
        first = 1 if all(leaf.can_cut for leaf in state.leaves.values()) else state.position
        return LeftState(state.position, first, sum(leaf.size_bytes for leaf in state.leaves.values()))

    def left_ids(self) -> frozenset[SequenceId]:
        return frozenset(self._left)

    def drop(self, ids: Sequence[SequenceId]) -> None:
        self._check_thread()
        for id in ids:
            self._left.pop(id, None)

    def take_over(self, id: SequenceId, left: SequenceId, position: int) -> None:
        own = self._state(id)
        if own.position or own.start is not None or left not in self._left:
            raise RuntimeError(f"sequence {id} has state already, or {left} left none")
        taken = self._left.pop(left)
        self._begin("take_over", id)
        try:
            for leaf in taken.leaves.values():
                leaf.cut(position, taken.position)
        except ValueError as error:
            raise ComputeFailed(f"cannot take over at {position}: {error}") from error
        own.leaves, own.position = taken.leaves, position

    def open_ids(self) -> frozenset[SequenceId]:
        return frozenset(self._states)

    def state_bytes(self) -> int:
        """The bytes of all sequences' states, open and left."""
        states = (*self._states.values(), *self._left.values())
        return sum(leaf.size_bytes for state in states for leaf in state.leaves.values())

    def _decode_one(self, id: SequenceId, draft: Draft | None) -> DecodeResult:
        try:
            state = self._begin("decode", id)
            if state.start is None:
                raise RuntimeError(f"sequence {id} has not started to decode")
            proposal, drafter = self._proposed(state, state.start, draft)
            given = self._next(state, state.start, proposal)
        except DomainError as error:
            self._states.pop(id, None)
            return DecodeResult(id, error=error)
        tokens, logprobs = zip(*given, strict=True)
        found = tuple(logprob for logprob in logprobs if logprob is not None)
        return DecodeResult(id, tokens, found, None, len(proposal), drafter if proposal else None)

    def _next(
        self, state: ToyState, start: DecodeStart, proposal: Sequence[int]
    ) -> list[tuple[int, TokenLogprob | None]]:
        """Returns the next token, and the tokens of a proposal that are what follows it."""
        before, given = state.position, [state.ahead or self._step(state, start)]
        for guess in (*proposal, None):
            state.feed, state.ahead = given[-1][0], None
            state.output_ids.append(state.feed)
            if proposal or self._options.runs_ahead:
                state.ahead = self._step(state, start)
            if state.ahead is None or state.ahead[0] != guess:
                break
            given.append(state.ahead)
        if state.position > before:
            self._settle(state, state.position - before)
        return given

    def _proposed(
        self, state: ToyState, start: DecodeStart, draft: Draft | None
    ) -> tuple[Sequence[int], Drafter | None]:
        """Returns the tokens to verify behind the next one, which is chosen if it was not, and their drafter."""
        if draft is None:
            return (), None
        if state.ahead is None:
            state.ahead = self._step(state, start)
        next_id, ends, own = state.ahead[0], start.eos_token_ids, self._options.drafter
        found: Sequence[int] = draft.token_ids[1:] if draft.token_ids[:1] == (next_id,) else ()
        drafter = draft.drafter
        if not found and draft.depth and own is not None:
            found, drafter = own([*start.prompt_ids, *state.output_ids, next_id])[: draft.depth], Drafter.HEAD
        size = self._options.vocab_size if next_id not in ends else 0
        return tuple(takewhile(lambda id: 0 <= id < size and id not in ends, found)), drafter

    def _step(self, state: ToyState, start: DecodeStart) -> tuple[int, TokenLogprob | None]:
        self._append(state, state.feed, 1)
        if start.constraint is not None:
            start.constraint.accept(state.feed)
        return self._choose(state, start)

    def _choose(self, state: ToyState, start: DecodeStart) -> tuple[int, TokenLogprob | None]:
        return next_token(self._reduce(state), self._options, start, state.output_ids)

    def _feed(
        self, state: ToyState, token_ids: Sequence[int], num_logprobs: int | None, images: Images
    ) -> PromptScores:
        """Computes one chunk of the prompt."""
        scores: list[TokenLogprob | None] = []
        is_known = state.is_scored
        features = state.features(len(token_ids), images, is_whole=self._options.image_is_whole)
        for token in token_ids:
            if num_logprobs is not None:
                scored = score_token(self._reduce(state), self._options, token, num_logprobs) if is_known else None
                scores.append(scored)
                is_known = True
            self._append(state, token, len(token_ids), features.get(state.position, token + 1))
        state.is_scored = num_logprobs is not None
        self._settle(state, len(token_ids))
        return scores

    def _append(self, state: ToyState, token: int, chunk: int, value: int | None = None) -> None:
        """Feeds a token. `value`: stands for it in the state; None: its own."""
        if not 0 <= token < self._options.vocab_size:
            raise RuntimeError(f"token {token} is outside the vocabulary")
        noise = mix(chunk) if self._options.chunk_sensitive else 0
        value = token + 1 if value is None else value
        hidden = mix(self._reduce(state) + value * GOLDEN + state.place + noise)
        for path, leaf in state.leaves.items():
            leaf.append(mix(hidden ^ self._salts[path]))
        state.position += 1

    def _settle(self, state: ToyState, num_fed: int) -> None:
        for leaf in state.leaves.values():
            leaf.settle(num_fed)

    def _reduce(self, state: ToyState) -> int:
        total = self._options.weights * GOLDEN
        for leaf in state.leaves.values():
            total = (total * 31 + leaf.digest) & MASK
        return mix(total)

    def _empty(self) -> ToyState:
        return ToyState.empty(self._options.layout)

    def _begin(self, operation: str, id: SequenceId) -> ToyState:
        self._check_thread()
        state = self._state(id)
        count = state.calls[operation]
        state.calls[operation] += 1
        if self._options.hook is not None:
            try:
                self._options.hook(operation, id, count)
            except DomainError:
                self._states.pop(id, None)
                raise
        return state

    def _state(self, id: SequenceId) -> ToyState:
        if id not in self._states:
            raise RuntimeError(f"sequence {id} is not open")
        return self._states[id]

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise RuntimeError("the model belongs to the thread that loaded it")
