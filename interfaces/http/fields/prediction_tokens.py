"""The draft tokens of speculative decoding in the usage of an answer, by OpenAI's names.

OpenAI's chat and text completions have zeros where nothing was drafted. The schemas of the other dialects do not have
these fields, so they are left out there.
"""

from msgspec import UNSET, Struct, UnsetType

from domain.request.request import Usage


class PredictionTokens(Struct, kw_only=True):
    """Draft tokens: accepted ones are part of the answer, rejected ones were computed and dropped."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class OwnPredictionTokens(Struct, kw_only=True):
    """Cairn's own: the fields of PredictionTokens, where drafts were verified."""

    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


def prediction_counts(*usages: Usage) -> dict[str, int]:
    """Returns the sums over all choices by field; empty if nothing was proposed."""
    if not any(usage.proposed for usage in usages):
        return {}
    return {
        "accepted_prediction_tokens": sum(usage.num_accepted for usage in usages),
        "rejected_prediction_tokens": sum(usage.num_rejected for usage in usages),
    }
