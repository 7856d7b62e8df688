"""A model ready for requests, and what is known of one before and while it is loaded."""

from dataclasses import dataclass

from application.ports.tokenizer import Tokenizer
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.models.model_turns import Residence
from domain.request.sampling import SamplingDefaults


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`reuse_note`: why its prompts are never reused; empty when they are. `sampling`: for what requests leave open."""

    source: ModelSource
    tokenizer: Tokenizer
    description: ModelDescription
    reuse_note: str
    sampling: SamplingDefaults = SamplingDefaults()


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that may be loaded. `weight_bytes`: what its weights will take. `sampling`: as in ServedModel."""

    source: ModelSource
    tokenizer: Tokenizer
    options: LoadOptions
    weight_bytes: int
    sampling: SamplingDefaults


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """Where a model stands in the pool. `idle_ttl_s`: after how long without a lease it is unloaded; None: only to make
    room."""

    residence: Residence = Residence.ABSENT
    num_leases: int = 0
    is_pinned: bool = False
    idle_ttl_s: int | None = None
