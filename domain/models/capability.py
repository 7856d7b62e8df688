"""The kinds of requests that a model answers, and how its texts become vectors and scores.

GENERATE   tokens after a prompt
EMBED      a vector for a text: one hidden state of it, or the mean of all, behind the final norm
SCORE      a number in 0..1 for a query and a document: the probability of "yes" against "no" as the next token, or the
           sigmoid of an encoder's only output
SEE        images in the prompt, beside one of the others
"""

from dataclasses import dataclass
from enum import Enum

MAX_ROW = 512
"""The most tokens of a text, or of its end, that are computed in one pass beside others. The beginning of a longer one
is a prompt, computed chunk by chunk."""


class Capability(Enum):
    """A kind of request. The values are names in settings, model lists and errors."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"
    SEE = "see"


GENERATES = frozenset({Capability.GENERATE})


@dataclass(frozen=True, slots=True)
class Pooling:
    """The way from a text's hidden states to its numbers. `is_mean`: the mean of all; `is_first`: that of the first
    token; neither: that of the last one. `is_normalized`: vectors have length 1. `dimensions`: the first numbers only,
    normalised again; None for all. `score_ids`: not a vector, but the probability of the first of these tokens against
    the second as the next one. An encoder that scores needs none of these: its output is the score."""

    is_mean: bool = False
    is_normalized: bool = True
    dimensions: int | None = None
    score_ids: tuple[int, int] | None = None
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The use of a model, by its files. `size`: of its vectors, which can be cut down to `least`. `prompt`: a text to
    put before each text. `start`, `end`: spell the tokens around each. `max_tokens`: of a text, None for the context.
    `is_encoder`: it attends in both directions, so that each text is one row, whole, in one pass. `refusal`: why it
    cannot be served, and what to do; usually empty. `unseen`: why a model with a tower does not see.
    """

    capabilities: frozenset[Capability] = GENERATES
    pooling: Pooling = Pooling()
    size: int = 0
    least: int = 0
    prompt: str = ""
    start: str = ""
    end: str = ""
    max_tokens: int | None = None
    is_encoder: bool = False
    refusal: str = ""
    unseen: str = ""

    @property
    def is_pooled(self) -> bool:
        return Capability.GENERATE not in self.capabilities


PLAIN_USE = ModelUse()
