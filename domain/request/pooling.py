"""Requests for vectors and scores: their texts, and the values that are asked for."""

from dataclasses import dataclass

from domain.errors import require
from domain.id_row import IdRow
from domain.models.capability import MAX_ROW

MAX_TEXTS = 2048
"""The most texts of one request."""

MAX_TOKENS = MAX_TEXTS * MAX_ROW
"""The most tokens of all texts of one request."""

MAX_CHARS = 2**20
"""The most characters of one text: encoding takes some 200 bytes of memory a character."""


@dataclass(frozen=True, slots=True)
class PooledPrompt:
    """The texts of a request for vectors, or the documents of a request for scores.

    `texts`: strings, or token ids as the client sent them, which stand as they are. `query`: what documents are scored
    for; None for vectors. `instruction`: the task that scores are about, None for the model's own. `dimensions`: of the
    vectors, None for all. `truncates`: a text that is too long is cut at its end and not refused. `field`: the client's
    name for `texts`, for errors.
    """

    texts: tuple[str | IdRow, ...]
    query: str | None = None
    instruction: str | None = None
    dimensions: int | None = None
    truncates: bool = False
    field: str = "input"

    def __post_init__(self) -> None:
        require(1 <= len(self.texts) <= MAX_TEXTS, self.field, f"must have 1 to {MAX_TEXTS} texts")
        for index, text in enumerate(self.texts):
            require(len(text) <= MAX_CHARS, self.place(index), f"must have at most {MAX_CHARS} characters")
        for name in ("query", "instruction"):
            require(len(getattr(self, name) or "") <= MAX_CHARS, name, f"must have at most {MAX_CHARS} characters")

    def place(self, index: int) -> str:
        """Returns the client's name for one text: `input[3]`."""
        return f"{self.field}[{index}]"
