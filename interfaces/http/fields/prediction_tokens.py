"""The draft tokens of speculative decoding in the usage of an answer, by OpenAI's names.

OpenAI's chat and text completions have zeros where nothing was drafted. The schemas of the other dialects do not have
these fields, so they are left out there then.
"""

from msgspec import UNSET, Struct, UnsetType

from domain.request.request import Usage


class PredictionTokens(Struct, kw_only=True):
    """Draft tokens: accepted ones are part of the answer, rejected ones were computed and dropped."""

    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


def prediction_counts(*usages: Usage) -> dict[str, int]:
    """Returns the sums over all choices by field."""
    accepted = sum(usage.num_accepted for usage in usages)
    rejected = sum(usage.num_proposed for usage in usages) - accepted
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}


def own_prediction_counts(usage: Usage) -> dict[str, int]:
    """Cairn's own in the other dialects; empty if nothing was proposed."""
    return prediction_counts(usage) if usage.proposed else {}
