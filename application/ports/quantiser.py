"""Port: quantised copies of models on this machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from domain.models.capability import ModelUse
from domain.models.quantisation import Quantisation, QuantPlan

RECEIPT = "cairn_quantize.json"
"""The file of a copy that says what it was made of, and how."""

_PARTIAL = ".quantising"


def partial_name(name: str) -> str:
    """Returns the name of the folder in which a copy of this name is made, beside its own."""
    return f".{name}{_PARTIAL}"


def name_of_partial(folder: str) -> str | None:
    """Returns the name of the copy that is made in a folder; None for any other folder."""
    name = folder[1 : -len(_PARTIAL)]
    return name if name and partial_name(name) == folder else None


@dataclass(frozen=True, slots=True)
class QuantOrder:
    """What to quantise, and how. `source` and `out`: folders; `out` must not exist. `recipe`: empty for one form, a
    name of mlx-lm's, `measured`, or that of a file whose `rules` are here (`domain.models.quantisation.by_rules`).
    `most_bytes`: of the result's weights, for `measured`; None: as many as the form would take. `checks`: compare the
    result with its source over a text."""

    source: str
    out: str
    use: ModelUse
    form: Quantisation
    recipe: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict[str, Any])
    most_bytes: int | None = None
    checks: bool = True


class QuantPhase(Enum):
    READING = "reading the source"
    MEASURING = "measuring"
    WRITING = "writing"
    CHECKING = "checking"


@dataclass(frozen=True, slots=True)
class QuantProgress:
    """`done` of `total`: bytes in READING and WRITING, layers in the others; a total of 0 is unknown."""

    phase: QuantPhase
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class QuantQuality:
    """The result against its source, over a text that ships with Cairn. `kl`: mean KL(source || result), in nats a
    token; `agreement`: the share of positions with the same likeliest token."""

    kl: float
    agreement: float
    perplexity: float
    source_perplexity: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class QuantReceipt:
    """A finished copy. `quality`: None where it was not asked for; `note`: why it could not be measured."""

    plan: QuantPlan
    quality: QuantQuality | None = None
    note: str = ""


class Quantiser(Protocol):
    """One call at a time, on a thread that may block for hours. `report` is called often, and may raise to stop: what
    is written stays, and the same order continues it.

    Every method raises ModelLoadFailed for a source that cannot be quantised, InvalidRequest with the field for an
    order that does not suit it, and OSError or ServerUnavailable where the disk or a process fails.
    """

    def plan(self, order: QuantOrder, report: Callable[[QuantProgress], None]) -> QuantPlan:
        """Returns what would be written. Reads nothing but names and shapes, except that `measured` measures a source
        that was not measured before."""
        ...

    def run(self, order: QuantOrder, report: Callable[[QuantProgress], None]) -> QuantReceipt:
        """Writes the copy: its folder appears, whole, at the end."""
        ...
