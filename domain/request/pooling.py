"""What a request for vectors or scores asks for, apart from its texts."""

from dataclasses import dataclass

from domain.errors import require
from domain.models.capability import Capability

MAX_ROW = 512
"""The most tokens of a text, or of its end, that are computed in one pass beside others. The beginning of a longer one
is a prompt, computed chunk by chunk."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """`task`: EMBED or SCORE. `dimensions`: length of the vectors, the first numbers of each, normalised again; None
    for all of them. A score is computed from the model's `score_ids`."""

    task: Capability
    dimensions: int | None = None

    def __post_init__(self) -> None:
        require(self.dimensions is None or self.dimensions >= 1, "dimensions", "must be at least 1")
