"""The drafters by which tokens are proposed for verification, and the user's choice among them."""

from enum import Enum


class Drafter(Enum):
    """A source of drafts. NGRAM: the tokens that followed an earlier occurrence of the present end, in prompt or
    output. PREDICTION: likewise, in the text that the client predicts (OpenAI's `prediction`). HEAD: the model's
    multi-token-prediction head. DRAFT_MODEL: a smaller model of the same vocabulary.

    The values are names in metrics, spans and log lines."""

    NGRAM = "ngram"
    PREDICTION = "prediction"
    HEAD = "mtp"
    DRAFT_MODEL = "draft"


class SpeculationMode(Enum):
    """The drafters that a model may use. AUTO: all that it has, where the measured costs say that they pay. OFF: none.
    NGRAM: lookup in prompt, output and prediction only. MTP: its head only. DRAFT: its draft model only."""

    AUTO = "auto"
    OFF = "off"
    NGRAM = "ngram"
    MTP = "mtp"
    DRAFT = "draft"

    def allows(self, drafter: Drafter) -> bool:
        """True if this choice includes the drafter."""
        if self is SpeculationMode.NGRAM:
            return drafter in (Drafter.NGRAM, Drafter.PREDICTION)
        return self is SpeculationMode.AUTO or self.value == drafter.value
