"""The options of a toy model: its layers, its weights (a number), its answers and its failures."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from adapters.fake.leaves import RECURRENT_WORDS, WORD_BYTES
from application.ports.vision import ImageProcessor
from domain.chunking import PLAIN, Chunking
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.memory.shape import ImageCost, MemoryShape, StateCost, StepCost
from domain.models.model_card import DecodeMode
from domain.models.state_layout import HitPolicy, LayerState, StateGroup, StateKind, StateLayout
from domain.speculation.gain import WidthCosts

EOS_ID = 258
PAD_ID = 259
"""The placeholder of an image."""

VOCAB_SIZE = 260
VECTOR_SIZE = 8

SLICED = LayerState(StateKind.SLICED, "FakeSliced")
RECURRENT = LayerState(StateKind.RECURRENT, "FakeRecurrent")


def windowed(window: int) -> LayerState:
    """A layer that attends to the last `window` tokens."""
    return LayerState(StateKind.WINDOWED, "FakeWindowed", window=window)


COMPOSITE = LayerState(StateKind.COMPOSITE, "FakePair", children=(RECURRENT, SLICED))

ATTENTION = StateLayout((SLICED, SLICED))
WINDOWED = StateLayout((windowed(40), SLICED, windowed(40)))
RECURRENT_ONLY = StateLayout((RECURRENT, RECURRENT))
HYBRID = StateLayout((RECURRENT, SLICED, RECURRENT))
COMPOSITE_PAIRS = StateLayout((COMPOSITE, COMPOSITE))
EVERYTHING = StateLayout((SLICED, windowed(24), RECURRENT, COMPOSITE, windowed(70)))
UNSUPPORTED = StateLayout((SLICED, LayerState(StateKind.UNSUPPORTED, "FakeOddCache")))

LAYOUTS: dict[str, StateLayout] = {
    "attention": ATTENTION,
    "windowed": WINDOWED,
    "recurrent": RECURRENT_ONLY,
    "hybrid": HYBRID,
    "composite": COMPOSITE_PAIRS,
    "everything": EVERYTHING,
    "unsupported": UNSUPPORTED,
}

Hook: TypeAlias = Callable[[str, SequenceId | None, int], None]
"""Called before each operation with its name (`prefill`, `decode`, `restore`, `capture_blocks`, ...), the sequence
(None for `load`) and how many times this operation has run for it before. It may wait, or raise: a DomainError is that
sequence's failure, any other exception a defect of the engine."""

Reply: TypeAlias = Callable[[IdRow], Sequence[int]]
"""Maps prompt ids to the exact tokens of the answer, to which EOS is added."""


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """The options of one toy model.

    `weights`: two models with the same number compute the same. `alphabet`: the likely tokens (bytes of printable ASCII
    by default, so that answers are text). `eos_every`: the average number of tokens between two EOS; 0 for none.
    `reply`: fixed answers instead of computed ones. `chunk_sensitive`: a chunk's length enters the state, as rounding
    does on real hardware, so that only canonical chunking reproduces a state. `runs_ahead`: decode feeds the token that
    it sampled at once, so `position` is one further. `drafter`: proposes tokens behind a text, as a model's own drafter
    does; None for none. `width_costs`: by which drafts pay; None: they are not verified. `images`: of its prompts;
    None: it does not see. `image_is_whole`: as in ModelDescription; a chunk that cuts an image is then misuse.
    `reuse_note`: as there. `chunking`: the rule of its chunks.
    `load_error`: `load` fails with this message, after `load_pieces` pieces and once `load_waits_for` is done.
    """

    layout: StateLayout = ATTENTION
    weights: int = 1
    vocab_size: int = VOCAB_SIZE
    alphabet: Sequence[int] = range(32, 127)
    eos_id: int = EOS_ID
    eos_every: int = 64
    context_length: int = 32_768
    weight_bytes: int = 1_000_000
    decode_mode: DecodeMode = DecodeMode.BATCHED
    reuse_note: str = ""
    reply: Reply | None = None
    hook: Hook | None = None
    chunk_sensitive: bool = False
    runs_ahead: bool = False
    drafter: Callable[[Sequence[int]], Sequence[int]] | None = None
    width_costs: WidthCosts | None = None
    images: ImageProcessor | None = None
    image_is_whole: bool = False
    chunking: Chunking = PLAIN
    load_error: str | None = None
    load_pieces: int = 0
    load_waits_for: Future[None] | None = None

    @property
    def memory(self) -> MemoryShape:
        """The memory that the model takes: exactly what its leaves hold."""
        states = tuple(_cost(group) for group in self.layout.groups)
        image = ImageCost() if self.images is None else IMAGE_COST
        return MemoryShape(weight_bytes=self.weight_bytes, states=states, image=image)


IMAGE_COST = ImageCost(prepared_bytes=WORD_BYTES, feature_bytes=WORD_BYTES, tower=StepCost(token_bytes=WORD_BYTES))


def _cost(group: StateGroup) -> StateCost:
    count = len(group.leaves)
    if group.policy is HitPolicy.SNAPSHOT:
        return StateCost(0, fixed_bytes=count * RECURRENT_WORDS * WORD_BYTES, step=1)
    return StateCost(count * WORD_BYTES, group.window, step=1)


def reply_with(text: str) -> Reply:
    """A Reply that answers every prompt with `text`, in the fake tokenizer's bytes."""
    token_ids = tuple(text.encode())
    return lambda _prompt_ids: token_ids
