"""What is known of a model before and after it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from domain.ids import ModelId
from domain.memory.shape import MemoryShape
from domain.models.state_layout import StateLayout


class DecodeMode(Enum):
    """BATCHED: many sequences in one forward pass. SINGLE: the load-time probe found batching wrong or unsupported."""

    BATCHED = "batched"
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's files are. `path` is a local folder; `created_s` a Unix time (the newest file's). `file_bytes`:
    length of the weight files. `adapter`: folder of a LoRA adapter that is laid over the weights; empty for none.
    `note`: what people should know of it before they ask it anything; empty for models that somebody chose."""

    id: ModelId
    path: str
    created_s: int = 0
    owned_by: str = "local"
    file_bytes: int = 0
    adapter: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens. `tokens`: the bytes of each by id, empty for an id without text. `special`: the names of those
    that no text spells, by id. `eos_token_ids`: those that end an answer."""

    tokens: tuple[bytes, ...]
    special: Mapping[int, str] = field(default_factory=dict[int, str])
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is to be loaded. `dtype`: what to compute in, `float32`, `bfloat16` or `float16`; `auto` leaves that
    to the engine. `salt`: the model's own, which enters its prefixes beside the server's and a request's.
    `weight_bytes`: what its weights are expected to take; 0 where nobody knows. `room_bytes`: what measuring it may
    take beyond them; None: any amount. `note`: a warning of the text side that the report of the load repeats.
    `vocabulary`: None where answers cannot be held to a grammar."""

    dtype: str = "auto"
    salt: str = ""
    weight_bytes: int = 0
    room_bytes: int | None = None
    note: str = ""
    vocabulary: Vocabulary | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A loaded model, as the rest of the server needs to know it.

    `vocab_size`: rows of the embedding; token ids must be below it. `context_length`: tokens, prompt and completion
    together. `weight_bytes`: resident bytes. `dtype`: what activations are computed in. `decode_note`: why decode is
    SINGLE. `weights_digest` identifies weights, config and quantisation by content, and `adapter_digest` what is laid
    over them, empty for nothing. `runtime`: what computes it, to the minor version (`mlx-lm 0.32`); states of different
    runtimes are not shared. `arithmetic`: what rounds, the device and the library of its matrix products as they were
    found; states that must agree to the bit are not shared between different ones. `memory`: what it takes of it.
    """

    id: ModelId
    model_type: str
    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    dtype: str
    weight_bytes: int
    layout: StateLayout
    decode_mode: DecodeMode
    decode_note: str = ""
    weights_digest: bytes = b""
    adapter_digest: bytes = b""
    runtime: str = ""
    arithmetic: str = ""
    memory: MemoryShape = MemoryShape()

    def capped(self, context_length: int | None) -> "ModelDescription":
        """The same model, served with at most so many tokens; None leaves it as it is."""
        if context_length is None or context_length >= self.context_length:
            return self
        return replace(self, context_length=context_length)
