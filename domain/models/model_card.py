"""A model before and after it is loaded: its source, vocabulary, load options, description, and its aliases."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from hashlib import sha256

from domain.chunking import PLAIN, Chunking
from domain.errors import require
from domain.ids import ModelId
from domain.memory.kv_bits import KVBits
from domain.memory.shape import MemoryShape
from domain.models.capability import PLAIN_USE, Capability, ModelUse
from domain.models.pace import BucketPaces
from domain.models.state_layout import StateLayout
from domain.models.weight_form import WeightForm
from domain.speculation.drafter import Drafter, SpeculationMode
from domain.speculation.gain import WidthCosts


class DecodeMode(Enum):
    """The way a model decodes. BATCHED: many sequences in one forward pass. SINGLE: one, since the probe at load found
    batching wrong or unsupported."""

    BATCHED = "batched"
    SINGLE = "single"


class ModelOrigin(Enum):
    """The place of a model's files. HUB: the hub's cache. LOCAL: another folder. The values are on the wire."""

    EMBEDDED = "embedded"
    HUB = "hub"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The files of a model. `path`: a local folder; `created_s`: Unix time of the newest file. `file_bytes`: length of
    the weight files. `adapter`: folder of a LoRA adapter; empty for none. `note`: a warning for users, such as an
    embedded model's limits; usually empty. `use`, `form`: by its files."""

    id: ModelId
    path: str
    created_s: int = 0
    owned_by: str = "local"
    file_bytes: int = 0
    adapter: str = ""
    note: str = ""
    use: ModelUse = PLAIN_USE
    form: WeightForm = WeightForm()
    origin: ModelOrigin = ModelOrigin.LOCAL

    def check(self, needed: Capability) -> None:
        """Raises InvalidRequest for a request that the model cannot answer, naming what it can."""
        can = self.use.capabilities
        able = " and ".join(one.value for one in Capability if one in can)
        require(needed in can, "model", f"{self.id} cannot {needed.value}: it can {able}; name another model")

    def without_images(self, why: str) -> "ModelSource":
        """Returns the source of a model that serves text only although it has a tower, with a note that says why."""
        use = replace(self.use, capabilities=self.use.capabilities - {Capability.SEE}, unseen=why)
        return replace(self, use=use, note=f"{self.note} Its images are not seen: {why}.".strip())


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens. `tokens`: the bytes of each by id, empty for an id without text. `special`: the names of
    special tokens by id. `eos_token_ids`: the tokens that end an answer."""

    tokens: tuple[bytes, ...]
    special: Mapping[int, str] = field(default_factory=dict[int, str])
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of a load. `dtype`: of the computation, `float32`, `bfloat16`, `float16`, or `auto` for the engine's
    choice. `speculation`: the drafters that may be used. `draft`: folder of a draft model; empty for none. `salt`: of
    the model, hashed with the server's and a request's into its prefixes. `weight_bytes`: expected size of the weights;
    0 if unknown. `room_bytes`: memory that measuring may take beyond them; None for any. `note`: a warning of the text
    side, repeated in the report of the load. `vocabulary`: None if answers cannot be constrained by a grammar.
    `context_length`: by the settings; None for the model's own. `kv_bits`: of full KV; None for KV as it is
    computed."""

    dtype: str = "auto"
    salt: str = ""
    speculation: SpeculationMode = SpeculationMode.AUTO
    draft: str = ""
    weight_bytes: int = 0
    room_bytes: int | None = None
    note: str = ""
    vocabulary: Vocabulary | None = field(default=None, repr=False)
    context_length: int | None = None
    kv_bits: KVBits | None = None


