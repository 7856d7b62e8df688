"""Requests for vectors and scores: their texts, and the values that are asked for."""

from dataclasses import dataclass

from domain.errors import InvalidRequest, require
from domain.id_row import IdRow
from domain.models.capability import Capability

MAX_ROW = 512
"""The most tokens of a text, or of its end, that are computed in one pass beside others. The beginning of a longer one
is a prompt, computed chunk by chunk."""

MAX_TEXTS = 2048
"""The most texts of one request."""

MAX_TOKENS = MAX_TEXTS * MAX_ROW
"""The most tokens of all texts of one request."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """`task`: EMBED or SCORE. `dimensions`: length of the vectors, the first numbers of each, normalised again; None
    for all of them. A score is computed from the model's `score_ids`."""

    task: Capability
    dimensions: int | None = None

    def __post_init__(self) -> None:
        require(self.dimensions is None or self.dimensions >= 1, "dimensions", "must be at least 1")


@dataclass(frozen=True, slots=True)
class PooledPrompt:
    """The texts of a request for vectors, or the documents of a request for scores.

    `texts`: strings, or token ids as the client sent them, which stand as they are. `queries`: for scores, one for all
    documents or one a document. `instruction`: the task that scores are about; None for the model's own. `prompt_name`:
    of a text in the model's profile to put before each text. `truncates`: a text that is too long is cut at its end and
    not refused. `field`: the client's name for `texts`, for errors.
    """

    texts: tuple[str | IdRow, ...]
    pooling: Pooling
    queries: tuple[str, ...] = ()
    instruction: str | None = None
    prompt_name: str | None = None
    truncates: bool = False
    field: str = "input"

    def __post_init__(self) -> None:
        require(len(self.texts) >= 1, self.field, "must not be empty")
        require(
            len(self.texts) <= MAX_TEXTS,
            self.field,
            f"has {len(self.texts)} entries, at most {MAX_TEXTS} are allowed: send them in several requests",
        )
        if self.pooling.task is not Capability.EMBED:
            return
        for index, text in enumerate(self.texts):
            if not text:
                raise InvalidRequest(f"{self.place(index)} must not be empty", param=self.place(index))

    def place(self, index: int) -> str:
        """Returns the client's name for one text: `input[3]`."""
        return f"{self.field}[{index}]"
