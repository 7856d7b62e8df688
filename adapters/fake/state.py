"""The state of one sequence of the toy model: its leaves, and the images of its prompt."""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from adapters.fake.leaves import Leaf, RecurrentLeaf, TokenLeaf, Words, pack, unpack
from adapters.fake.vision import ToyWords
from application.ports.compute import DecodeStart, Images
from application.ports.state_access import StateMisfit
from domain.errors import ComputeFailed
from domain.ids import GroupIndex
from domain.models.state_layout import HitPolicy, LayerState, LeafPath, StateGroup, StateKind, StateLayout
from domain.prefix.prompt_content import MediaSpan
from domain.prefix.record import GroupPayloads, StatePayload
from domain.request.stream import TokenLogprob


@dataclass(slots=True)
class ToyState:
    """`media`: the images of the prompt, which shift the places of the tokens behind them. `start`: set while decoding.
    `calls`: the number of each operation so far."""

    leaves: dict[LeafPath, Leaf]
    position: int = 0
    start: DecodeStart | None = None
    feed: int = -1
    output_ids: list[int] = field(default_factory=list[int])
    ahead: tuple[int, TokenLogprob | None] | None = None
    media: tuple[MediaSpan, ...] = ()
    is_scored: bool = False
    calls: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def empty(cls, layout: StateLayout) -> "ToyState":
        return cls({path: _new_leaf(layer) for path, layer in layout.leaves()})

    @classmethod
    def refilled(
        cls, layout: StateLayout, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads
    ) -> "ToyState":
        """Returns the state that was captured. Raises as `StateAccess.restore`."""
        state = cls.empty(layout)
        state.position = position
        try:
            for group in layout.groups:
                state._refill(group, blocks, snapshot)
        except Exception as error:
            failure = StateMisfit if isinstance(error, (ValueError, KeyError)) else ComputeFailed
            raise failure(f"cannot restore at {position}: {error}") from error
        return state

    def copied(self) -> "ToyState":
        """Returns the state of another sequence that continues from here."""
        return ToyState(deepcopy(self.leaves), self.position, is_scored=self.is_scored, media=self.media)

    @property
    def place(self) -> int:
        """The place of the next token, as the model counts."""
        return self.position - sum(span.shift for span in self.media if span.end <= self.position)

    def features(self, chunk: int, images: Images, *, is_whole: bool) -> dict[int, int]:
        """Returns the features of the next `chunk` tokens by their positions."""
        found, end = dict[int, int](), self.position + chunk
        for span in (span for span in self.media if span.start < end and self.position < span.end):
            if is_whole and end < span.end:
                raise RuntimeError(f"a chunk ends at {end}, inside the image {span.start}..{span.end}")
            features = images[span.digest]
            assert isinstance(features, ToyWords)
            places = [span.start + at for run in span.embedded or ((0, span.length),) for at in range(*run)]
            found.update(zip(places, features.words, strict=True))
        return found

    def slices(self, layout: StateLayout, start: int, end: int) -> GroupPayloads:
        """Returns the span of every token group; a windowed group that lost it is left out."""
        groups: dict[GroupIndex, StatePayload] = {}
        for group in layout.groups:
            parts: list[Words] = []
            for path in group.leaves:
                leaf = self.leaves[path]
                part = leaf.capture(start, end) if isinstance(leaf, TokenLeaf) else None
                if part is not None:
                    parts.append(part)
            if len(parts) == len(group.leaves):
                groups[group.index] = pack(parts, is_sliced=True)
        return groups

    def snapshot(self, layout: StateLayout, block_start: int) -> GroupPayloads:
        """Returns what `capture_snapshot` does."""
        groups = dict(self.slices(layout, block_start, self.position)) if block_start < self.position else {}
        for group in layout.groups:
            if group.policy is HitPolicy.SNAPSHOT:
                words = [leaf.words for path in group.leaves if isinstance(leaf := self.leaves[path], RecurrentLeaf)]
                groups[group.index] = pack(words, is_sliced=False)
        return groups

    def _refill(self, group: StateGroup, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        sources = [snapshot] if group.policy is HitPolicy.SNAPSHOT else [*blocks, snapshot]
        pieces = [unpack(source[group.index].buffers()) for source in sources if group.index in source]
        if any(len(piece) != len(group.leaves) for piece in pieces):
            raise ValueError(f"group {group.index} does not have {len(group.leaves)} tensors")
        for number, path in enumerate(group.leaves):
            self.leaves[path].refill([piece[number] for piece in pieces], self.position)


def _new_leaf(layer: LayerState) -> Leaf:
    if layer.kind is StateKind.RECURRENT:
        return RecurrentLeaf()
    return TokenLeaf(layer.window or 1) if layer.kind is StateKind.WINDOWED else TokenLeaf()