@dataclass(frozen=True, slots=True)
class ContextLength:
    """The tokens of one sequence, prompt and completion together. `origin`: where the number comes from. `most`: rows
    of a learned table of positions; None for a model without one, which computes any position."""

    length: int
    origin: str = ""
    most: int | None = None

    def of(self, wanted: int) -> "ContextLength":
        """The same with the length that the settings ask for, as far as there are positions."""
        length = wanted if self.most is None else min(wanted, self.most)
        beyond = f"; beyond the {self.length} of {self.origin}, answers may be poor" if length > self.length else ""
        return replace(self, length=length, origin=f"model.context_length{beyond}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A loaded model.

    `vocab_size`: rows of the embedding; token ids must be below it. `weight_bytes`: resident bytes. `dtype`: of
    activations. `decode_note`: why decode is SINGLE; `reuse_note`: why its state must not be reused although it can be
    captured.
    `weights_digest`: identifies weights, config and quantisation by content; `adapter_digest`: the adapter, empty for
    none. `runtime`: the libraries to the minor version (`mlx-lm 0.32`); states of different runtimes are not shared.
    `arithmetic`: the device and its BLAS, which decide rounding; states that must be equal to the bit are not shared
    between different ones. `memory`: the memory that it needs. `speculation`: the drafters that are used;
    `own_drafter`: its head or draft model, which is loaded with it; None for neither. `drafter_note`: why the head in
    its files is not used, or why drafts are not verified. `width_costs`: measured while it was loaded; None where
    drafts are not verified. `image_is_whole`: the tokens of an image attend to all of it, so that no chunk may end
    inside one. `chunking`: the rule of its chunks. `kv_bits`: of its full KV; None where that is as it is computed.
    `pace`: of computing prompts, as earlier starts measured it.
    """

    id: ModelId
    model_type: str
    vocab_size: int
    context: ContextLength
    eos_token_ids: frozenset[int]
    dtype: str
    weight_bytes: int
    layout: StateLayout
    decode_mode: DecodeMode
    decode_note: str = ""
    reuse_note: str = ""
    weights_digest: bytes = b""
    adapter_digest: bytes = b""
    runtime: str = ""
    arithmetic: str = ""
    memory: MemoryShape = MemoryShape()
    speculation: SpeculationMode = SpeculationMode.OFF
    own_drafter: Drafter | None = None
    drafter_note: str = ""
    width_costs: WidthCosts | None = None
    image_is_whole: bool = False
    chunking: Chunking = PLAIN
    kv_bits: KVBits | None = None
    pace: BucketPaces = ()

    @property
    def system_fingerprint(self) -> str:
        """A name of all that decides its answers besides a request. Clients compare it to notice a change."""
        parts = [self.weights_digest.hex(), self.adapter_digest.hex(), self.dtype, self.runtime, self.arithmetic]
        parts += [] if self.kv_bits is None else [str(self.kv_bits)]
        return f"fp_{sha256(repr(tuple(parts)).encode()).hexdigest()[:10]}"

    @property
    def context_length(self) -> int:
        return self.context.length

    def with_context(self, wanted: int | None) -> "ModelDescription":
        """The same model with a context of `wanted` tokens, or of as many as it has positions for; None for no
        change."""
        return self if wanted is None else replace(self, context=self.context.of(wanted))


# ---- aliases ---------------------------------------------------------------------------------------------------------

DEFAULT = ""
"""The target of an alias that stands for the server's default model."""

DEFAULT_NAME = "default"
"""The name of the default model in requests whose client or router knows no other; every server has it."""


def parsed_alias(text: str) -> tuple[str, str]:
    """Splits `PATTERN=MODEL` into pattern and model; `PATTERN` alone stands for the default model."""
    pattern, _, model = text.partition("=")
    return pattern.strip(), model.strip()


def answering_model(asked: str, aliases: Mapping[str, str], *, served: Collection[str], default: str) -> str:
    """The model that serves requests for `asked`. `aliases`: patterns of names (`*`, `?`, `[...]`), each with a model;
    the first match counts. A served model's own name comes first, and a name without a match is unchanged, but for
    `default`.

    Agents ask for models by their vendor's names, some of them despite their configuration: Claude Code's subagents
    want `claude-haiku-...`."""
    if asked in served:
        return asked
    target = next((model for pattern, model in aliases.items() if fnmatchcase(asked, pattern)), None)
    if target is None:
        return default if asked == DEFAULT_NAME else asked
    return default if target == DEFAULT else target
