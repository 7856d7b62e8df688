"""The kinds of requests that a model answers, and how its texts become vectors and scores.

GENERATE   tokens after a prompt
EMBED      a vector for a text: one hidden state of it, or the mean of all, behind the final norm
SCORE      a number in 0..1 for a query and a document: the probability of "yes" against "no" as the next token
SEE        images in the prompt, beside one of the others
"""

from dataclasses import dataclass
from enum import Enum


class Capability(Enum):
    """A kind of request. The values are names in settings, model lists and errors."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"
    SEE = "see"


class PoolingMethod(Enum):
    """The hidden states that make a text's vector. LAST: that of its last token. MEAN: the mean over its tokens."""

    LAST = "last"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class PoolingProfile:
    """How a model makes vectors and scores, by its files.

    `is_normalized`: vectors have length 1. `dimensions`: the shorter lengths that it was trained for (Matryoshka), as
    the range (least, most); None where vectors cannot be cut. `score_ids`: the token ids of "yes" and "no"; None for a
    model that does not score. `prompts`: texts to put before an input, by name (`query`, `document`); `default` is for
    an input without a name. `end`: the token that ends every text where the tokenizer adds none; empty for none.
    """

    method: PoolingMethod = PoolingMethod.LAST
    is_normalized: bool = True
    dimensions: tuple[int, int] | None = None
    score_ids: tuple[int, int] | None = None
    prompts: tuple[tuple[str, str], ...] = ()
    end: str = ""


GENERATES = frozenset({Capability.GENERATE})
